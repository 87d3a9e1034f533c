// What of one channel the node's listener has been told: how far the messages, and how far each stream. Whatever way something comes, as a frame
// or read from the store, it is told once. State: that position. No I/O.

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
/** One stream of a channel is active at a time; of ended ones those matter whose last events may still come. */
const MAX_STREAMS = 32;

export class DeliveredPosition {
  /** The seq of the newest stored message; undefined: not known, `lastId` says how far. */
  headSeq: number | undefined;
  /** The highest message id, also of messages that are not stored; 0: not known. */
  lastId = 0;
  /** `lastId` before the message told last. */
  #priorId = 0;
  #streams: Map<string, StreamCursor> | undefined;

  /** Streams of which events may be missing. */
  get streams(): readonly string[] {
    return this.#streams === undefined ? [] : [...this.#streams.keys()];
  }

  knows(clientMsgNo: string): boolean {
    return this.#streams?.has(clientMsgNo) ?? false;
  }

  /** Whether the event is to be told; it counts as told then. */
  takes(event: OrderedEvent): boolean {
    if (event.kind === "removal") return true;
    return event.kind === "message"
      ? this.#takesMessage(event.message)
      : this.#takesEvent(event.event, event.event.stream);
  }

  /** Messages through this id were told or are none of its business. */
  knowsThrough(messageId: number): void {
    this.lastId = Math.max(this.lastId, messageId);
    this.#priorId = this.lastId;
  }

  /** The store gave out no id beyond `lastId` so far: what was told last and is beyond it was never sent, or lost. */
  disown(lastId: number): void {
    if (this.lastId <= lastId) return;
    this.lastId = Math.min(this.#priorId, lastId);
    this.#priorId = this.lastId;
    this.headSeq = undefined; // it may be that message's
  }

  /** The stream is level with `snapshot`, whoever told it. */
  levelWith({ clientMsgNo, nextIndex, text }: StreamSnapshot): void {
    this.#put(clientMsgNo, { index: nextIndex, textOffset: text.length });
  }

  /** What is to be told of a stream so that it is level with `snapshot`; it counts as told then. */
  missed(snapshot: StreamSnapshot): readonly ChannelEvent[] {
    const cursor = this.#streams?.get(snapshot.clientMsgNo) ?? BEGINNING;
    this.levelWith(snapshot); // also back, where a fail-over lost events
    return eventsFrom(snapshot, cursor);
  }

  #takesMessage({
    messageId,
    messageSeq,
    clientMsgNo,
    stream,
  }: Message): boolean {
    if (messageSeq > 0) {
      if (messageId <= this.lastId) return false;
      this.headSeq = messageSeq;
    }
    if (messageId > this.lastId) {
      this.#priorId = this.lastId;
      this.lastId = messageId;
    }
    if (stream !== undefined) this.#put(clientMsgNo, BEGINNING);
    return true;
  }

  #takesEvent(event: ChannelEvent, place: StreamPlace | undefined): boolean {
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
