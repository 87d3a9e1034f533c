// Determines, for each stored message, the users whom the broker has not reached and who therefore
// need a push notification. Keeps no state.

import { Semaphore } from "../lib/semaphore.ts";
import { isTransient } from "./errors.ts";
import { messagesOf } from "./event-messages.ts";
import { type EventDraft, type EventRow, MAX_EVENT_UIDS } from "./event-ports.ts";
import {
  type ChannelKey,
  type ChannelRef,
  GROUP_CHANNEL,
  isId,
  MAIN_DEVICE,
  type Message,
  PERSON_CHANNEL,
  type SessionRecord,
  SYSTEM_UID,
} from "./model.ts";
import type { ChannelStore, MessageStore } from "./ports.ts";
import type { PushStore } from "./push-ports.ts";
import type { SessionDirectory } from "./session-directory.ts";

/**
 * Rule that decides which live sessions count as reaching a user.
 *
 *     foreground  a session whose client is in the foreground. A user who has read or acknowledged
 *                 the message also counts as reached.
 *     main        a session of a main device, even if its client is in the background, as in
 *                 WuKongIM. Reading or acknowledging the message does not matter. If the sender
 *                 has no main session, the message gets an event even if all users were reached.
 */
type PushRule = "foreground" | "main";

interface UnreachedPorts {
  readonly store: Pick<ChannelStore, "channel" | "channelSizes" | "members" | "membersAmong"> &
    Pick<MessageStore, "readMessages"> &
    Pick<PushStore, "readSeqs" | "acknowledgedBy">;
  readonly directory: Pick<SessionDirectory, "liveSessions">;
  readonly isSystem: (uid: string) => boolean;
  readonly rule: PushRule;
  /** Number of group members above which only mentioned members are checked. */
  readonly maxMembers: number;
  onError(error: unknown, message: string): void;
}

/**
 * The events to write for a message. `events` is empty if the message needs no event (see
 * `PushRule`), if it no longer exists, or if its channel cannot be read.
 */
export interface Decision {
  readonly row: EventRow;
  readonly events: readonly EventDraft[];
}

/** Users that a channel's messages can reach, and the seq up to which each of them has read. */
interface Audience {
  /** The seqs are 0 if read positions are not used: with the rule `main`, or in a large group. */
  readonly readSeqs: ReadonlyMap<string, number>;
  /** True if a message concerns only the users that it mentions. */
  readonly isMentionedOnly: boolean;
}

/** Number of users whose memberships or read positions are read in one call. */
const USERS_PER_READ = 500;
/** Maximum number of users that a message can mention. Later users in its list are ignored. */
const MAX_MENTIONS = 1000;
/** Maximum number of groups whose members are in memory at the same time. */
const GROUPS_AT_ONCE = 8;
const NOBODY: ReadonlySet<string> = new Set();

export class Unreached {
  readonly #ports: UnreachedPorts;

  constructor(ports: UnreachedPorts) {
    this.#ports = ports;
  }

  /**
   * Determines, for each event, which users its message has not reached. Returns one decision per
   * event, in order. If reading a channel's users fails permanently, its messages get no events,
   * so that the other channels do not wait for it. All other errors are thrown.
   */
  async decide(rows: readonly EventRow[]): Promise<readonly Decision[]> {
    const stored = await messagesOf(this.#ports.store, rows);
    const byChannel = new Map<ChannelKey, Message[]>();
    for (const { id, key, messageSeq } of rows) {
      const message = stored.get(`${key}\n${messageSeq}`);
      if (message === undefined || message.messageId !== id) continue; // the message was removed
      const messages = byChannel.get(key);
      if (messages === undefined) byChannel.set(key, [message]);
      else messages.push(message);
    }
    const unreached = new Map<number, readonly string[]>();
    const groups = new Semaphore(GROUPS_AT_ONCE);
    // The reads are issued together, so that they share round trips.
    await Promise.all(
      [...byChannel].map(async ([key, messages]) => {
        const decide = () => this.#unreachedOf(key, messages);
        const isPersonal = channelOf(key).type === PERSON_CHANNEL;
        try {
          const uidsById = await (isPersonal ? decide() : groups.run(decide));
          for (const [id, uids] of uidsById) unreached.set(id, uids);
        } catch (error) {
          if (isTransient(error)) throw error;
          this.#ports.onError(
            error,
            "Could not decide which users of a channel need a push notification; no message.unreached events are written for the affected messages",
          );
        }
      }),
    );
    return rows.map((row) => ({ row, events: pagesOf(row, unreached.get(row.id)) }));
  }

