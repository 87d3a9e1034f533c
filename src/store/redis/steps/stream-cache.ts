// Cache of the streams that a node has read. For a cached stream, the node later reads only new
// events. State: the events of these streams, limited by their size.

import { CHECK_BYTES } from "../../../broker/log-frame.ts";
import {
  type ChannelKey,
  STREAM_CONTENT,
  STREAM_END,
  type StreamSnapshot,
  type StreamState,
} from "../../../broker/model.ts";
import type { StreamEvent } from "../../../broker/stream-event.ts";
import type { StreamFold, StreamHead } from "../../../broker/stream-fold.ts";
import { LinkedMap } from "../../../lib/linked-map.ts";
import { newFold, type StreamReply, visitStates } from "./stream-record.ts";

const ENTRY_UNITS = 500;
/** Memory that an event takes besides its strings, in UTF-16 code units. */
const EVENT_UNITS = 4;

/** The first events of a stream, up to a position in its log, as viewers see them. */
export class CachedStream {
  readonly head: StreamHead;
  readonly #incarnation: string;
  readonly #fold: StreamFold;
  /**
   * For each event up to and including `#cutIndex`, the number of UTF-16 code units of text before
   * it.
   */
  readonly #offsets: number[] = [];
  #textUnits = 0;
  /** Index of the first event that viewers are not shown. `Infinity` if they are shown all. */
  #cutIndex = Infinity;
  #position = 0;
  /** Last `CHECK_BYTES` bytes before the position. */
  #check = Buffer.alloc(0);
  #units = ENTRY_UNITS;
  #isActive = true;

  constructor(shown: Pick<StreamReply, "head" | "incarnation" | "view">) {
    this.head = shown.head;
    this.#incarnation = shown.incarnation;
    this.#fold = newFold(shown);
  }

  /** Approximate memory, in UTF-16 code units. */
  get units(): number {
    return this.#units;
  }

  /** Arguments that make `stream_read.lua` reply with only the events after the cached ones. */
  get mark() {
    const { clientMsgNo } = this.head;
    return [clientMsgNo, this.#incarnation, this.#position, this.#check] as const;
  }

  /**
   * Adds the events of a reply. Returns false and adds nothing if the reply does not continue the
   * cached events. If the reply is older than the cached events, returns true and adds nothing.
   */
  add({ incarnation, ending, from, frames, view, records, last }: StreamReply): boolean {
    const shared = this.#position - from;
    if (incarnation !== this.#incarnation || shared < 0) return false;
    if (shared > frames.length) return true;
    const { length } = this.#check;
    if (shared > 0 && !this.#check.equals(frames.subarray(shared - length, shared))) return false;
    // All events are decoded first, so that no event is added if one of them cannot be decoded.
    const events: [StreamEvent, StreamState, number][] = [];
    visitStates(frames.subarray(shared), ending, (...event) => events.push(event));
    const ends: [StreamEvent, StreamState, number][] = [];
    if (this.#isActive) visitStates(last, ending, (...event) => ends.push(event));
    if (view?.cutIndex !== undefined) {
      this.#cutIndex = view.cutIndex;
      this.#fold.cutFrom(view.cutIndex);
    }
    for (const event of events) this.#addEvent(...event);
    if (this.#fold.isCut) this.#fold.skipTo(ending === undefined ? records : records - 1);
    for (const event of ends) this.#addEvent(...event);
    this.#position = from + frames.length;
    if (events.length > 0) this.#check = Buffer.from(frames.subarray(-CHECK_BYTES));
    return true;
  }

  #addEvent(event: StreamEvent, state: StreamState, index: number): void {
    const { type, data, eventId = "" } = event;
    this.#fold.add(event, state, index);
    if (type === STREAM_END) this.#isActive = false;
    if (index > this.#cutIndex) return;
    this.#offsets.push(this.#textUnits);
    if (type === STREAM_CONTENT) this.#textUnits += data.length;
    this.#units += EVENT_UNITS + data.length + eventId.length;
  }

  hasEventsOf(other: CachedStream): boolean {
    return (
      this.#incarnation === other.#incarnation &&
      this.#position === other.#position &&
      this.#fold.nextIndex === other.#fold.nextIndex &&
      this.#check.equals(other.#check)
    );
  }

  textOffset(index: number): number | undefined {
    if (index > this.#fold.nextIndex) return undefined;
    if (index > this.#cutIndex) return this.#fold.textUnits;
    return index === this.#offsets.length ? this.#textUnits : this.#offsets[index];
  }

  /** Returns the snapshot. The same object is returned until another event is added. */
  snapshot(): StreamSnapshot {
    return this.#fold.snapshot();
  }
}

interface Entry {
  readonly stream: CachedStream;
  readonly units: number;
}

export class StreamCache {
  readonly #maxUnits: number;
  readonly #entries = new LinkedMap<string, Entry>();
  #units = 0;

  constructor(maxUnits: number) {
    this.#maxUnits = maxUnits;
  }

  get(key: ChannelKey, clientMsgNo: string): CachedStream | undefined {
    return this.#entries.get(nameOf(key, clientMsgNo))?.stream;
  }

  /**
   * Caches and returns a stream. If the cached stream has the same events, returns the cached
   * stream instead.
   */
  put(read: CachedStream): CachedStream {
    const { key, clientMsgNo } = read.head;
    const name = nameOf(key, clientMsgNo);
    const before = this.#entries.get(name);
    const stream = before?.stream.hasEventsOf(read) === true ? before.stream : read;
    if (before !== undefined) this.#remove(name, before);
    this.#entries.set(name, { stream, units: stream.units });
    this.#units += stream.units;
    while (this.#units > this.#maxUnits && this.#entries.oldest !== undefined)
      this.#remove(this.#entries.oldest.key, this.#entries.oldest.value);
    return stream;
  }

  #remove(name: string, { units }: Entry): void {
    this.#entries.delete(name);
    this.#units -= units;
  }
}

function nameOf(key: ChannelKey, clientMsgNo: string): string {
  return `${key}\n${clientMsgNo}`;
}
