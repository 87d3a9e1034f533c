// Scripts for broker commands. A command whose copies are not all in inboxes yet has an entry in
// the pending copies of its bucket (stream `commands`), from which any node can complete it.

import type { BrokerError } from "../../../broker/errors.ts";
import { bucketOf } from "../../../broker/log-frame.ts";
import { type ChannelKey, expiresAtMs, userTopic } from "../../../broker/model.ts";
import type { CommandDraft } from "../../../broker/ports.ts";
import { idCounterOf } from "../../../redis/id-counters.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript, type Script } from "../../../redis/script.ts";
import { encodeRecord, packr, unpackVersioned, WIRE_VERSION } from "../../../redis/wire.ts";
import { BACKEND, senderOf, shareOf } from "../../command-draft.ts";
import { commandFields } from "../../command-event.ts";
import { payloadHash } from "../../payload-hash.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { dedupeKey } from "./channel-names.ts";
import { bucketOfUser, USER_FEED } from "./user-events.ts";

/**
 * Time for which an inbox's keys remain after its last copy has expired, while the event feed is
 * on. This lets a sweep find the copies and write their events even if no node was running when the
 * copies expired.
 */
export const INBOX_KEPT_MS = 30 * 86_400_000;
/** Placed in front of scripts that write inboxes. */
export const INBOX_LUA = [
  ...[...USER_FEED, `local KEPT_MS = ${INBOX_KEPT_MS}`, lua("inbox")],
] as const;
const ACCEPT = loadScript(lua("command"), lua("dedupe"), ...INBOX_LUA);
const PUT = loadScript(lua("command_put"), ...INBOX_LUA);
const ROOM = loadScript(lua("inbox_room"), ...INBOX_LUA);
const LIST = loadScript(lua("inbox_list"));
const LISTED = loadScript(lua("inbox_listed"));
const SWEEP = loadScript(lua("command_sweep"));

export const PENDING_PAGE = 10;

export interface Command {
  /** 0 if the command has no id yet. */
  readonly messageId: number;
  readonly key: ChannelKey;
  readonly record: Buffer;
  readonly payloadBytes: number;
  readonly endMs: number;
  readonly endsEarly: boolean;
  readonly recipients: readonly string[];
  readonly pushOnlyRecipients: readonly string[];
  readonly origin: string | undefined;
  /** User whose share of an inbox the copies use, or `BACKEND`. */
  readonly sender: string;
}

interface PutResult {
  readonly dropped: number;
  /** First error, or `undefined` if putting the copies caused no error. */
  readonly failure: BrokerError | undefined;
}

interface EventResult {
  /**
   * On a Cluster, true if the user's outbox may contain events, which the caller must move to the
   * feed.
   */
  readonly hasEvents: boolean;
}

/** Result of accepting a command. A retry has the ids of the first command or message. */
export type Acceptance =
  | (PutResult & {
      readonly kind: "new";
      readonly messageId: number;
      readonly hasPendingCopies: boolean;
    })
  /** The only recipient's inbox has no room for the command, which was not stored. */
  | { readonly kind: "refused" }
  /** The clientMsgNo belongs to a different message or command. */
  | { readonly kind: "reused" }
  | {
      readonly kind: "retry";
      readonly messageId: number;
      readonly messageSeq: number;
      /** Publication number of the first message. 0 if the first call sent a command. */
      readonly publicationSeq: number;
      /** The first command if some recipients may lack their copy, `undefined` otherwise. */
      readonly unfinished: Command | undefined;
    };

type CommandPorts = Pick<RedisStorePorts, "link" | "clock" | "limits" | "demand">;

export function newCommand({ clock, limits }: CommandPorts, draft: CommandDraft): Command {
  const { key, payload, recipients, pushOnlyRecipients, origin, expireS } = draft;
  const nowMs = clock();
  const ttlEndMs = nowMs + limits.inboxTtlS * 1000;
  const ownEndMs = expiresAtMs({ timestampMs: nowMs, expireS });
  const record = encodeRecord(
    {
      ...draft,
      header: { noPersist: false, redDot: draft.header.redDot },
      streamNo: undefined,
    },
    nowMs,
  );
  return {
    ...{ messageId: 0, key, record, recipients, pushOnlyRecipients, origin },
    sender: senderOf(draft),
    payloadBytes: payload.length,
    endMs: Math.min(ttlEndMs, ownEndMs),
    endsEarly: ownEndMs < ttlEndMs,
  };
}

/**
 * Returns true if the command may be refused for lack of room. Only a command that a user sent to a
 * single recipient may be refused.
 */
export function mayBeRefused({ sender, recipients }: Command): boolean {
  return sender !== BACKEND && recipients.length === 1;
}

