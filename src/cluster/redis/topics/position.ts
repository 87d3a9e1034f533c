// Delivered position of one channel: the last message and the cursor of each stream. Frames and
// store reads both pass through it, so that each event is delivered once. State: the position. No
// I/O.

import type { ChannelEvent, Message, StreamPlace, StreamSnapshot } from "../../../broker/model.ts";
import {
  cursorAfter,
  cursorAtEnd,
  eventsFrom,
  type StreamCursor,
} from "../../../broker/stream-pieces.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import type { ChannelPosition, DeliveredMark } from "../../../redis/channel-feed.ts";
import type { OrderedEvent } from "../../../redis/wire.ts";

const BEGINNING: StreamCursor = { index: 0, textOffset: 0 };
/** One stream of a channel is active at a time; last events of ended streams may still arrive. */
const MAX_STREAMS = 32;
/**
 * As many of the newest messages are compared with the store's, to find where its history departs
 * from what was delivered.
 */
const MAX_MARKS = 16;

export class DeliveredPosition {
  /** Seq of the newest delivered message; undefined: unknown, only `lastId` counts. */
  headSeq: number | undefined;
  /** Highest delivered message id, unstored messages included; 0: unknown. */
  lastId = 0;
  /** The newest delivered messages. Of unstored ones in a row only the last one. */
  readonly #marks: DeliveredMark[] = [];
  /**
   * Messages through this id, which is below those of the marks, are delivered or not needed; 0:
   * unknown.
   */
  #floorId = 0;
  /** The same of the channel's seqs, before its first delivered message. */
  #floorSeq = 0;
  #streams: BoundedMap<string, StreamCursor> | undefined;

  /** The newest delivered messages, as far as the store can tell whether it has them. */
  get marks(): readonly DeliveredMark[] {
    return this.#marks;
  }

  /**
   * Messages through this seq are delivered or not needed, whatever their ids: known where the log
   * has none of the delivered messages any more. 0: unknown.
   */
  floorSeqIn({ headSeq }: ChannelPosition): number {
    return this.lastId === 0 && this.#floorSeq <= headSeq ? this.#floorSeq : 0;
  }

  /** Streams that may miss events. */
  get streams(): readonly string[] {
    return [...(this.#streams ?? [])].map(([clientMsgNo]) => clientMsgNo);
  }

  knows(clientMsgNo: string): boolean {
    return this.#streams?.get(clientMsgNo) !== undefined;
  }

  /** Marks the event as delivered; false if it was before. */
  markDelivered(event: OrderedEvent): boolean {
    if (event.kind === "removal") return true;
    return event.kind === "message"
      ? this.#markMessage(event.message)
      : this.#markEvent(event.event, event.event.stream);
  }

  /** Messages through the position are delivered or not needed. */
  advanceTo({ headSeq, newestId, lastId }: ChannelPosition): void {
    const lowestId = this.#marks[0]?.messageId ?? Number.POSITIVE_INFINITY;
    if (newestId < lowestId) this.#floorId = Math.max(this.#floorId, newestId);
    if (lastId <= this.lastId) return;
    this.lastId = lastId;
    this.#mark({ seq: headSeq, isStored: false, messageId: lastId });
  }

  /**
   * Whether a message of this seq was delivered that has another id: a fail-over lost it, and the
   * seq is given out again.
   */
  hasOther(seq: number, messageId: number): boolean {
    const mark = this.#marks.find((one) => one.isStored && one.seq === seq);
    return mark !== undefined && mark.messageId !== messageId;
  }

  /**
   * Messages that the store's history has not were lost, or forged: others may have their numbers,
   * with any ids.
   */
  forgetLost({ lostFromId, lastId }: ChannelPosition): void {
    let last = this.#marks.at(-1);
    while (last !== undefined && last.messageId >= lostFromId) {
      this.#marks.pop();
      if (last.isStored) this.headSeq = undefined;
      last = this.#marks.at(-1);
      this.lastId = last?.messageId ?? this.#floorId;
    }
    if (this.lastId <= lastId) return;
    this.lastId = lastId;
    this.#floorId = Math.min(this.#floorId, lastId);
    this.headSeq = undefined;
  }

  /** Sets the stream's cursor to the end of `snapshot`. */
  resetTo(snapshot: StreamSnapshot): void {
    this.#put(snapshot.clientMsgNo, cursorAtEnd(snapshot));
  }

  /** Events between the stream's cursor and the end of `snapshot`; marks them as delivered. */
  missed(snapshot: StreamSnapshot): readonly ChannelEvent[] {
    const cursor = this.#streams?.get(snapshot.clientMsgNo) ?? BEGINNING;
    this.resetTo(snapshot); // also backwards, if a fail-over lost events
    return eventsFrom(snapshot, cursor);
  }

  #markMessage({ messageId, messageSeq, clientMsgNo, stream }: Message): boolean {
    const isStored = messageSeq > 0;
    if (isStored) {
      if (messageId <= this.lastId) return false;
      this.headSeq = messageSeq;
    }
    if (messageId > this.lastId) {
      this.lastId = messageId;
      if (this.headSeq !== undefined) this.#mark({ seq: this.headSeq, isStored, messageId });
    }
    if (stream !== undefined) this.#put(clientMsgNo, BEGINNING);
    return true;
  }

  #mark(mark: DeliveredMark): void {
    const marks = this.#marks;
    if (!mark.isStored && marks.at(-1)?.isStored === false) marks.pop();
    if (marks.length === 0 && this.#floorId === 0)
      this.#floorSeq = mark.isStored ? mark.seq - 1 : mark.seq;
    marks.push(mark);
    if (marks.length <= MAX_MARKS) return;
    this.#floorId = marks.shift()?.messageId ?? 0;
  }

  #markEvent(event: ChannelEvent, place: StreamPlace | undefined): boolean {
    if (place === undefined) return true;
    const { clientMsgNo } = event;
    const cursor = this.#streams?.get(clientMsgNo);
    if (cursor !== undefined && place.index < cursor.index) return false;
    if (place.state === "active") this.#put(clientMsgNo, cursorAfter(event, place));
    else this.#streams?.delete(clientMsgNo);
    return true;
  }

  #put(clientMsgNo: string, cursor: StreamCursor): void {
    this.#streams ??= new BoundedMap(MAX_STREAMS);
    this.#streams.set(clientMsgNo, cursor);
  }
}
