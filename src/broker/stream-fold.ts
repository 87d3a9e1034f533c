// Folds a stream's events, in order, into its snapshot: the text so far, the notes, and the data of
// the start and the end. Does no I/O.
//
// A stream that was created through the Durable Streams protocol can be much longer than viewers
// can keep. If it exceeds `ViewLimits`, viewers are shown only the beginning of its text, and a
// note with the path of its log in place of the rest.

import type { LogEnding } from "./log-ports.ts";
import {
  type ChannelEvent,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamSnapshot,
  type StreamState,
  streamLogPath,
} from "./model.ts";
import { defaultEventId, type StreamEvent } from "./stream-event.ts";
import { RECORD_TYPE } from "./stream-record.ts";

type FoldedEvent = Pick<
  StreamEvent,
  "type" | "eventId" | "data" | "timestampMs" | "isHidden" | "recordBytes"
>;

type ViewedEvent = Pick<FoldedEvent, "type" | "data" | "isHidden" | "recordBytes">;

/**
 * Limits on what viewers are shown of a stream that was created through the Durable Streams
 * protocol.
 */
export interface ViewLimits {
  /** Maximum number of bytes of text and notes together. */
  readonly maxBytes: number;
  readonly maxDataBytes: number;
}

const DEFAULT_LIMITS: ViewLimits = { maxBytes: 262_144, maxDataBytes: 65_536 };
/** Maximum number of bytes of text that viewers are shown if a stream exceeds `ViewLimits`. */
const MAX_CUT_BYTES = 65_536;
const NOTE_BYTES = 48;
/**
 * Minimum fraction of a record's size that counts towards the limit, because the whole record is
 * read even if viewers are shown little of it.
 */
const RECORD_SHARE = 1 / 16;

export type StreamHead = Pick<
  StreamSnapshot,
  "key" | "channel" | "fromUid" | "clientMsgNo" | "messageId" | "messageSeq"
>;

/**
 * Returns the index of the first event that viewers are not shown, or `undefined` if they are shown
 * all events.
 */
export function cutIndexOf({ truncated, notes }: StreamSnapshot): number | undefined {
  return truncated && notes[0]?.index;
}

/** Returns the state of a stream whose log has this ending. */
export function stateAfter(ending: LogEnding | undefined): StreamState {
  if (ending === undefined) return "active";
  return ending === "stopped" ? "cancelled" : ending;
}

/** Measures a stream's events, and finds the first event that viewers are not shown (the cut). */
export class StreamView {
  readonly #limits: ViewLimits;
  readonly #logPath: string;
  /**
   * True if `ViewLimits` applies. The size of other streams is checked before an event is accepted.
   */
  #isLimited = false;
  #bytes = 0;
  #cutIndex: number | undefined;

  /** `isLimited` is needed only if the first event of the stream is not passed to `add`. */
  constructor(
    { key, clientMsgNo }: Pick<StreamHead, "key" | "clientMsgNo">,
    limits: ViewLimits,
    isLimited = false,
  ) {
    this.#limits = limits;
    this.#isLimited = isLimited;
    this.#logPath = streamLogPath(key, clientMsgNo);
  }

  get isLimited(): boolean {
    return this.#isLimited;
  }

  /**
   * Index of the first event that viewers are not shown, or `undefined` if they are shown all
   * events.
   */
  get cutIndex(): number | undefined {
    return this.#cutIndex;
  }

  /** Sets the index of the first event that viewers are not shown, as the store has decided. */
  cutFrom(index: number): void {
    this.#cutIndex ??= index;
  }