/**
 * Runs the script that accepts a command. The script is sent immediately, so that ids follow the
 * order of the calls.
 */
export async function accept(
  ports: CommandPorts,
  command: Command,
  {
    draft,
    count,
    isRefused,
  }: { readonly draft: CommandDraft; readonly count: number; readonly isRefused: boolean },
): Promise<Acceptance> {
  const { link, limits } = ports;
  const { keys, isCluster } = link;
  const { key, recipients, pushOnlyRecipients } = command;
  const ids = idCounterOf(link, bucketOf(key));
  const direct = recipients.slice(0, count);
  const pending = recipients.slice(count);
  const hasNoUsers = recipients.length + pushOnlyRecipients.length === 0;
  const stored = hasNoUsers ? { ...command, record: EMPTY } : command;
  const hasPending = pending.length > 0 || (isCluster && pushOnlyRecipients.length > 0);
  // On a single server, `command.lua` itself notifies `pushOnlyRecipients`.
  const unnotified = isCluster ? pushOnlyRecipients : [];
  const reply = await link.run(
    ACCEPT,
    [
      ...[dedupeKey(keys, draft), ids.key, pendingCopiesOf(keys, key)],
      ...inboxKeys(keys, direct, PUT_KEYS),
    ],
    [
      ...[...copyArgs(ports, stored), ids.bucket],
      draft.clientMsgNo === "" ? 0 : limits.dedupeWindowS * 1000,
      ...[
        headOf({ ...command, pushOnlyRecipients: unnotified }),
        hasPending ? packr.pack(pending) : "",
      ],
      ...[isRefused ? 1 : 0, payloadHash(draft.sentPayload ?? draft.payload)],
      ...[draft.allowsReuse ? 1 : 0, ...eventArgs(ports, draft), direct.length],
      ...recipientsOf(ports, direct),
      ...(isCluster ? [] : pushOnlyRecipients.flatMap((uid) => [uid, keys.topic(userTopic(uid))])),
    ],
  );
  const result = reply as AcceptReply;
  if (result[0] === 2) return { kind: "refused" };
  if (result[0] === 3) return { kind: "reused" };
  const [, messageId] = result;
  if (result[0] === 0) {
    const [, , dropped, cause, hasPendingCopies] = result;
    const failure = failureOf(link, ACCEPT, cause);
    return { kind: "new", messageId, dropped, failure, hasPendingCopies: hasPendingCopies === 1 };
  }
  const [, , messageSeq, publicationSeq, pendingEntry] = result;
  const unfinished = pendingEntry ? decodePending(messageId, pendingEntry) : undefined;
  return { kind: "retry", messageId, messageSeq, publicationSeq, unfinished };
}

function eventArgs({ demand, clock }: CommandPorts, draft: CommandDraft): readonly Arg[] {
  if (!demand?.command) return ["", "", 0];
  const fields = JSON.stringify(commandFields(draft, clock())).slice(1);
  return [draft.key, fields, draft.clientMsgNo === "" ? 0 : 1];
}

type AcceptReply =
  | readonly [2]
  | readonly [3]
  | readonly [0, number, number, Buffer, number]
  | readonly [1, number, number, number, (readonly Buffer[] | null)?];

/** Returns whether the only recipient's inbox has room for a copy. */
export async function roomOf(
  ports: CommandPorts,
  command: Command,
): Promise<EventResult & { readonly hasRoom: boolean }> {
  const { keys } = ports.link;
  const [uid = ""] = command.recipients;
  const names = INBOX_KEYS.map((name) => keys.user(name, uid));
  const bucket = bucketOfUser(ports.link, ports.demand, uid);
  const reply = await ports.link.run(ROOM, names, [...copyArgs(ports, command), uid, bucket]);
  const [room, events] = reply as [number, number];
  return { hasRoom: room === 1, hasEvents: events === 1 };
}

/**
 * Puts a copy of the command into each user's inbox unless the inbox already got its copy. On a
 * Cluster, `uids` must have one element, and the call must be repeated if it fails, even if the
 * copy was put.
 */
export async function put(
  ports: CommandPorts,
  command: Command,
  uids: readonly string[],
): Promise<PutResult & EventResult> {
  const { keys } = ports.link;
  const args = [...copyArgs(ports, command), command.messageId, ...recipientsOf(ports, uids)];
  // The command is already accepted, so the call must not fail with `overloaded`.
  const names = [...PUT_KEYS, "inboxIds"];
  const reply = await ports.link.run(PUT, inboxKeys(keys, uids, names), args, { isVital: true });
  const [dropped, cause, seq, endMs, events] = reply as [number, Buffer, number, number, number];
  if (seq >= 0) await listInbox(ports, uids[0] ?? "", { endMs, seq });
  return { dropped, failure: failureOf(ports.link, PUT, cause), hasEvents: events === 1 };
}

