// A model of conversations for comparison with a store. It is as simple as possible: it keeps every
// message in a list and searches the whole list for each result.

import { type ChannelKey, type ChannelRef, channelKey } from "../../src/broker/model.ts";
import type { ConversationChange } from "../../src/broker/ports.ts";

/** A message of the model. */
interface ModelMessage {
  readonly seq: number;
  /** Position of the message in the order in which all channels received their messages. */
  readonly order: number;
  readonly redDot: boolean;
  /** Time of the call. The message expires `expireS` seconds later. */
  readonly atMs: number;
  /** Time in the message id: the time at which the batch with the message was stored. */
  idMs: number;
  /** Seconds until the message expires, or 0 if it never does. */
  readonly expireS: number;
}

/** A user's position in one conversation. */
interface UserPosition {
  read: number;
  deleted: number;
  changedAtMs: number;
}

/** Fields of a conversation that are compared between store and model. */
export interface ConversationState {
  readonly channel: ChannelRef;
  readonly headSeq: number;
  readonly readSeq: number;
  readonly unread: number;
  readonly deletedSeq: number;
  readonly changedAtMs: number;
  /** Seq of the newest message that is still shown, or `undefined` if there is none. */
  readonly lastSeq: number | undefined;
}

/** Limits of a channel's history. 0 means no limit. */
export interface HistoryLimits {
  readonly retentionS: number;
  readonly maxChannelMessages: number;
}

export class ConversationModel {
  nowMs = Date.UTC(2026, 0, 1);
  readonly #limits: HistoryLimits;
  /** For each channel, the newest seq that a sweep has removed. */
  readonly #swept = new Map<ChannelKey, number>();
  readonly #channels = new Map<ChannelKey, ModelMessage[]>();
  readonly #members = new Map<string, Set<string>>();
  readonly #positions = new Map<string, UserPosition>();
  #count = 0;

  constructor(limits: HistoryLimits) {
    this.#limits = limits;
  }

  get groups(): readonly string[] {
    return [...this.#members.keys()];
  }

  membersOf(group: string): readonly string[] {
    return [...(this.#members.get(group) ?? [])];
  }

  advanceClock(ms: number): void {
    this.nowMs += ms;
  }

  /** Removes the messages that exceed the limit per channel. */
  sweep(): void {
    const { maxChannelMessages } = this.#limits;
    if (maxChannelMessages === 0) return;
    for (const [key, { length }] of this.#channels)
      this.#swept.set(key, length - maxChannelMessages);
  }

  create(group: string): void {
    this.#members.set(group, new Set());
  }

  join(group: string, uid: string): void {
    if (this.#members.get(group)?.has(uid)) return;
    this.#members.get(group)?.add(uid);
    const key = `2:${group}`;
    const read = this.#messages(key).length;
    this.#positions.set(`${uid} ${key}`, { read, deleted: 0, changedAtMs: 0 });
  }

  leave(group: string, uid: string): void {
    this.#members.get(group)?.delete(uid);
    this.#positions.delete(`${uid} 2:${group}`);
  }

  send(
    fromUid: string,
    channel: ChannelRef,
    options: { readonly redDot: boolean; readonly expireS: number },
  ): void {
    const key = channelKey(channel, fromUid);
    const messages = this.#messages(key);
    const seq = messages.length + 1;
    const order = this.#count++;
    messages.push({ seq, order, atMs: this.nowMs, idMs: this.nowMs, ...options });
    const position = this.#position(fromUid, key);
    if (position !== undefined) position.read = seq;
  }

  /** Sets the time in the ids of the newest `count` messages, which were stored together. */
  storedTogether(count: number): void {
    for (const messages of this.#channels.values())
      for (const message of messages)
        if (message.order >= this.#count - count) message.idMs = this.nowMs;
  }

  change(uid: string, channel: ChannelRef, change: ConversationChange): void {
    const key = channelKey(channel, uid);
    const position = this.#position(uid, key);
    const head = this.#messages(key).length;
    if (position === undefined || head === 0) return;
    const before = { ...position };
    if (change.kind === "delete") {
      const seq = Math.min(head, change.seq ?? head);
      position.deleted = Math.max(position.deleted, seq);
      position.read = Math.max(position.read, seq);
    }
    if (change.kind === "read")
      position.read = Math.max(position.deleted, Math.min(head, change.seq));
    if (change.kind === "unread") {
      const available = this.#unread(key, position.deleted);
      const count = Math.min(available, change.unread);
      position.read = head;
      while (this.#unread(key, position.read) < count) position.read--;
    }
    if (before.read !== position.read || before.deleted !== position.deleted)
      position.changedAtMs = this.nowMs;
  }

  /** Returns the user's state in the channel, or `undefined` if the user is not a member. */
  stateOf(uid: string, channel: ChannelRef): ConversationState | undefined {
    const key = channelKey(channel, uid);
    const position = this.#position(uid, key);
    if (position === undefined) return undefined;
    const { read, deleted, changedAtMs } = position;
    const last = this.#shown(key, deleted).at(-1);
    return {
      channel,
      headSeq: this.#messages(key).length,
      readSeq: read,
      unread: this.#unread(key, read),
      deletedSeq: deleted,
      changedAtMs: Math.max(last?.idMs ?? 0, changedAtMs),
      lastSeq: last?.seq,
    };
  }

  /** Returns the states of those `channels` that show a message, newest message first. */
  list(uid: string, channels: readonly ChannelRef[]): ConversationState[] {
    const entries = channels.flatMap((channel) => {
      const state = this.stateOf(uid, channel);
      if (state?.lastSeq === undefined) return [];
      const last = this.#messages(channelKey(channel, uid))[state.lastSeq - 1];
      return [{ state, order: last?.order ?? 0 }];
    });
    return entries.sort((a, b) => b.order - a.order).map(({ state }) => state);
  }

  #messages(key: ChannelKey): ModelMessage[] {
    const existing = this.#channels.get(key);
    if (existing !== undefined) return existing;
    const messages: ModelMessage[] = [];
    this.#channels.set(key, messages);
    return messages;
  }

  #position(uid: string, key: ChannelKey): UserPosition | undefined {
    const existing = this.#positions.get(`${uid} ${key}`);
    if (existing !== undefined || key.startsWith("2:")) return existing;
    const position = { read: 0, deleted: 0, changedAtMs: 0 };
    this.#positions.set(`${uid} ${key}`, position);
    return position;
  }

  /** Returns the messages after `seq` that were not swept and have not expired. */
  #shown(key: ChannelKey, afterSeq: number): ModelMessage[] {
    const retentionMs = this.#limits.retentionS * 1000;
    const swept = this.#swept.get(key) ?? 0;
    return this.#messages(key).filter(
      ({ seq, atMs, idMs, expireS }) =>
        seq > Math.max(afterSeq, swept) &&
        (expireS === 0 || this.nowMs < atMs + expireS * 1000) &&
        (retentionMs === 0 || this.nowMs < idMs + retentionMs),
    );
  }

  #unread(key: ChannelKey, position: number): number {
    return this.#shown(key, position).filter((m) => m.redDot).length;
  }
}
