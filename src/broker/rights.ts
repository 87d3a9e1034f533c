// Rights of a session that are narrower than its user's rights. These rights come from the `jd`
// claim of the session's token and from the connect hook's reply. Pure functions.

import {
  type ChannelPattern,
  matchesAny,
  PATTERN_FORM,
  parseChannelPattern,
} from "./channel-patterns.ts";
import { BrokerError } from "./errors.ts";
import { type ChannelRef, PERSON_CHANNEL } from "./model.ts";

/** Maximum number of patterns in a list. Each message may be compared with all of them. */
const MAX_PATTERNS = 100;

/** Rights from one source. A list that is `undefined` restricts nothing. */
interface Grant {
  readonly read: readonly ChannelPattern[] | undefined;
  readonly send: readonly ChannelPattern[] | undefined;
  /** False if the session is not allowed to send events, such as typing. */
  readonly events: boolean;
}

/** List of grants. An action of the session is allowed only if every grant allows it. */
export type Rights = readonly Grant[];

const NAMES = ["read", "send", "events"];

/**
 * Parses the rights in a claim or a reply. Returns `undefined` if `value` is `undefined` or null.
 * Throws an `Error` if the value is not valid, because an unknown restriction must not be ignored.
 */
export function parseRights(value: unknown): Rights | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "object" || Array.isArray(value)) throw new Error("jd must be an object");
  const { read, send, events } = value as Readonly<Record<string, unknown>>; // a parsed JSON object
  const unknownName = Object.keys(value).find((name) => !NAMES.includes(name));
  if (unknownName !== undefined)
    throw new Error(`jd has an unknown field; use only ${NAMES.join(", ")}`);
  if (events !== undefined && events !== null && typeof events !== "boolean")
    throw new Error("jd.events must be true or false");
  return [
    {
      read: patternsOf(read, "read"),
      send: patternsOf(send, "send"),
      events: events !== false,
    },
  ];
}

function patternsOf(list: unknown, name: string): readonly ChannelPattern[] | undefined {
  if (list === undefined || list === null) return undefined;
  if (!Array.isArray(list) || list.length > MAX_PATTERNS)
    throw new Error(`jd.${name} must be a list of at most ${MAX_PATTERNS} channels`);
  return list.map((text: unknown) => {
    const pattern = typeof text === "string" ? parseChannelPattern(text) : undefined;
    if (pattern === undefined)
      throw new Error(`an entry in jd.${name} is not valid; write ${PATTERN_FORM}`);
    return pattern;
  });
}

export function bothRights(a: Rights | undefined, b: Rights | undefined): Rights | undefined {
  return a === undefined || b === undefined ? (a ?? b) : [...a, ...b];
}

export function areSameRights(a: Rights | undefined, b: Rights | undefined): boolean {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}

/**
 * Returns true if the session may read the channel. `channel` is the channel as the user sees it.
 */
export function mayRead(rights: Rights | undefined, channel: ChannelRef): boolean {
  if (rights === undefined) return true;
  return rights.every(({ read }) => read === undefined || matchesAny(read, channel));
}

/** Throws `forbidden` if the session may not read the channel. */
export function requireRead(rights: Rights | undefined, channel: ChannelRef): void {
  if (!mayRead(rights, channel)) throw forbidden("read this channel");
}

/** Throws `forbidden` if the session may not see whether these users are online. */
export function requirePresence(rights: Rights | undefined, uids: readonly string[]): void {
  if (rights === undefined) return;
  for (const id of uids)
    if (!mayRead(rights, { type: PERSON_CHANNEL, id }))
      throw forbidden("see whether these users are online");
}

/** Throws `forbidden` if the session may not send to the channel. */
export function requireSend(rights: Rights | undefined, channel: ChannelRef): void {
  if (rights === undefined) return;
  if (!rights.every(({ send }) => send === undefined || matchesAny(send, channel)))
    throw forbidden("send to this channel");
}

/** Throws `forbidden` if the session may not send events to the channel. */
export function requireEmit(rights: Rights | undefined, channel: ChannelRef): void {
  if (rights === undefined) return;
  if (!rights.every(({ events }) => events)) throw forbidden("send events");
  requireSend(rights, channel);
}

function forbidden(action: string): BrokerError {
  return new BrokerError("forbidden", {
    message: `The client is not allowed to ${action}`,
  });
}