/**
 * Adds an inbox to `inboxDue` in the bucket of the user's events. Needed only on a Cluster. `endMs`
 * is the time when the next copy expires. `seq` is the inboxSeq of a copy that remains until
 * `endMs`, or 0 if no such copy is known.
 */
export async function listInbox(
  { link, clock }: Pick<CommandPorts, "link" | "clock">,
  uid: string,
  { endMs, seq }: { readonly endMs: number; readonly seq: number },
): Promise<void> {
  const { keys } = link;
  await link.run(LIST, [inboxDueKey(keys, uid)], [uid, endMs]);
  if (seq === 0) return;
  const names = ["inbox", "inboxListed"].map((part) => keys.user(part, uid));
  await link.run(LISTED, names, [seq, endMs, Math.max(1, endMs - clock())]);
}

export function inboxDueKey(keys: Keys, uid: string): string {
  return keys.bucket("inboxDue", bucketOf(userTopic(uid)));
}

export function pendingCopiesOf(keys: Keys, key: ChannelKey): string {
  return keys.bucket("commands", bucketOf(key));
}

/** Decodes an entry of the pending copies. Throws `internal` if it has a newer format. */
export function decodePending(messageId: number, fields: readonly Buffer[]): Command {
  const [, head = EMPTY, , record = EMPTY, , recipients = EMPTY] = fields;
  const facts = unpackVersioned(head);
  const [, key, payloadBytes, endMs, endsEarly, pushOnlyRecipients, origin, sender] = facts;
  return {
    messageId,
    key: key as ChannelKey, // as `headOf` of this or another node wrote it
    record,
    payloadBytes: payloadBytes as number,
    endMs: endMs as number,
    endsEarly: endsEarly as boolean,
    recipients: packr.unpack(recipients) as string[],
    pushOnlyRecipients: pushOnlyRecipients as string[],
    origin: (origin as string | null) ?? undefined,
    sender: sender as string,
  };
}

export type PendingEntries = readonly (readonly [Buffer, readonly Buffer[]])[];

interface SweepRange {
  readonly endedId: number;
  /** First id, or `(` followed by the last id of the previous page. */
  readonly from: string;
  readonly untilId: number;
}

/**
 * Reads a page of the bucket's pending copies. The page is empty while another node sweeps the
 * bucket. A page that is not full is the last page.
 */
export async function readPendingCopies(
  { link, clock }: CommandPorts,
  bucket: number,
  { endedId, from, untilId }: SweepRange,
): Promise<PendingEntries> {
  const reply = await link.run(
    SWEEP,
    [link.keys.bucket("commands", bucket), leaseOf(link.keys, bucket)],
    [clock(), endedId, from, untilId, PENDING_PAGE],
  );
  return reply as PendingEntries;
}

export function leaseOf(keys: Keys, bucket: number): string {
  return keys.bucket("commandSweep", bucket);
}

const EMPTY = Buffer.alloc(0);
/** Keys of an inbox, in the order in which the scripts declare them. */
export const INBOX_KEYS = ["inbox", "inboxExpiry", "inboxSenders", "inboxShares", "inboxOrder"];
const PUT_KEYS = ["inboxSeq", ...INBOX_KEYS];

function headOf(command: Command): Buffer {
  const { key, payloadBytes, endMs, endsEarly, pushOnlyRecipients, origin, sender } = command;
  const facts = [key, payloadBytes, endMs, endsEarly, pushOnlyRecipients, origin ?? null, sender];
  return packr.pack([WIRE_VERSION, ...facts]);
}

function copyArgs(
  { link, clock, limits }: CommandPorts,
  { endMs, endsEarly, payloadBytes, record, origin = "", sender }: Command,
): readonly Arg[] {
  const ends = [endMs, endsEarly ? 1 : 0];
  const { maxInbox } = limits;
  const copy = [payloadBytes, record, origin, sender];
  return [clock(), ...ends, maxInbox, ...copy, shareOf(maxInbox), idCounterOf(link, 0).key];
}

function inboxKeys(
  keys: Keys,
  uids: readonly string[],
  names: readonly string[],
): readonly string[] {
  return uids.flatMap((uid) => names.map((name) => keys.user(name, uid)));
}

/** Returns the uid, the topic and the bucket of each user who gets a copy. */
function recipientsOf({ link, demand }: CommandPorts, uids: readonly string[]): readonly string[] {
  return uids.flatMap((uid) => [
    ...[uid, link.keys.topic(userTopic(uid)), bucketOfUser(link, demand, uid)],
  ]);
}

function failureOf(link: RedisLink, script: Script, cause: Buffer): BrokerError | undefined {
  return cause.length === 0 ? undefined : link.errorOf(script, String(cause));
}
