// A stream in memory. The stream is active, or has ended and is not completely in the database. Its
// events are the records of its log. An event is first assigned, and becomes visible once it is
// committed. Events whose write fails are rolled back, newest first. An uncommitted event must
// never be visible to reads.

import type { LogEnding } from "../../../broker/log-ports.ts";
import {
  type ChannelEvent,
  type Message,
  STREAM_CONTENT,
  STREAM_END,
  type StreamSnapshot,
  streamPayload,
} from "../../../broker/model.ts";
import { givenEventId, type StreamEvent } from "../../../broker/stream-event.ts";
import {
  publishedEvent,
  StreamFold,
  type StreamHead,
  StreamView,
  type ViewLimits,
} from "../../../broker/stream-fold.ts";
import { eventMark, SHARED_ID } from "../../event-ids.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import type { MemtableChannel } from "../engine/memtable.ts";
import type { OpenLog } from "./open-logs.ts";

/**
 * Approximate memory in bytes of an event, a stream, an event id and a text offset, without
 * strings.
 */
const EVENT_BYTES = 160;
const STREAM_BYTES = 2048;
const ID_BYTES = 160;
const OFFSET_BYTES = 8;

/** An event and its index in the stream. */
export interface PlacedEvent extends StreamEvent {
  readonly index: number;
  /** How the event ended the stream, or `undefined` if the event is not an end. */
  readonly ending: LogEnding | undefined;
}

export function eventBytes(event: Pick<StreamEvent, "data" | "eventId">): number {
  return contentBytes(event) + idBytes(event);
}

function contentBytes({ data }: Pick<StreamEvent, "data">): number {
  return EVENT_BYTES + 2 * data.length;
}

function idBytes({ eventId }: Pick<StreamEvent, "eventId">): number {
  return eventId === undefined ? 0 : ID_BYTES + 2 * eventId.length;
}

interface RememberedId {
  readonly mark: string;
  readonly firstIndex: number;
  /**
   * Index of the first later event with the same id, or `undefined` if no later event has the id.
   */
  sharedIndex: number | undefined;
}

/**
 * Returns the message with its stream. If the producer chose no payload, the payload is the text of
 * the stream so far.
 */
export function withStream(message: Message, stream: StreamSnapshot | undefined): Message {
  const hasOwnPayload = message.payload.length > 0;
  const payload = hasOwnPayload ? message.payload : streamPayload(stream?.text ?? "");
  return { ...message, payload, stream };
}

export class LiveStream {
  readonly channel: MemtableChannel;
  readonly head: StreamHead;
  /**
   * The stream's log. Only the number and the name may be used, because `OpenLogs` may have
   * replaced this object.
   */
  readonly log: Pick<OpenLog, "number" | "text">;
  /** Time at which the last event was assigned, on the clock of `LiveStreams.now`. */
  lastEventMs: number;
  /** True if `LiveStreams` must store changes to the stream in a checkpoint. */
  isDirty = false;
  /** Value of `shown` when the newest checkpoint began. */
  flushing = 0;
  /** True once a checkpoint has stored that the stream is active. */
  isStoredActive = false;
  /** Fold of the visible events. */
  readonly #fold: StreamFold;
  /** View of all assigned events, visible or not. */
  readonly #view: StreamView;
  /**
   * Number of UTF-16 code units of text before each assigned event. Has no entries for events that
   * follow the cut (see `StreamView.cutIndex`).
   */
  readonly #offsets: number[] = [];
  #assigned = 0;
  #textUnits = 0;
  readonly #ids = new Map<string, RememberedId>();
  #end: PlacedEvent | undefined;
  #snapshotBytes = 0;
  /** Approximate memory of the stream in bytes, without the event ids. */
  #memory = STREAM_BYTES;
  #idMemory = 0;
  #isMessageShown = false;

  constructor(
    channel: MemtableChannel,
    head: StreamHead,
    {
      log,
      nowMs,
      limits,
    }: {
      readonly log: Pick<OpenLog, "number" | "text">;
      readonly nowMs: number;
      readonly limits: ViewLimits;
    },
  ) {
    this.channel = channel;
    this.head = head;
    this.log = log;
    this.lastEventMs = nowMs;
    this.#fold = new StreamFold(head, limits);
    this.#view = new StreamView(head, limits);
  }

  /** Number of assigned events, which is also the index of the next event. */
  get assigned(): number {
    return this.#assigned;
  }

  /** True if `POST /event` started the stream. A channel has at most one such active stream. */
  get isTextSession(): boolean {
    return !this.#view.isLimited;
  }

  /** Number of visible events, or -1 until the stream's message is visible. */
  get shown(): number {
    return this.#isMessageShown ? this.#fold.nextIndex : -1;
  }

