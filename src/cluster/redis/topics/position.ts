// Delivered position of one channel: the last message and the cursor of each stream. Frames and store
// reads both pass through it, so that each event is delivered once. State: the position. No I/O.

import type {
  ChannelEvent,
  Message,
  StreamPlace,
  StreamSnapshot,
} from "../../../broker/model.ts";
import {
  cursorAfter,
  eventsFrom,
  type StreamCursor,
} from "../../../broker/stream-pieces.ts";
import type { OrderedEvent } from "../../../redis/wire.ts";

const BEGINNING: StreamCursor = { index: 0, textOffset: 0 };
/** One stream of a channel is active at a time; last events of ended streams may still arrive. */
const MAX_STREAMS = 32;

export class DeliveredPosition {
  /** Seq of the newest delivered message; undefined: unknown, only `lastId` counts. */
  headSeq: number | undefined;
  /** Highest delivered message id, unstored messages included; 0: unknown. */
  lastId = 0;
  /** `lastId` before the last message. */
  #priorId = 0;
  /** The last delivered stored message. */
  #last: Pick<Message, "messageSeq" | "messageId"> | undefined;
  #streams: Map<string, StreamCursor> | undefined;

  /** Streams that may miss events. */
  get streams(): readonly string[] {
    return this.#streams === undefined ? [] : [...this.#streams.keys()];
  }

  knows(clientMsgNo: string): boolean {
    return this.#streams?.has(clientMsgNo) ?? false;
  }

  /** Marks the event as delivered; false if it was before. */
  markDelivered(event: OrderedEvent): boolean {
    if (event.kind === "removal") return true;
    return event.kind === "message"
      ? this.#markMessage(event.message)
      : this.#markEvent(event.event, event.event.stream);
  }

  /** Messages through this id are delivered or not needed. */
  advanceTo(messageId: number): void {
    this.lastId = Math.max(this.lastId, messageId);
    this.#priorId = this.lastId;
  }

  /** The store has given out no id above `lastId`: a higher last message was never stored, or lost. */
  forgetIdsAfter(lastId: number): void {
    if (this.lastId <= lastId) return;
    this.lastId = Math.min(this.#priorId, lastId);
    this.#priorId = this.lastId;
    this.headSeq = undefined; // it may belong to that message
  }

  /**
   * Whether the delivered message with that seq is the store's. If not, it was lost, or forged: then messages after the one before it count as
   * not delivered.
   */
  confirms({ messageSeq, messageId }: Message): boolean {
    const last = this.#last;
    if (last?.messageSeq !== messageSeq) return messageId <= this.lastId;
    if (last.messageId === messageId) return true;
    this.lastId = Math.min(this.#priorId, messageId - 1);
    this.#priorId = this.lastId;
    this.#last = undefined;
    return false;
  }

  /** Sets the stream's cursor to the end of `snapshot`. */
  resetTo({ clientMsgNo, nextIndex, text }: StreamSnapshot): void {
    this.#put(clientMsgNo, { index: nextIndex, textOffset: text.length });
  }

  /** Events between the stream's cursor and the end of `snapshot`; marks them as delivered. */
  missed(snapshot: StreamSnapshot): readonly ChannelEvent[] {
    const cursor = this.#streams?.get(snapshot.clientMsgNo) ?? BEGINNING;
    this.resetTo(snapshot); // also backwards, if a fail-over lost events
    return eventsFrom(snapshot, cursor);
  }

  #markMessage({
    messageId,
    messageSeq,
    clientMsgNo,
    stream,
  }: Message): boolean {
    if (messageSeq > 0) {
      if (messageId <= this.lastId) return false;
      this.headSeq = messageSeq;
      this.#last = { messageSeq, messageId };
    }
    if (messageId > this.lastId) {
      this.#priorId = this.lastId;
      this.lastId = messageId;
    }
    if (stream !== undefined) this.#put(clientMsgNo, BEGINNING);
    return true;
  }

  #markEvent(event: ChannelEvent, place: StreamPlace | undefined): boolean {
    if (place === undefined) return true;
    const { clientMsgNo } = event;
    const cursor = this.#streams?.get(clientMsgNo);
    if (cursor !== undefined && place.index < cursor.index) return false;
    if (place.state === "active")
      this.#put(clientMsgNo, cursorAfter(event, place));
    else this.#streams?.delete(clientMsgNo);
    return true;
  }

  #put(clientMsgNo: string, cursor: StreamCursor): void {
    this.#streams ??= new Map();
    this.#streams.set(clientMsgNo, cursor);
    if (this.#streams.size <= MAX_STREAMS) return;
    const oldest = this.#streams.keys().next();
    if (!oldest.done) this.#streams.delete(oldest.value);
  }
}
