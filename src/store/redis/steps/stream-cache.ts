// The streams that a node has read, so that it reads only their new events again. State: the events
// of these streams, limited by their size.

import { CHECK_BYTES, visitEvents } from "../../../broker/log-frame.ts";
import {
  type ChannelKey,
  STREAM_CONTENT,
  STREAM_END,
  type StreamSnapshot,
} from "../../../broker/model.ts";
import type { StreamEvent } from "../../../broker/stream-event.ts";
import { StreamFold, type StreamHead, stateAfter } from "../../../broker/stream-fold.ts";
import type { StreamReply } from "./stream-record.ts";

const ENTRY_UNITS = 500;
/** Memory of an event, in UTF-16 code units, without its strings. */
const EVENT_UNITS = 4;

/** The first events of a stream, up to a position of its log. */
export class CachedStream {
  readonly head: StreamHead;
  readonly #incarnation: string;
  readonly #fold: StreamFold;
  /** Number of UTF-16 code units of text before each event. */
  readonly #offsets: number[] = [];
  #textUnits = 0;
  #position = 0;
  /** The last bytes before the position. */
  #check = Buffer.alloc(0);
  #units = ENTRY_UNITS;
  #isActive = true;

  constructor({ head, incarnation }: Pick<StreamReply, "head" | "incarnation">) {
    this.head = head;
    this.#incarnation = incarnation;
    this.#fold = new StreamFold(head);
  }

  get isActive(): boolean {
    return this.#isActive;
  }

  /** Approximate memory, in UTF-16 code units. */
  get units(): number {
    return this.#units;
  }

  /** Arguments with which `stream_read.lua` replies with only the events after these. */
  get mark() {
    const { clientMsgNo } = this.head;
    return [clientMsgNo, this.#incarnation, this.#position, this.#check] as const;
  }

  /**
   * Adds the events of a reply. Returns false and adds nothing if it does not follow these events.
   * A reply that is older than these events adds nothing.
   */
  add({ incarnation, ending, from, frames }: StreamReply): boolean {
    const shared = this.#position - from;
    if (incarnation !== this.#incarnation || shared < 0) return false;
    if (shared > frames.length) return true;
    const { length } = this.#check;
    if (shared > 0 && !this.#check.equals(frames.subarray(shared - length, shared))) return false;
    // An event that cannot be decoded must not leave the earlier ones added.
    const events: StreamEvent[] = [];
    visitEvents(frames.subarray(shared), (event) => events.push(event));
    for (const event of events) this.#addEvent(event, ending);
    this.#position = from + frames.length;
    if (events.length > 0) this.#check = Buffer.from(frames.subarray(-CHECK_BYTES));
    return true;
  }

  #addEvent(event: StreamEvent, ending: StreamReply["ending"]): void {
    const { type, data, eventId = "" } = event;
    const isEnd = type === STREAM_END;
    this.#fold.add(event, stateAfter(isEnd ? ending : undefined));
    this.#offsets.push(this.#textUnits);
    if (type === STREAM_CONTENT) this.#textUnits += data.length;
    if (isEnd) this.#isActive = false;
    this.#units += EVENT_UNITS + data.length + eventId.length;
  }

  hasEventsOf(other: CachedStream): boolean {
    return (
      this.#incarnation === other.#incarnation &&
      this.#position === other.#position &&
      this.#check.equals(other.#check)
    );
  }

  textOffset(index: number): number | undefined {
    return index === this.#offsets.length ? this.#textUnits : this.#offsets[index];
  }

  /** Returns the snapshot. It is the same object until another event is added. */
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
  readonly #entries = new Map<string, Entry>();
  /** Name of the stream that was active in each channel when it was last read. */
  readonly #active = new Map<ChannelKey, string>();
  #units = 0;

  constructor(maxUnits: number) {
    this.#maxUnits = maxUnits;
  }

  /** Returns the stream, or the channel's active stream if `clientMsgNo` is "". */
  get(key: ChannelKey, clientMsgNo: string): CachedStream | undefined {
    const name = clientMsgNo === "" ? this.#active.get(key) : nameOf(key, clientMsgNo);
    return name === undefined ? undefined : this.#entries.get(name)?.stream;
  }

  /** Caches and returns a stream. Returns the cached one instead if it has the same events. */
  put(read: CachedStream): CachedStream {
    const { key, clientMsgNo } = read.head;
    const name = nameOf(key, clientMsgNo);
    const before = this.#entries.get(name);
    const stream = before?.stream.hasEventsOf(read) === true ? before.stream : read;
    if (before !== undefined) this.#remove(name, before);
    this.#entries.set(name, { stream, units: stream.units });
    this.#units += stream.units;
    if (stream.isActive) this.#active.set(key, name);
    for (const [oldest, entry] of this.#entries) {
      if (this.#units <= this.#maxUnits) break;
      this.#remove(oldest, entry);
    }
    return stream;
  }

  #remove(name: string, { stream, units }: Entry): void {
    const { key } = stream.head;
    this.#entries.delete(name);
    this.#units -= units;
    if (this.#active.get(key) === name) this.#active.delete(key);
  }
}

function nameOf(key: ChannelKey, clientMsgNo: string): string {
  return `${key}\n${clientMsgNo}`;
}