  add(event: ViewedEvent, index: number): void {
    if (index === 0) this.#isLimited = event.isHidden;
    if (!this.#isLimited) return;
    const size = this.sizeOf(event);
    if (Number.isFinite(size)) this.#bytes += size;
    if (this.#bytes > this.#limits.maxBytes || size === Infinity) this.#cutIndex ??= index;
  }

  /** Undoes `add` for the newest event. */
  remove(event: ViewedEvent, index: number): void {
    if (this.#cutIndex === index) this.#cutIndex = undefined;
    if (!this.#isLimited) return;
    const size = this.sizeOf(event);
    if (Number.isFinite(size)) this.#bytes -= size;
  }

  /**
   * Returns the number of bytes by which an event counts towards `maxBytes`, or `Infinity` if its
   * text is too large to be shown.
   */
  sizeOf(event: ViewedEvent): number {
    const { type, data, recordBytes = 0 } = event;
    if (type === STREAM_CONTENT && this.#isTooLarge(data)) return Infinity;
    const minBytes = Math.floor(recordBytes * RECORD_SHARE);
    return Math.max(minBytes, shownBytes(type, this.dataOf(event)));
  }

  /** Returns the data that viewers are shown for an event that precedes the cut. */
  dataOf(event: ViewedEvent): string {
    const { type, data } = event;
    const isShown = !this.#isLimited || type === STREAM_CONTENT || !isViewed(event);
    return isShown || !this.#isTooLarge(data) ? data : this.notice();
  }

  #isTooLarge(data: string): boolean {
    return Buffer.byteLength(data) > this.#limits.maxDataBytes;
  }

  /** Returns the data of the note that takes the place of the events that viewers are not shown. */
  notice(): string {
    return JSON.stringify({ truncated: 1, log: this.#logPath });
  }
}

/**
 * Returns the size of an event as viewers see it: the bytes of `data`, plus `NOTE_BYTES` if
 * the event is a note. The size of a start or an end is 0.
 */
export function shownBytes(type: string, data: string): number {
  if (!isViewed({ type })) return 0;
  return Buffer.byteLength(data) + (type === STREAM_CONTENT ? 0 : NOTE_BYTES);
}

function isViewed({ type }: Pick<ViewedEvent, "type">): boolean {
  return type !== STREAM_START && type !== STREAM_END;
}

/**
 * Returns the event as it is published, or `undefined` if it is not published. `textOffset` is the
 * number of UTF-16 code units of the text that viewers are shown before the event.
 */
export function publishedEvent(
  head: Omit<StreamHead, "messageId">,
  view: StreamView,
  event: StreamEvent & { readonly index: number },
  textOffset: number,
): ChannelEvent | undefined {
  const { key, channel, fromUid, clientMsgNo, messageSeq } = head;
  const { index, eventId, type, timestampMs, state } = event;
  const cutIndex = view.cutIndex ?? Infinity;
  const isCut = index === cutIndex;
  if (index > cutIndex && type !== STREAM_END) return undefined;
  const stream = {
    messageSeq,
    index: Math.min(index, cutIndex + 1),
    nextIndex: index + 1,
    textOffset,
    state,
  };
  return {
    key,
    channel,
    fromUid,
    clientMsgNo,
    type: isCut ? RECORD_TYPE : type,
    data: isCut ? view.notice() : view.dataOf(event),
    timestampMs,
    eventId: isCut ? defaultEventId(index) : (eventId ?? defaultEventId(index)),
    hasGivenId: eventId !== undefined && !isCut,
    stream: isCut ? { ...stream, truncated: true } : stream,
  };
}

export class StreamFold {
  readonly #head: StreamHead;
  readonly #view: StreamView;
  #notes: StreamNote[] = [];
  #text = "";
  #nextIndex = 0;
  #start: FoldedEvent | undefined;
  #end: FoldedEvent | undefined;
  #state: StreamState = "active";
  #snapshot: StreamSnapshot | undefined;

  constructor(head: StreamHead, limits: ViewLimits = DEFAULT_LIMITS) {
    this.#head = head;
    this.#view = new StreamView(head, limits);
  }

  /** Number of events, which is also the index of the next event. */
  get nextIndex(): number {
    return this.#nextIndex;
  }

  get textUnits(): number {
    return this.#text.length;
  }

  /** True if viewers are not shown any later event except the end. */
  get isCut(): boolean {
    return this.#nextIndex > (this.#view.cutIndex ?? Infinity);
  }

  /** Sets the index of the first event that viewers are not shown, as the store has decided. */
  cutFrom(index: number): void {
    this.#view.cutFrom(index);
  }

  /** Skips the events with an index below `nextIndex`. Viewers are not shown these events. */
  skipTo(nextIndex: number): void {
    if (nextIndex <= this.#nextIndex) return;
    this.#nextIndex = nextIndex;
    this.#snapshot = undefined;
  }

  /**
   * Adds the next event. `state` is the state of the stream after the event, and `index` is the
   * index of the event. After the cut, the caller may skip events that viewers are not shown.
   */
  add(event: FoldedEvent, state: StreamState, index = this.#nextIndex): void {
    const { type, eventId, timestampMs } = event;
    this.#view.add(event, index);
    const data = this.#view.dataOf(event);
    this.#state = state;
    this.#nextIndex = index + 1;
    this.#snapshot = undefined;
    if (type === STREAM_START) this.#start = event;
    else if (type === STREAM_END) this.#end = event;
    else if (this.#view.cutIndex === index) this.#cut(type === STREAM_CONTENT ? data : "", event);
    else if (index > (this.#view.cutIndex ?? Infinity)) return;
    else if (type === STREAM_CONTENT) this.#text += data;
    else {
      const id = eventId ?? defaultEventId(index);
      const textOffset = this.#text.length;
      this.#notes.push({ index, textOffset, eventId: id, type, data, timestampMs });
    }
  }

  /** Limits the text to `MAX_CUT_BYTES`, and replaces all notes with a note about the cut. */
  #cut(content: string, { timestampMs }: FoldedEvent): void {
    const index = this.#nextIndex - 1;
    this.#text = cutText(this.#text + content);
    const textOffset = this.#text.length;
    const note = { index, textOffset, eventId: defaultEventId(index), timestampMs };
    this.#notes = [{ ...note, type: RECORD_TYPE, data: this.#view.notice() }];
  }

  /** Returns the snapshot. The same object is returned until another event is added. */
  snapshot(): StreamSnapshot {
    this.#snapshot ??= this.#createSnapshot();
    return this.#snapshot;
  }

  #createSnapshot(): StreamSnapshot {
    const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = this.#head;
    return {
      ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq },
      state: this.#state,
      text: this.#text,
      nextIndex: this.#nextIndex,
      startData: this.#start?.data ?? "",
      endData: this.#end?.data,
      startId: this.#start?.eventId,
      endId: this.#end?.eventId,
      notes: this.#notes.slice(),
      ...(this.isCut && { truncated: true }),
    };
  }
}

/** Returns the longest prefix of whole characters that takes at most `MAX_CUT_BYTES` in UTF-8. */
function cutText(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= MAX_CUT_BYTES) return text;
  let end = MAX_CUT_BYTES;
  while (((bytes[end] ?? 0) & CONTINUATION_MASK) === CONTINUATION) end--;
  return bytes.toString("utf8", 0, end);
}

/** Mask and value of the upper two bits of a byte that continues a character in UTF-8. */
const CONTINUATION_MASK = 0xc0;
const CONTINUATION = 0x80;