  /**
   * Returns, by message id, the users who need a push notification. Leaves out messages that get no
   * event.
   */
  async #unreachedOf(
    key: ChannelKey,
    messages: readonly Message[],
  ): Promise<ReadonlyMap<number, readonly string[]>> {
    const { rule } = this.#ports;
    const { readSeqs, isMentionedOnly } = await this.#audienceOf(key, messages);
    const newestSeq = Math.max(...messages.map(({ messageSeq }) => messageSeq));
    const senders = rule === "main" ? messages.map(({ fromUid }) => fromUid) : [];
    const unread = [...readSeqs].filter(([, seq]) => seq < newestSeq).map(([uid]) => uid);
    const offline = await this.#withoutSession([...new Set([...unread, ...senders])]);
    const waiting = unread.filter((uid) => offline.has(uid));
    const acknowledged = await this.#acknowledgedBy(key, messages, waiting);
    const unreached = new Map<number, readonly string[]>();
    for (const [at, message] of messages.entries()) {
      const { fromUid, messageSeq, messageId } = message;
      const users = isMentionedOnly ? mentionedBy(message) : undefined;
      const uids = waiting.filter(
        (uid) =>
          uid !== fromUid &&
          (readSeqs.get(uid) ?? 0) < messageSeq &&
          users?.has(uid) !== false &&
          acknowledged[at]?.has(uid) !== true,
      );
      const isOfflineSender = rule === "main" && readSeqs.has(fromUid) && offline.has(fromUid);
      if (uids.length > 0 || isOfflineSender) unreached.set(messageId, uids);
    }
    return unreached;
  }

  async #audienceOf(key: ChannelKey, messages: readonly Message[]): Promise<Audience> {
    const { store, maxMembers } = this.#ports;
    const channel = channelOf(key);
    if (channel.type === PERSON_CHANNEL) {
      const uids = channel.id.split("@");
      return { readSeqs: await this.#readSeqs(key, uids), isMentionedOnly: false };
    }
    const [info, { members: count }] = await Promise.all([
      store.channel(channel),
      store.channelSizes(channel),
    ]);
    if (info === undefined || info.disband) return { readSeqs: new Map(), isMentionedOnly: true };
    if (!info.large && count <= maxMembers) {
      const uids = await store.members(channel);
      return { readSeqs: await this.#readSeqs(key, uids), isMentionedOnly: false };
    }
    const mentioned = [...new Set(messages.flatMap((message) => [...mentionedBy(message)]))];
    const uids: string[] = [];
    for (let at = 0; at < mentioned.length; at += USERS_PER_READ) {
      const some = mentioned.slice(at, at + USERS_PER_READ);
      uids.push(...(await store.membersAmong(channel, some)));
    }
    return { readSeqs: await this.#readSeqs(key, uids, info.large), isMentionedOnly: true };
  }

  async #readSeqs(
    key: ChannelKey,
    members: readonly string[],
    isLarge = false,
  ): Promise<ReadonlyMap<string, number>> {
    const uids = this.#people(members);
    // A large group has no read positions.
    if (isLarge || this.#ports.rule === "main") return new Map(uids.map((uid) => [uid, 0]));
    const readSeqs = new Map<string, number>();
    for (let at = 0; at < uids.length; at += USERS_PER_READ) {
      const some = uids.slice(at, at + USERS_PER_READ);
      const seqs = await this.#ports.store.readSeqs(key, some);
      for (const [place, uid] of some.entries()) readSeqs.set(uid, seqs[place] ?? 0);
    }
    return readSeqs;
  }

  /** Returns the users except system accounts, which never need a push notification. */
  #people(uids: readonly string[]): readonly string[] {
    return uids.filter((uid) => uid !== SYSTEM_UID && !this.#ports.isSystem(uid));
  }

  async #withoutSession(uids: readonly string[]): Promise<ReadonlySet<string>> {
    const { directory, rule } = this.#ports;
    const reaches = (session: SessionRecord) =>
      rule === "main" ? session.level === MAIN_DEVICE : session.isBackground !== true;
    const sessions = await directory.liveSessions(uids);
    return new Set(uids.filter((_, at) => sessions[at]?.some(reaches) !== true));
  }

  async #acknowledgedBy(
    key: ChannelKey,
    messages: readonly Message[],
    waiting: readonly string[],
  ): Promise<readonly ReadonlySet<string>[]> {
    if (waiting.length === 0 || this.#ports.rule === "main") return messages.map(() => NOBODY);
    const seqs = messages.map(({ messageSeq }) => messageSeq);
    return this.#ports.store.acknowledgedBy(key, seqs);
  }
}

/**
 * Divides a message's unreached users among events. If `uids` is `undefined`, the message gets no
 * event.
 */
function pagesOf(row: EventRow, uids: readonly string[] | undefined): readonly EventDraft[] {
  if (uids === undefined) return [];
  const pages = Math.max(1, Math.ceil(uids.length / MAX_EVENT_UIDS));
  return Array.from({ length: pages }, (_, at) => ({
    type: "message.unreached" as const,
    key: row.key,
    messageSeq: row.messageSeq,
    fields: {
      uids: uids.slice(at * MAX_EVENT_UIDS, (at + 1) * MAX_EVENT_UIDS),
      ...{ page: at + 1, pages, event: [row.number, row.id] },
    },
  }));
}

function mentionedBy({ payload }: Message): ReadonlySet<string> {
  try {
    const content: unknown = JSON.parse(Buffer.from(payload).toString());
    const uids = (content as { mention?: { uids?: unknown } } | null)?.mention?.uids;
    if (!Array.isArray(uids)) return NOBODY;
    const names = uids.filter((uid): uid is string => typeof uid === "string" && isId(uid));
    return new Set(names.slice(0, MAX_MENTIONS));
  } catch {
    return NOBODY; // a payload that is not JSON mentions nobody
  }
}

/**
 * Returns the channel of a key. For a personal channel, the id is the part of the key that names
 * both users.
 */
function channelOf(key: ChannelKey): ChannelRef {
  return { type: key.startsWith("2:") ? GROUP_CHANNEL : PERSON_CHANNEL, id: key.slice(2) };
}