  get ending(): LogEnding | undefined {
    return this.#end?.ending;
  }

  /** Time of the end in Unix milliseconds, or 0 if the stream has not ended. See `StreamEnd`. */
  get endedMs(): number {
    return this.#end?.detail ?? 0;
  }

  get isShownActive(): boolean {
    return this.#isMessageShown && !this.isShownEnded;
  }

  get isShownEnded(): boolean {
    return this.isEndedBefore(this.#fold.nextIndex);
  }

  isEndedBefore(index: number): boolean {
    return this.#end !== undefined && this.#end.index < index;
  }

  get snapshotBytes(): number {
    return this.#snapshotBytes;
  }

  get memory(): number {
    return this.#memory + this.#idMemory;
  }

  markOf(eventId: string | undefined): string | undefined {
    const id = eventId === undefined ? undefined : this.#ids.get(givenEventId(eventId));
    return id?.sharedIndex === undefined ? id?.mark : SHARED_ID;
  }

  assign(event: PlacedEvent): void {
    const { index, type, data } = event;
    this.#assigned += 1;
    this.#view.add(event, index);
    if (type === STREAM_END) this.#end = event;
    this.#rememberId(event);
    if (!this.#isShownTo(index)) return;
    this.#offsets.push(this.#textUnits);
    if (type === STREAM_CONTENT) this.#textUnits += data.length;
    this.#memory += contentBytes(event);
    if (this.isTextSession) this.#snapshotBytes += snapshotBytes(event);
  }

  /** Removes an event. The event must be the stream's newest event and uncommitted. */
  rollBack(event: PlacedEvent): void {
    const { index, type } = event;
    this.#assigned -= 1;
    if (type === STREAM_END) this.#end = undefined;
    if (this.#isShownTo(index)) {
      this.#textUnits = this.#offsets.pop() ?? 0;
      this.#memory -= contentBytes(event);
      if (this.isTextSession) this.#snapshotBytes -= snapshotBytes(event);
    }
    this.#forgetId(event);
    this.#view.remove(event, index);
  }

  /** Returns false for events after the event that made the stream too long for viewers. */
  #isShownTo(index: number): boolean {
    return index <= (this.#view.cutIndex ?? index);
  }

  #rememberId(event: PlacedEvent): void {
    const { index, type, data, eventId, timestampMs, isTimed, isHidden } = event;
    if (eventId === undefined || isHidden) return;
    const givenId = givenEventId(eventId);
    const id = this.#ids.get(givenId);
    if (id !== undefined) {
      id.sharedIndex ??= index;
      return;
    }
    const { clientMsgNo } = this.head;
    const givenMs = isTimed ? timestampMs : undefined;
    const mark = eventMark({ clientMsgNo, eventId, type, data, timestampMs: givenMs });
    if (mark === undefined) return;
    this.#ids.set(givenId, { mark, firstIndex: index, sharedIndex: undefined });
    this.#idMemory += idBytes(event);
  }

  #forgetId(event: PlacedEvent): void {
    const { index, eventId = "" } = event;
    const givenId = givenEventId(eventId);
    const id = this.#ids.get(givenId);
    if (id?.firstIndex === index) {
      this.#ids.delete(givenId);
      this.#idMemory -= idBytes(event);
    } else if (id?.sharedIndex === index) id.sharedIndex = undefined;
  }

  showMessage(): void {
    this.#isMessageShown = true;
  }

  /**
   * Makes an event visible. The event must be the oldest assigned event that is not visible yet.
   */
  showEvent(event: PlacedEvent): void {
    this.#fold.add(event, event.state);
    if (event.index === this.#view.cutIndex)
      this.#memory = STREAM_BYTES + 2 * this.#fold.textUnits + OFFSET_BYTES * this.#offsets.length;
  }

  textOffset(index: number): number | undefined {
    if (index < 0 || index > this.shown) return undefined;
    if (index > (this.#view.cutIndex ?? index)) return this.#fold.textUnits;
    return this.#offsets[index] ?? this.#textUnits;
  }

  snapshot(): StreamSnapshot {
    return this.#fold.snapshot();
  }

  /** Returns the publication of a visible event, or `undefined` if the event is not published. */
  toPublished(event: PlacedEvent): ChannelEvent | undefined {
    const { index } = event;
    const isBeforeCut = index < (this.#view.cutIndex ?? Infinity);
    const textOffset = isBeforeCut ? (this.#offsets[index] ?? 0) : this.#fold.textUnits;
    return publishedEvent(this.head, this.#view, event, textOffset);
  }

  marks(): ReadonlyMap<string, string> {
    const marks = new Map<string, string>();
    for (const id of this.#ids.keys()) marks.set(id, this.markOf(id) ?? SHARED_ID);
    return marks;
  }
}
