// Delivered position of one channel: its last message and the cursor of each stream. Received
// frames and store reads are both compared with it, so that each event is delivered once.

import { MAX_OPEN_STREAMS } from "../../../broker/log-ports.ts";
import type { ChannelEvent, Message, StreamPlace, StreamSnapshot } from "../../../broker/model.ts";
import {
  cursorAfter,
  cursorAtEnd,
  eventsFrom,
  type StreamCursor,
} from "../../../broker/stream-pieces.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import type { ChannelPosition, DeliveredMark, StreamTail } from "../../../redis/channel-feed.ts";
import type { OrderedEvent } from "../../../redis/wire.ts";

const STREAM_START: StreamCursor = { index: 0, textOffset: 0 };
/**
 * Maximum number of cursors of active streams, and of ended streams: about twice the number of
 * active streams that the store allows. The cursor of an ended stream is also kept until the end
 * event arrives, because without a cursor, a missed end would not be delivered.
 */
const MAX_STREAMS = 2 * (MAX_OPEN_STREAMS + 1);
/**
 * Maximum number of messages that are compared with the store to find where the histories diverge.
 */
const MAX_MARKS = 16;

export class DeliveredPosition {
  /** Seq of the newest delivered message, or `undefined` if it is unknown. */
  headSeq: number | undefined;
  /** Highest id of a delivered message, stored or not. 0 if no delivered message is known. */
  lastId = 0;
  /**
   * Newest delivered messages, sorted by id. Only the last of several adjacent unstored messages is
   * kept.
   */
  readonly #marks: DeliveredMark[] = [];
  /**
   * Id up to which messages are delivered or not needed. 0 if this id is unknown. Lower than the
   * ids of all marks.
   */
  #floorId = 0;
  /** Seq before the first delivered message. Messages up to this seq are not needed. */
  #floorSeq = 0;
  #active: BoundedMap<string, StreamCursor> | undefined;
  /** Cursors of ended streams that were read from the store. */
  #ended: BoundedMap<string, StreamCursor> | undefined;

  get marks(): readonly DeliveredMark[] {
    return this.#marks;
  }

  /**
   * Returns the seq up to which messages are not needed. Returns 0 if a delivered message is known,
   * or if the store's newest seq is lower than that seq.
   */
  floorSeqIn({ headSeq }: ChannelPosition): number {
    return this.lastId === 0 && this.#floorSeq <= headSeq ? this.#floorSeq : 0;
  }

  /** `clientMsgNo` of each active stream that has a cursor. */
  get streams(): readonly string[] {
    return [...(this.#active ?? [])].map(([clientMsgNo]) => clientMsgNo);
  }

  hasStream(clientMsgNo: string): boolean {
    return this.#cursorOf(clientMsgNo) !== undefined;
  }

  /** Records an event as delivered. Returns false if it was delivered before. */
  markDelivered(event: OrderedEvent): boolean {
    if (event.kind === "removal") return true;
    return event.kind === "message"
      ? this.#markMessage(event.message)
      : this.#markEvent(event.event, event.event.stream);
  }

  advanceTo({ headSeq, newestId, lastId }: ChannelPosition): void {
    const lowestId = this.#marks[0]?.messageId ?? Number.POSITIVE_INFINITY;
    if (newestId < lowestId) this.#floorId = Math.max(this.#floorId, newestId);
    if (lastId <= this.lastId) return;
    this.lastId = lastId;
    this.#addMark({ seq: headSeq, isStored: false, messageId: lastId });
  }

  /**
   * Returns true if a different message was delivered with this seq. A fail-over has lost that
   * message.
   */
  hasOtherAt(seq: number, messageId: number): boolean {
    const mark = this.#marks.find((candidate) => candidate.isStored && candidate.seq === seq);
    return mark !== undefined && mark.messageId !== messageId;
  }

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

  resetTo(snapshot: StreamSnapshot): void {
    const { clientMsgNo, state } = snapshot;
    const cursor = cursorAtEnd(snapshot);
    if (state === "active") return this.#setActive(clientMsgNo, cursor);
    this.#active?.delete(clientMsgNo);
    this.#ended ??= new BoundedMap(MAX_STREAMS);
    this.#ended.set(clientMsgNo, cursor);
  }

  /** Sets the cursor of an active stream to the end of its current events. */
  startAt({ clientMsgNo, index, textOffset }: StreamTail): void {
    this.#setActive(clientMsgNo, { index, textOffset });
  }

  advanceStream(snapshot: StreamSnapshot): readonly ChannelEvent[] {
    const cursor = this.#cursorOf(snapshot.clientMsgNo) ?? STREAM_START;
    this.resetTo(snapshot); // the cursor may move back if a fail-over lost events
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
      if (this.headSeq !== undefined) this.#addMark({ seq: this.headSeq, isStored, messageId });
    }
    if (stream !== undefined) this.#setActive(clientMsgNo, STREAM_START);
    return true;
  }

  #addMark(mark: DeliveredMark): void {
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
    const cursor = this.#cursorOf(clientMsgNo);
    // If a stream is too long for viewers, its end event has the index after the last event shown
    // to viewers.
    if (cursor !== undefined && place.nextIndex <= cursor.index) return false;
    if (place.state === "active") this.#setActive(clientMsgNo, cursorAfter(event, place));
    else this.#forgetStream(clientMsgNo);
    return true;
  }

  #cursorOf(clientMsgNo: string): StreamCursor | undefined {
    return this.#active?.get(clientMsgNo) ?? this.#ended?.get(clientMsgNo);
  }

  #setActive(clientMsgNo: string, cursor: StreamCursor): void {
    this.#ended?.delete(clientMsgNo);
    this.#active ??= new BoundedMap(MAX_STREAMS);
    this.#active.set(clientMsgNo, cursor);
  }

  #forgetStream(clientMsgNo: string): void {
    this.#active?.delete(clientMsgNo);
    this.#ended?.delete(clientMsgNo);
  }
}
