// A plain model of conversations: every message and every member in lists, and every count computed
// anew on each request. It implements the contract of `ConversationStore` in the slowest and
// simplest way.

import { type ChannelRef, channelKey, GROUP_CHANNEL } from "../../src/broker/model.ts";

export interface ModelMessage {
  readonly seq: number;
  readonly id: number;
  readonly fromUid: string;
  readonly redDot: boolean;
  /** Unix milliseconds. `Infinity` means never. */
  readonly expiresAtMs: number;
}

/** Positions that a user set, and the channel's head at that time. */
interface Position {
  readonly readSeq: number;
  readonly deletedSeq: number;
  readonly headThen: number;
}

export interface ModelConversation {
  /** Type and id of the channel as the user addresses it. */
  readonly channel: string;
  readonly unread: number;
  readonly readSeq: number;
  readonly deletedSeq: number;
  readonly lastSeq: number;
}

interface Channel {
  readonly messages: ModelMessage[];
  /** Head of the channel when each member joined. */
  readonly joined: Map<string, number>;
  readonly positions: Map<string, Position>;
  readonly isLarge: boolean;
}

export type ModelChange =
  | { readonly kind: "read"; readonly seq: number }
  | { readonly kind: "unread"; readonly unread: number }
  | { readonly kind: "delete" };

export class UnreadModel {
  readonly #channels = new Map<string, Channel>();
  readonly #users: readonly string[];

  constructor(users: readonly string[]) {
    this.#users = users;
  }

  createGroup(id: string, members: readonly string[], isLarge: boolean): void {
    const joined = new Map(members.map((uid) => [uid, 0]));
    const channel = { messages: [], joined, positions: new Map(), isLarge };
    this.#channels.set(`2:${id}`, channel);
  }

  isMember(uid: string, channel: ChannelRef): boolean {
    if (channel.type !== GROUP_CHANNEL) return true;
    return this.#of(uid, channel).joined.has(uid);
  }

  join(uid: string, channel: ChannelRef): void {
    const { joined, messages } = this.#of(uid, channel);
    joined.set(uid, messages.length);
  }

  leave(uid: string, channel: ChannelRef): void {
    const { joined, positions } = this.#of(uid, channel);
    joined.delete(uid);
    positions.delete(uid);
  }

  /** Adds a message. Messages may be added in any order of seqs. */
  add(channel: ChannelRef, message: ModelMessage): void {
    this.#of(message.fromUid, channel).messages[message.seq - 1] = message;
  }

  head(uid: string, channel: ChannelRef): number {
    return this.#of(uid, channel).messages.length;
  }

  change(
    uid: string,
    channel: ChannelRef,
    { change, nowMs }: { readonly change: ModelChange; readonly nowMs: number },
  ): void {
    const state = this.#of(uid, channel);
    const headThen = state.messages.length;
    if (state.isLarge || headThen === 0) return;
    const { deletedSeq } = this.#positionsOf(uid, state);
    const put = (readSeq: number, deleted: number) =>
      state.positions.set(uid, { readSeq, deletedSeq: deleted, headThen });
    if (change.kind === "delete") put(headThen, headThen);
    else if (change.kind === "read")
      put(Math.max(deletedSeq, Math.min(headThen, change.seq)), deletedSeq);
    else {
      const unread = unreadAfter(state, deletedSeq, nowMs);
      const count = Math.min(change.unread, unread.length);
      const first = count === 0 ? undefined : unread.at(-count);
      put(first === undefined ? headThen : first.seq - 1, deletedSeq);
    }
  }

  /** Returns the user's conversations, the one with the newest message first. */
  list(uid: string, nowMs: number): readonly ModelConversation[] {
    const conversations = [...this.#channels].flatMap(([key, channel]) => {
      const name = nameFor(uid, key);
      if (name === undefined) return [];
      if (key.startsWith("2:") && !channel.joined.has(uid)) return [];
      const { readSeq, deletedSeq } = this.#positionsOf(uid, channel);
      const last = channel.messages.findLast(
        ({ seq, expiresAtMs }) => seq > deletedSeq && expiresAtMs > nowMs,
      );
      if (last === undefined) return [];
      const unread = channel.isLarge ? 0 : unreadAfter(channel, readSeq, nowMs).length;
      const { id, seq: lastSeq } = last;
      const conversation = { channel: name, unread, readSeq, deletedSeq, lastSeq };
      return [{ id, conversation }];
    });
    return conversations.sort((a, b) => b.id - a.id).map(({ conversation }) => conversation);
  }

  /**
   * Returns true if a message expires between the two times. A list that was read between them may
   * or may not contain the message.
   */
  isUncertain(fromMs: number, toMs: number): boolean {
    return [...this.#channels.values()].some(({ messages }) =>
      messages.some(({ expiresAtMs }) => expiresAtMs >= fromMs && expiresAtMs <= toMs),
    );
  }

  #positionsOf(uid: string, { messages, joined, positions, isLarge }: Channel) {
    const head = messages.length;
    if (isLarge) return { readSeq: head, deletedSeq: 0 };
    const own = messages.findLast(({ fromUid }) => fromUid === uid)?.seq ?? 0;
    const position = positions.get(uid);
    if (position === undefined)
      return { readSeq: Math.max(joined.get(uid) ?? 0, own), deletedSeq: 0 };
    const { deletedSeq, headThen } = position;
    const since = own > headThen ? own : 0;
    return { readSeq: Math.max(position.readSeq, since), deletedSeq };
  }

  #of(uid: string, channel: ChannelRef): Channel {
    const key = channelKey(channel, uid);
    const state = this.#channels.get(key) ?? {
      messages: [],
      joined: new Map(),
      positions: new Map(),
      isLarge: false,
    };
    if (channel.type !== GROUP_CHANNEL && !this.#users.includes(channel.id))
      throw new Error(`${channel.id} is not a user of the model`);
    this.#channels.set(key, state);
    return state;
  }
}

function unreadAfter(
  { messages }: Channel,
  position: number,
  nowMs: number,
): readonly ModelMessage[] {
  return messages.filter(
    ({ seq, redDot, expiresAtMs }) => seq > position && redDot && expiresAtMs > nowMs,
  );
}

/**
 * Returns the channel as `uid` addresses it, or `undefined` if the user is not part of the
 * conversation.
 */
function nameFor(uid: string, key: string): string | undefined {
  if (key.startsWith("2:")) return key;
  const pair = key.slice(2).split("@");
  if (!pair.includes(uid)) return undefined;
  return `1:${pair.find((member) => member !== uid) ?? uid}`;
}
