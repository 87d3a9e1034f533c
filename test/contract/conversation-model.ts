// Conversations as plainly as can be: every message is kept in a list, every question goes through
// all of it.

import { type ChannelKey, type ChannelRef, channelKey } from "../../src/broker/model.ts";
import type { ConversationChange } from "../../src/broker/ports.ts";

interface ModelMessage {
  readonly seq: number;
  /** Counts the messages of all channels as they came. */
  readonly place: number;
  readonly redDot: boolean;
  readonly atMs: number;
  /** 0 = never. */
  readonly expireS: number;
}

/** Where a user stands: moved by what happens, as it happens. */
interface UserPosition {
  read: number;
  deleted: number;
  changedAtMs: number;
}

/** What a conversation is compared by. */
export interface ConversationState {
  readonly channel: ChannelRef;
  readonly headSeq: number;
  readonly readSeq: number;
  readonly unread: number;
  readonly deletedSeq: number;
  readonly changedAtMs: number;
  readonly lastSeq: number | undefined;
}

/** 0 = for ever, or all. */
export interface HistoryLimits {
  readonly retentionS: number;
  readonly maxChannelMessages: number;
}

export class ConversationModel {
  nowMs = Date.UTC(2026, 0, 1);
  readonly #limits: HistoryLimits;
  /** Of each channel the newest seq that a sweep took. */
  readonly #swept = new Map<ChannelKey, number>();
  readonly #channels = new Map<ChannelKey, ModelMessage[]>();
  readonly #members = new Map<string, Set<string>>();
  readonly #stands = new Map<string, UserPosition>();
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

  pass(ms: number): void {
    this.nowMs += ms;
  }

  /** What no channel keeps is gone from now on. */
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
    this.#stands.set(`${uid} ${key}`, { read, deleted: 0, changedAtMs: 0 });
  }

  leave(group: string, uid: string): void {
    this.#members.get(group)?.delete(uid);
    this.#stands.delete(`${uid} 2:${group}`);
  }

  send(
    fromUid: string,
    channel: ChannelRef,
    how: { readonly redDot: boolean; readonly expireS: number },
  ): void {
    const key = channelKey(channel, fromUid);
    const messages = this.#messages(key);
    const seq = messages.length + 1;
    const place = this.#count++;
    messages.push({ seq, place, atMs: this.nowMs, ...how });
    const stand = this.#stand(fromUid, key);
    if (stand !== undefined) stand.read = seq;
  }

  change(uid: string, channel: ChannelRef, change: ConversationChange): void {
    const key = channelKey(channel, uid);
    const stand = this.#stand(uid, key);
    const head = this.#messages(key).length;
    if (stand === undefined || head === 0) return;
    const before = { ...stand };
    if (change.kind === "delete") {
      stand.deleted = head;
      stand.read = head;
    }
    if (change.kind === "read") stand.read = Math.max(stand.deleted, Math.min(head, change.seq));
    if (change.kind === "unread") {
      const most = this.#unread(key, stand.deleted);
      const wanted = Math.min(most, change.unread);
      stand.read = head;
      while (this.#unread(key, stand.read) < wanted) stand.read--;
    }
    if (before.read !== stand.read || before.deleted !== stand.deleted)
      stand.changedAtMs = this.nowMs;
  }

  /** Undefined: no member. */
  seen(uid: string, channel: ChannelRef): ConversationState | undefined {
    const key = channelKey(channel, uid);
    const stand = this.#stand(uid, key);
    if (stand === undefined) return undefined;
    const { read, deleted, changedAtMs } = stand;
    const last = this.#shown(key, deleted).at(-1);
    return {
      channel,
      headSeq: this.#messages(key).length,
      readSeq: read,
      unread: this.#unread(key, read),
      deletedSeq: deleted,
      changedAtMs: Math.max(last?.atMs ?? 0, changedAtMs),
      lastSeq: last?.seq,
    };
  }

  /** Those of `channels` that have a shown message, the one that came last first. */
  list(uid: string, channels: readonly ChannelRef[]): ConversationState[] {
    const found = channels.flatMap((channel) => {
      const seen = this.seen(uid, channel);
      if (seen?.lastSeq === undefined) return [];
      const last = this.#messages(channelKey(channel, uid))[seen.lastSeq - 1];
      return [{ seen, place: last?.place ?? 0 }];
    });
    return found.sort((a, b) => b.place - a.place).map(({ seen }) => seen);
  }

  #messages(key: ChannelKey): ModelMessage[] {
    const known = this.#channels.get(key);
    if (known !== undefined) return known;
    const messages: ModelMessage[] = [];
    this.#channels.set(key, messages);
    return messages;
  }

  #stand(uid: string, key: ChannelKey): UserPosition | undefined {
    const known = this.#stands.get(`${uid} ${key}`);
    if (known !== undefined || key.startsWith("2:")) return known;
    const stand = { read: 0, deleted: 0, changedAtMs: 0 };
    this.#stands.set(`${uid} ${key}`, stand);
    return stand;
  }

  #shown(key: ChannelKey, behind: number): ModelMessage[] {
    const retentionMs = this.#limits.retentionS * 1000;
    const swept = this.#swept.get(key) ?? 0;
    return this.#messages(key).filter(
      ({ seq, atMs, expireS }) =>
        seq > Math.max(behind, swept) &&
        (expireS === 0 || this.nowMs < atMs + expireS * 1000) &&
        (retentionMs === 0 || this.nowMs < atMs + retentionMs),
    );
  }

  #unread(key: ChannelKey, position: number): number {
    return this.#shown(key, position).filter((m) => m.redDot).length;
  }
}
