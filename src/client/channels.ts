// Delivers the messages of all channels that the client has seen. Owns one sequencer per channel,
// sorted from least to most recently used. Also looks for missed messages in channels that were not
// in CONNECT. This search runs after each reconnect, and after the first connect if CONNECT could
// not contain all cursors.

import {
  type ChannelKey,
  type ChannelRef,
  type Conversation,
  channelKey,
  type Message,
} from "../broker/model.ts";
import { LinkedMap } from "../lib/linked-map.ts";
import type { ResumePoint } from "../protocol/protocol.ts";
import type { Cursor } from "./api.ts";
import type { Connack, RequestFunction } from "./connection.ts";
import { isConnectionLost, JindouError } from "./errors.ts";
import { type MessageRange, type Position, Sequencer, type SequencerPorts } from "./sequencer.ts";

interface ChannelsPorts extends SequencerPorts {
  readonly uid: string;
  readonly cursors: readonly Cursor[];
}

const MAX_CHANNELS = 10_000;

export class Channels {
  readonly #ports: ChannelsPorts;
  readonly #sequencers = new LinkedMap<ChannelKey, Sequencer>();
  #resumed = new Set<ChannelKey>();
  /**
   * Newest message id at the first connect. Raised when a channel is evicted. In a channel without
   * a cursor, a message with a higher id was missed if it did not arrive live. Ids are compared
   * instead of times, because the server's clock may be set back.
   */
  #sinceId: number | undefined;
  /** True while the client looks for missed messages. Meanwhile, new sequencers buffer messages. */
  #isCatchingUp = false;
  #epoch = 0;

  constructor(ports: ChannelsPorts) {
    this.#ports = ports;
    for (const cursor of ports.cursors)
      this.#sequencers.set(this.#keyOf(cursor.channel), this.#create(cursor.channel, cursor));
  }

