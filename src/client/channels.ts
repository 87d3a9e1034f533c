// All channels that this client has seen. State: their sequencers, least recently used first. After
// a reconnect it also finds messages of channels that the CONNECT could not name (`missedBy`).

import {
  type ChannelKey,
  type ChannelRef,
  type Conversation,
  channelKey,
  type Message,
} from "../broker/model.ts";
import type { ResumePoint } from "../protocol/protocol.ts";
import type { Cursor } from "./api.ts";
import type { Ask, Connack } from "./connection.ts";
import { isLost, JindouError } from "./errors.ts";
import { type MessageRange, type Position, Sequencer, type SequencerParts } from "./sequencer.ts";

interface ChannelsParts extends SequencerParts {
  readonly uid: string;
  /** The app's positions, least recently used first. */
  readonly cursors: readonly Cursor[];
}

/** Beyond that the least recently used channel is forgotten. */
const MAX_CHANNELS = 10_000;

export class Channels {
  readonly #parts: ChannelsParts;
  readonly #sequencers = new Map<ChannelKey, Sequencer>();
  /** The channels that the server resumes on this connection. */
  #resumed = new Set<ChannelKey>();
  /** Server time. In a channel not seen before, a later message is a missed or a live one. */
  #sinceMs: number | undefined;
  #isCatchingUp = false;
  #epoch = 0;

  constructor(parts: ChannelsParts) {
    this.#parts = parts;
    for (const cursor of parts.cursors)
      this.#sequencers.set(this.#keyOf(cursor.channel), this.#make(cursor.channel, cursor));
  }

  /** Most recently used first. */
  resume(limit: number): readonly ResumePoint[] {
    return [...this.cursors()].reverse().slice(0, limit);
  }

