// One stream in memory: active, or ended and not yet wholly in the database. Owns its text, where
// each event stands in it, its notes and the event ids its producer chose. Takes events as they are
// assigned, shows them as they are committed, takes the newest back when a write failed. Must never
// show an event that is not committed.

import {
  type ChannelEvent,
  type Message,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamSnapshot,
  streamPayload,
} from "../../../broker/model.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import type { MemtableChannel } from "../engine/memtable.ts";
import {
  type EncodedEvent,
  type Ending,
  madeEventId,
  type StreamEvent,
  stateAfter,
} from "./stream-record.ts";

/** Memory an event and a stream take besides their strings, about. */
const EVENT_BYTES = 160;
const STREAM_BYTES = 2048;

/** What names a stream and its message. */
export type StreamHead = Pick<
  Message,
  "key" | "channel" | "fromUid" | "clientMsgNo" | "messageId" | "messageSeq"
>;

/** Memory an event takes, about. */
export function eventBytes(event: Pick<StreamEvent, "data" | "eventId">): number {
  return EVENT_BYTES + 2 * (event.data.length + (event.eventId?.length ?? 0));
}

/** A stream's message whole, from what its record has. */
export function withStream(message: Message, stream: StreamSnapshot | undefined): Message {
  return { ...message, payload: streamPayload(stream?.text ?? ""), stream };
}

export class LiveStream {
  readonly channel: MemtableChannel;
  readonly head: StreamHead;
  /** When the last event was assigned. */
  lastMs: number;
  /** Bodies of committed events that the database does not have: of `stored` and on. */
  readonly pending: EncodedEvent[] = [];
  /** The database has every event before it. */
  stored = 0;
  /** The running checkpoint writes every event before it. */
  flushing = 0;
  /**
   * First indexes of its parts in the database, also of such that a failed checkpoint may have
   * written.
   */
  readonly parts = new Set<number>();
  #text = "";
  /** Of every event, the units of text before it. */
  readonly #offsets: number[] = [];
  readonly #notes: StreamNote[] = [];
  readonly #ids = new Set<string>();
  #startData = "";
  #end: StreamEvent | undefined;
  #snapshotBytes = 0;
  #memory = STREAM_BYTES;
  /** Events shown; -1: not even the message is. */
  #shown = -1;
  /** What reads get, until an event is shown. */
  #snapshot: StreamSnapshot | undefined;

  constructor(channel: MemtableChannel, head: StreamHead, nowMs: number) {
    this.channel = channel;
    this.head = head;
    this.lastMs = nowMs;
  }

  /** The index of the next event. */
  get assigned(): number {
    return this.#offsets.length;
  }

  /** The index behind the newest event that reads show; -1: they show nothing of it. */
  get shown(): number {
    return this.#shown;
  }

  /** How it ended, committed or not; undefined: active. */
  get ending(): Ending | undefined {
    return this.#end?.ending;
  }

  /** Reads show it as active. */
  get isShownActive(): boolean {
    return this.#shown >= 0 && !this.isEndedBefore(this.#shown);
  }

  /** Its end is among the events before `index`. */
  isEndedBefore(index: number): boolean {
    return this.#end !== undefined && this.#end.index < index;
  }

  /** What all its events count against its bound. */
  get snapshotBytes(): number {
    return this.#snapshotBytes;
  }

  /** Memory it takes, about. */
  get memory(): number {
    return this.#memory;
  }

  /** An event of this id was assigned. */
  knows(eventId: string | undefined): boolean {
    return eventId !== undefined && this.#ids.has(eventId);
  }

  /** Takes its next event. */
  assign(event: StreamEvent): void {
    const { index, type, data, eventId, timestampMs } = event;
    const textOffset = this.#text.length;
    this.#offsets.push(textOffset);
    if (type === STREAM_CONTENT) this.#text += data;
    else if (type === STREAM_START) this.#startData = data;
    else if (type === STREAM_END) this.#end = event;
    else {
      const id = eventId ?? madeEventId(index);
      const note = { index, textOffset, type, data, timestampMs };
      this.#notes.push({ ...note, eventId: id });
    }
    if (eventId !== undefined) this.#ids.add(eventId);
    this.#snapshotBytes += snapshotBytes(event);
    this.#memory += eventBytes(event);
  }

  /** Rolls back its newest event, which was not committed. */
  rollBack(event: StreamEvent): void {
    const { type, eventId } = event;
    const textOffset = this.#offsets.pop() ?? 0;
    if (type === STREAM_CONTENT) this.#text = this.#text.slice(0, textOffset);
    else if (type === STREAM_END) this.#end = undefined;
    else if (type !== STREAM_START) this.#notes.pop();
    if (eventId !== undefined) this.#ids.delete(eventId);
    this.#snapshotBytes -= snapshotBytes(event);
    this.#memory -= eventBytes(event);
  }

  /** Shows everything before `index` to reads. */
  show(index: number): void {
    this.#shown = index;
    this.#snapshot = undefined;
  }

  /** Units of text before the event at `index`, which is at most `shown`; else undefined. */
  textOffset(index: number): number | undefined {
    if (index < 0 || index > this.#shown) return undefined;
    return this.#offsets[index] ?? this.#text.length;
  }

  /** As reads show it. */
  snapshot(): StreamSnapshot {
    this.#snapshot ??= this.#take();
    return this.#snapshot;
  }

  /** One of its events as it is published. */
  published(event: StreamEvent): ChannelEvent {
    const { key, channel, fromUid, clientMsgNo, messageSeq } = this.head;
    const { index, eventId, type, data, timestampMs, ending } = event;
    return {
      key,
      channel,
      fromUid,
      clientMsgNo,
      type,
      data,
      timestampMs,
      eventId: eventId ?? madeEventId(index),
      stream: {
        messageSeq,
        index,
        nextIndex: index + 1,
        textOffset: this.#offsets[index] ?? 0,
        state: stateAfter(ending),
      },
    };
  }

  #take(): StreamSnapshot {
    const nextIndex = Math.max(this.#shown, 0);
    const end = this.isEndedBefore(nextIndex) ? this.#end : undefined;
    const { key, channel, fromUid, clientMsgNo } = this.head;
    const { messageId, messageSeq } = this.head;
    return {
      ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq },
      state: stateAfter(end?.ending),
      text: this.#text.slice(0, this.textOffset(nextIndex)),
      nextIndex,
      startData: nextIndex > 0 ? this.#startData : "",
      endData: end?.data,
      notes: this.#notes.filter((note) => note.index < nextIndex),
    };
  }

  /** What a lookup by event needs once it is over. */
  trace(): { readonly offsets: readonly number[]; readonly ids: string[] } {
    return { offsets: this.#offsets, ids: [...this.#ids] };
  }
}