  resume(limit: number): readonly ResumePoint[] {
    // A sequencer that has only SENDACKs is left out, because resuming after this client's own
    // messages would skip earlier messages.
    return this.cursors()
      .filter(({ channel }) => this.#sequencers.get(this.#keyOf(channel))?.hasCursor)
      .reverse()
      .slice(0, limit)
      .map(({ lastId = 0, ...cursor }) => ({ ...cursor, lastId }));
  }

  cursors(): readonly Cursor[] {
    return [...this.#sequencers].flatMap(([, { cursor }]) => cursor ?? []);
  }

  opened({ newestId, resume }: Connack): void {
    this.#resumed = new Set(resume.map(({ channel }) => this.#keyOf(channel)));
    for (const { channel, status, headSeq } of resume)
      if (status === "ok") this.#sequencers.get(this.#keyOf(channel))?.resumed(headSeq);
      else this.#forget(channel);
    const isFirst = this.#sinceId === undefined;
    this.#sinceId ??= newestId;
    const isPartial = this.cursors().some(
      ({ channel }) => !this.#resumed.has(this.#keyOf(channel)),
    );
    if (isFirst && !isPartial) return;
    this.#isCatchingUp = true;
    for (const [, sequencer] of this.#sequencers) sequencer.hold();
    void this.#catchUp(isPartial);
  }

  lost(): void {
    this.#epoch += 1;
    this.#isCatchingUp = false;
    for (const [, sequencer] of this.#sequencers) sequencer.lost();
  }

  close(): void {
    this.lost();
    for (const [, sequencer] of this.#sequencers) sequencer.close();
  }

  message(channel: ChannelRef, message: Message): void {
    this.#use(channel).receive(message);
  }

  range(range: MessageRange): void {
    this.#use(range.channel).receiveRange(range);
  }

  acked(channel: ChannelRef, ack: Position): void {
    if (ack.messageSeq > 0) this.#use(channel).acked(ack);
  }

  async #catchUp(isPartial: boolean): Promise<void> {
    const epoch = this.#epoch;
    const missedChannels = findMissedChannels({
      ask: this.#ports.ask,
      sinceId: this.#sinceId ?? 0,
      all: isPartial,
      hasCursor: (channel) => this.#sequencers.get(this.#keyOf(channel))?.hasCursor,
    });
    try {
      for await (const { channel, afterSeq, headSeq } of missedChannels) {
        if (epoch !== this.#epoch) return;
        if (this.#resumed.has(this.#keyOf(channel))) continue;
        // not `#use`, which would mark the channel as recently used
        const sequencer = this.#sequencers.get(this.#keyOf(channel));
        if (afterSeq !== undefined) this.#use(channel).release(afterSeq);
        (sequencer ?? this.#use(channel)).setHead(headSeq);
      }
    } catch (error) {
      // the next connection starts the catch-up again
      if (epoch !== this.#epoch || isConnectionLost(error)) return;
      this.#ports.onError(error as JindouError); // `ask` rejects only with JindouError
    }
    if (epoch !== this.#epoch) return;
    this.#isCatchingUp = false;
    for (const [, sequencer] of this.#sequencers) sequencer.release(undefined);
  }

  #forget(channel: ChannelRef): void {
    this.#sequencers.delete(this.#keyOf(channel));
    const message = `The user is not in ${channel.id}`;
    this.#ports.onError(new JindouError("not_in_channel", { message }));
  }

  #keyOf(channel: ChannelRef): ChannelKey {
    return channelKey(channel, this.#ports.uid);
  }

  #use(channel: ChannelRef): Sequencer {
    const key = this.#keyOf(channel);
    const sequencer = this.#sequencers.get(key) ?? this.#create(channel);
    this.#sequencers.renew(key, sequencer);
    this.#evictOldest();
    return sequencer;
  }

  #create(channel: ChannelRef, cursor?: Cursor): Sequencer {
    const { id, type } = channel;
    const sequencer = new Sequencer({ id, type }, this.#ports, cursor);
    if (this.#isCatchingUp) sequencer.hold();
    return sequencer;
  }

  /**
   * Removes the least recently used channel if there are more than `MAX_CHANNELS`. Raises
   * `#sinceId`, so that messages that the channel has delivered are not delivered again as missed
   * messages.
   */
  #evictOldest(): void {
    if (this.#sequencers.size <= MAX_CHANNELS) return;
    const { oldest } = this.#sequencers;
    if (oldest === undefined) return;
    const { key, value } = oldest;
    this.#sequencers.delete(key);
    this.#sinceId = Math.max(this.#sinceId ?? 0, value.cursor?.lastId ?? 0);
  }
}

interface MissedChannel {
  readonly channel: ChannelRef;
  /** Seq after which delivery starts, or `undefined` if the client has a cursor for the channel. */
  readonly afterSeq: number | undefined;
  readonly headSeq: number;
}

interface MissedQuery {
  readonly ask: RequestFunction;
  readonly sinceId: number;
  readonly all: boolean;
  hasCursor(channel: ChannelRef): boolean | undefined;
}

const FIRST_PAGE_SIZE = 50;
const PAGE_SIZE = 500;
const HISTORY_PAGE_SIZE = 200;
const MAX_HISTORY_PAGES = 10;

async function* findMissedChannels(query: MissedQuery): AsyncIterable<MissedChannel> {
  const { ask, sinceId, all, hasCursor } = query;
  let cursor: string | undefined;
  let limit = FIRST_PAGE_SIZE;
  do {
    const page = await ask({ kind: "conversations", limit, cursor });
    for (const conversation of page.conversations) {
      const { channel, headSeq, last } = conversation;
      const isNew = last !== undefined && last.messageId > sinceId;
      if (!isNew && !all) return;
      if (hasCursor(channel)) yield { channel, afterSeq: undefined, headSeq };
      else if (isNew) {
        const afterSeq = await startSeqOf(conversation, query);
        yield { channel, afterSeq, headSeq };
      }
    }
    cursor = page.cursor;
    limit = PAGE_SIZE;
  } while (cursor);
}

async function startSeqOf(
  { channel, headSeq, deletedSeq }: Conversation,
  { ask, sinceId }: MissedQuery,
): Promise<number> {
  let afterSeq = headSeq;
  for (let page = 0; page < MAX_HISTORY_PAGES; page++) {
    const { messages, more } = await ask({
      kind: "history",
      channel,
      fromSeq: deletedSeq + 1,
      toSeq: afterSeq,
      limit: HISTORY_PAGE_SIZE,
      reverse: true,
    });
    const newer = messages.filter((message) => message.messageId > sinceId);
    afterSeq = (newer.at(-1)?.messageSeq ?? afterSeq + 1) - 1;
    if (newer.length < messages.length || !more || afterSeq <= deletedSeq) break;
  }
  return afterSeq;
}