  cursors(): readonly Cursor[] {
    return [...this.#sequencers.values()].flatMap(({ cursor }) => cursor ?? []);
  }

  opened({ serverTimeMs, resume }: Connack): void {
    this.#resumed = new Set(resume.map(({ channel }) => this.#keyOf(channel)));
    for (const { channel, status, headSeq } of resume)
      if (status === "ok") this.#sequencers.get(this.#keyOf(channel))?.resumed(headSeq);
      else this.#denied(channel);
    const isFirst = this.#sinceMs === undefined;
    this.#sinceMs ??= serverTimeMs;
    const isPartial = this.cursors().some(
      ({ channel }) => !this.#resumed.has(this.#keyOf(channel)),
    );
    if (isFirst && !isPartial) return;
    this.#isCatchingUp = true;
    for (const sequencer of this.#sequencers.values()) sequencer.hold();
    void this.#catchUp(isPartial);
  }

  lost(): void {
    this.#epoch += 1;
    this.#isCatchingUp = false;
    for (const sequencer of this.#sequencers.values()) sequencer.lost();
  }

  message(channel: ChannelRef, message: Message): void {
    this.#at(channel).take(message);
  }

  range(range: MessageRange): void {
    this.#at(range.channel).takeRange(range);
  }

  acked(channel: ChannelRef, ack: Position): void {
    if (ack.messageSeq > 0) this.#at(channel).acked(ack);
  }

  /** Finds messages after `#sinceMs` in channels not seen before, and in those not resumed. */
  async #catchUp(isPartial: boolean): Promise<void> {
    const epoch = this.#epoch;
    const found = missedBy({
      ask: this.#parts.ask,
      sinceMs: this.#sinceMs ?? 0,
      all: isPartial,
      hasCursor: (channel) => this.#sequencers.get(this.#keyOf(channel))?.hasCursor,
    });
    try {
      for await (const { channel, afterSeq, headSeq } of found) {
        if (epoch !== this.#epoch) return;
        if (this.#resumed.has(this.#keyOf(channel))) continue;
        const known = this.#sequencers.get(this.#keyOf(channel)); // does not count as a use
        if (afterSeq !== undefined) this.#at(channel).release(afterSeq);
        (known ?? this.#at(channel)).setHead(headSeq);
      }
    } catch (error) {
      if (epoch !== this.#epoch || isLost(error)) return; // the next connection repeats it
      this.#parts.onError(error as JindouError); // `ask` rejects with nothing else
    }
    if (epoch !== this.#epoch) return;
    this.#isCatchingUp = false;
    for (const sequencer of this.#sequencers.values()) sequencer.release(undefined);
  }

  /** The user left the group while offline. */
  #denied(channel: ChannelRef): void {
    this.#sequencers.delete(this.#keyOf(channel));
    const message = `No longer a member of ${channel.id}`;
    this.#parts.onError(new JindouError("not_in_channel", { message }));
  }

  #keyOf(channel: ChannelRef): ChannelKey {
    return channelKey(channel, this.#parts.uid);
  }

  /** The channel's sequencer, which becomes the most recently used one. */
  #at(channel: ChannelRef): Sequencer {
    const key = this.#keyOf(channel);
    const sequencer = this.#sequencers.get(key) ?? this.#make(channel);
    this.#sequencers.delete(key);
    this.#sequencers.set(key, sequencer);
    this.#evictOldest();
    return sequencer;
  }

  #make(channel: ChannelRef, cursor?: Cursor): Sequencer {
    const { id, type } = channel;
    const sequencer = new Sequencer({ id, type }, this.#parts, cursor);
    if (this.#isCatchingUp) sequencer.hold();
    return sequencer;
  }

  /** Moves `#sinceMs`: an evicted channel must not be taken for one not seen before. */
  #evictOldest(): void {
    if (this.#sequencers.size <= MAX_CHANNELS) return;
    const [oldest] = this.#sequencers;
    if (oldest === undefined) return;
    const [key, { lastTimestampMs }] = oldest;
    this.#sequencers.delete(key);
    this.#sinceMs = Math.max(this.#sinceMs ?? 0, lastTimestampMs);
  }
}

interface Missed {
  readonly channel: ChannelRef;
  /** Where to begin in a channel not seen before; undefined: the client has a cursor. */
  readonly afterSeq: number | undefined;
  readonly headSeq: number;
}

interface MissedQuery {
  readonly ask: Ask;
  /** Server time, Unix milliseconds: earlier messages of channels not seen before do not count. */
  readonly sinceMs: number;
  /** All conversations, not only those with later messages. */
  readonly all: boolean;
  hasCursor(channel: ChannelRef): boolean | undefined;
}

const FIRST_PAGE = 50;
const PAGE = 500;
const MAX_CONVERSATIONS = 10_000;
const HISTORY_PAGE = 200;
const MAX_HISTORY_PAGES = 10;

/**
 * Channels with missed messages, from the conversation list, newest first; history gives where to
 * begin in those without a cursor. Rejects with what `ask` rejects with.
 */
async function* missedBy(query: MissedQuery): AsyncIterable<Missed> {
  const { ask, sinceMs, all, hasCursor } = query;
  for (let offset = 0; offset < MAX_CONVERSATIONS; ) {
    const limit = offset === 0 ? FIRST_PAGE : PAGE;
    const page = await ask({ kind: "conversations", limit, offset });
    for (const conversation of page.conversations) {
      const { channel, headSeq, last } = conversation;
      const isNew = last !== undefined && last.timestampMs > sinceMs;
      if (!isNew && !all) return;
      if (hasCursor(channel)) yield { channel, afterSeq: undefined, headSeq };
      else if (isNew) {
        const afterSeq = await startOf(conversation, query);
        yield { channel, afterSeq, headSeq };
      }
    }
    offset += page.conversations.length;
    if (!page.more || page.conversations.length === 0) return;
  }
}

/** The seq before the oldest visible message after `sinceMs`. */
async function startOf(
  { channel, headSeq, deletedSeq }: Conversation,
  { ask, sinceMs }: MissedQuery,
): Promise<number> {
  let afterSeq = headSeq;
  for (let page = 0; page < MAX_HISTORY_PAGES; page++) {
    const { messages, more } = await ask({
      kind: "history",
      channel,
      fromSeq: deletedSeq + 1,
      toSeq: afterSeq,
      limit: HISTORY_PAGE,
      reverse: true,
    });
    const newer = messages.filter((one) => one.timestampMs > sinceMs);
    afterSeq = (newer.at(-1)?.messageSeq ?? afterSeq + 1) - 1;
    if (newer.length < messages.length || !more || afterSeq <= deletedSeq) break;
  }
  return afterSeq;
}
