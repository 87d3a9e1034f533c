// A channel's log in memory, for the tests of sequencers. It stores messages as Redis would and
// returns the frames that Redis would publish, so that a test can deliver, drop or reorder them.

import {
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  type Message,
  messageTimeMs,
  PERSON_CHANNEL,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../../../src/broker/model.ts";
import type { HistoryRange } from "../../../src/broker/ports.ts";
import type {
  ChannelFeed,
  ChannelPosition,
  DeliveredMark,
  ReaderState,
} from "../../../src/redis/channel-feed.ts";
import {
  encodeExtra,
  encodeRecord,
  framesOf,
  messagePublication,
} from "../../../src/redis/wire.ts";
import { eventFrame, removalFrame } from "../../redis/event-frames.ts";

type Snapshot = { -readonly [K in keyof StreamSnapshot]: StreamSnapshot[K] };

const GROUP = { id: "g", type: GROUP_CHANNEL } as const;
const PERSON = { id: "b", type: PERSON_CHANNEL } as const;

/** Time in the log's first message ids, and time of the nodes' clocks, in Unix milliseconds. */
export const TIME_MS = messageTimeMs(1);

/** Number of message ids per millisecond. */
const IDS_PER_MS = 4096;

export class ChannelLog implements ChannelFeed {
  readonly key: ChannelKey;
  readonly #channel: typeof GROUP | typeof PERSON;
  readonly #clock: () => number;
  readonly storedMessages: Message[] = [];
  readonly streams: Snapshot[] = [];
  /** Number of streams that fit into the reply with the position. */
  maxSnapshots = Infinity;
  publicationSeq = 0;
  headSeq = 0;
  nextId = 1000;
  /** Called before each read returns. */
  onRead: () => void | Promise<void> = () => {};
  reads = 0;
  /** True if the channel is in its users' lists of channels with new messages. */
  isListed = true;

  constructor(kind: "group" | "personal", clock: () => number = () => TIME_MS) {
    this.#channel = kind === "group" ? GROUP : PERSON;
    this.key = channelKey(this.#channel, "a");
    this.#clock = clock;
  }

  /** Stores a message from `a` and returns its frame. */
  message({ stored = true, origin = "s" } = {}): Buffer {
    return this.#append(undefined, stored, origin);
  }

  start(clientMsgNo: string): Buffer {
    return this.#append(clientMsgNo, true, undefined);
  }

  content(clientMsgNo: string, data: string): Buffer {
    return this.#event(clientMsgNo, STREAM_CONTENT, data);
  }

  begin(clientMsgNo: string): Buffer {
    return this.#event(clientMsgNo, STREAM_START, "{}");
  }

  end(clientMsgNo: string): Buffer {
    return this.#event(clientMsgNo, STREAM_END, "");
  }

  /** Returns the frame of a removal. Without `uids`, any member may have been removed. */
  removal(uids?: readonly string[]): Buffer {
    this.publicationSeq += 1;
    return removalFrame(this.publicationSeq, this.#channel.id, uids);
  }

  /** Removes the last messages, like a fail-over to a replica without them. */
  loseLast(publications: number): void {
    this.publicationSeq -= publications;
    this.headSeq -= publications;
    this.storedMessages.splice(-publications);
  }

  async position(
    _key: ChannelKey,
    { streams: names, marks }: ReaderState,
  ): Promise<ChannelPosition> {
    await this.#read();
    const streams = this.streams
      .filter((stream) => stream.state === "active" || names.includes(stream.clientMsgNo))
      .map((stream) => ({ ...stream }));
    const { publicationSeq, headSeq, nextId: lastId } = this;
    const newestId = this.storedMessages.at(-1)?.messageId ?? 0;
    const lost = marks.filter(
      (mark) => mark.isStored && !this.storedMessages.some((message) => matchesMark(message, mark)),
    );
    const lostFromId = lost[0]?.messageId ?? Number.POSITIVE_INFINITY;
    return {
      ...{ publicationSeq, headSeq, lastId, newestId, lostFromId },
      streams: streams.slice(0, this.maxSnapshots),
      otherStreams: streams
        .slice(this.maxSnapshots)
        .map(({ clientMsgNo, nextIndex: index, text }) => ({
          ...{ clientMsgNo, index, textOffset: text.length },
        })),
    };
  }

  async stream(_key: ChannelKey, clientMsgNo: string): Promise<StreamSnapshot | undefined> {
    await this.#read();
    const stream = this.streams.find((candidate) => candidate.clientMsgNo === clientMsgNo);
    return stream && { ...stream };
  }

  async positions(): Promise<ReadonlyMap<ChannelKey, ChannelPosition>> {
    return new Map([[this.key, await this.position(this.key, { streams: [], marks: [] })]]);
  }

  async publicationSeqOf(): Promise<number> {
    await this.#read();
    return this.publicationSeq;
  }

  async messages(_key: ChannelKey, range: HistoryRange) {
    await this.#read();
    const { fromSeq, toSeq, limit, reverse } = range;
    const messages = this.storedMessages
      .filter(({ messageSeq: seq }) => seq >= fromSeq && seq <= toSeq)
      .map((message) => this.#withStream(message));
    if (reverse) messages.reverse();
    return { messages: messages.slice(0, limit), more: messages.length > limit };
  }

  async personalChannelsSince(): Promise<readonly ChannelKey[]> {
    return this.isListed ? [this.key] : [];
  }

  async #read(): Promise<void> {
    this.reads += 1;
    await this.onRead();
  }

  #withStream(message: Message): Message {
    const stream = this.streams.find(({ messageId }) => messageId === message.messageId);
    return stream === undefined ? message : { ...message, stream: { ...stream } };
  }

  #append(stream: string | undefined, stored: boolean, origin: string | undefined): Buffer {
    this.publicationSeq += 1;
    this.nextId = Math.max(this.nextId + 1, (this.#clock() - TIME_MS) * IDS_PER_MS);
    if (stored) this.headSeq += 1;
    const messageId = this.nextId;
    const messageSeq = stored ? this.headSeq : 0;
    const clientMsgNo = stream ?? `n${messageId}`;
    const base = { key: this.key, channel: this.#channel, fromUid: "a" };
    const message: Message = {
      ...{ ...base, messageId, messageSeq, clientMsgNo },
      ...{ timestampMs: this.#clock(), expireS: 0, payload: Buffer.from("{}") },
      header: { noPersist: !stored, redDot: true },
      ...{ streamNo: undefined, tagKey: undefined, stream: undefined },
    };
    if (stored) this.storedMessages.push(message);
    if (stream !== undefined)
      this.streams.push({
        ...{ ...base, clientMsgNo, messageId, messageSeq, state: "active" },
        ...{ text: "", nextIndex: 0, startData: "{}", endData: undefined },
        notes: [],
      });
    const publication = messagePublication({
      ...{ publicationSeq: this.publicationSeq, messageId, messageSeq },
      record: encodeRecord(message, message.timestampMs),
      extra: encodeExtra({
        ...{ origin, recipients: undefined },
        isStream: stream !== undefined,
      }),
    });
    return framesOf(publication).frames[0] ?? publication;
  }

  #event(clientMsgNo: string, type: string, data: string): Buffer {
    const stream = this.streams.find((candidate) => candidate.clientMsgNo === clientMsgNo);
    if (stream === undefined) throw new Error(`the stream ${clientMsgNo} was not started`);
    this.publicationSeq += 1;
    const { messageSeq, nextIndex: index, text } = stream;
    stream.nextIndex += 1;
    if (type === STREAM_CONTENT) stream.text += data;
    if (type === STREAM_END) stream.state = "closed";
    const { key: _, ...base } = stream;
    return eventFrame({
      ...{
        publicationSeq: this.publicationSeq,
        messageSeq,
        index,
        textOffset: text.length,
      },
      state: stream.state,
      source: { channel: base.channel, fromUid: "a", clientMsgNo },
      event: { type, data, eventId: `${index}` },
    });
  }
}

function matchesMark({ messageSeq, messageId }: Message, mark: DeliveredMark): boolean {
  return messageSeq === mark.seq && messageId === mark.messageId;
}
