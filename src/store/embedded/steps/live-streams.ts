// The streams in memory: every active one, and those that ended and are not yet wholly in the
// database; how they come back after a restart and move into the database. Owns the map of them,
// the sum of the memory they take, and which of them have events the database does not have. Must
// never drop one before the database has all of it.

import { BrokerError } from "../../../broker/errors.ts";
import { type ChannelKey, type Message, STREAM_END } from "../../../broker/model.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import type { Memtable, MemtableChannel } from "../engine/memtable.ts";
import { eventBytes, LiveStream, type StreamHead } from "./live-stream.ts";
import { decodeStreamRecord, type EncodedEvent, type StreamEvent } from "./stream-record.ts";
import type { StreamRows } from "./stream-rows.ts";

interface StreamBounds {
  /** What one stream's events add to what a viewer who joins is sent. */
  readonly maxStreamBytes: number;
  /** Memory of all that are held. */
  readonly maxActiveBytes: number;
}

export class LiveStreams {
  readonly #memtable: Memtable;
  readonly #rows: StreamRows;
  readonly #bounds: StreamBounds;
  readonly #byChannel = new Map<ChannelKey, LiveStream[]>();
  /** Of personal channels, by each of the two users. */
  readonly #byUser = new Map<string, Set<LiveStream>>();
  #dirty = new Set<LiveStream>();
  #memory = 0;
  /** When what is replayed counts as heard of. */
  #loadedAtMs = 0;

  constructor(memtable: Memtable, rows: StreamRows, bounds: StreamBounds) {
    this.#memtable = memtable;
    this.#rows = rows;
    this.#bounds = bounds;
  }

  /** Memory all of them take, about. */
  get memory(): number {
    return this.#memory;
  }

  /** All of them, active or not. */
  *[Symbol.iterator](): Generator<LiveStream> {
    for (const streams of this.#byChannel.values()) yield* streams;
  }

  /** How many reads show as active. */
  countActive(): number {
    let count = 0;
    for (const stream of this) if (stream.isShownActive) count++;
    return count;
  }

  /** The stream of that name, committed or not. */
  find(key: ChannelKey, clientMsgNo: string): LiveStream | undefined {
    return this.#byChannel.get(key)?.find((stream) => stream.head.clientMsgNo === clientMsgNo);
  }

  /** The stream whose message has that seq, committed or not. */
  at(key: ChannelKey, messageSeq: number): LiveStream | undefined {
    return this.#byChannel.get(key)?.find((stream) => stream.head.messageSeq === messageSeq);
  }

  /** The channel's stream that takes events, committed or not. */
  running(key: ChannelKey): LiveStream | undefined {
    return this.#byChannel.get(key)?.find((stream) => stream.ending === undefined);
  }

  /** The channel's stream that reads show as active. */
  shownActive(key: ChannelKey): LiveStream | undefined {
    return this.#byChannel.get(key)?.find((stream) => stream.isShownActive);
  }

  /** Those of the personal channels of `uid`, active or not. */
  personalOf(uid: string): Iterable<LiveStream> {
    return this.#byUser.get(uid) ?? [];
  }

  /**
   * Whether an event fits its stream, whose events count so much, and all others. An end gives room
   * back: it is not refused for lack of it, unless it brings data. Throws `too_large`,
   * `overloaded`.
   */
  assertRoom(event: Pick<StreamEvent, "type" | "data" | "eventId">, held: number): void {
    const { maxStreamBytes, maxActiveBytes } = this.#bounds;
    const isEnd = event.type === STREAM_END;
    if (isEnd && event.data === "") return;
    if (held + snapshotBytes(event) > maxStreamBytes)
      throw new BrokerError("too_large", {
        message: `The stream exceeds ${maxStreamBytes} bytes`,
      });
    if (!isEnd && this.#memory + eventBytes(event) > maxActiveBytes)
      throw new BrokerError("overloaded");
  }

  begin(channel: MemtableChannel, head: StreamHead, nowMs: number): LiveStream {
    const stream = new LiveStream(channel, head, nowMs);
    const others = this.#byChannel.get(head.key);
    if (others === undefined) this.#byChannel.set(head.key, [stream]);
    else others.push(stream);
    for (const uid of usersOf(head.key)) {
      const theirs = this.#byUser.get(uid) ?? new Set();
      this.#byUser.set(uid, theirs.add(stream));
    }
    this.#memory += stream.memory;
    return stream;
  }

  /** Forgets a stream: its start was not written, or the database has all of it. */
  remove(stream: LiveStream): void {
    const { key } = stream.head;
    const streams = this.#byChannel.get(key)?.filter((s) => s !== stream) ?? [];
    if (streams.length === 0) this.#byChannel.delete(key);
    else this.#byChannel.set(key, streams);
    for (const uid of usersOf(key)) {
      const theirs = this.#byUser.get(uid);
      theirs?.delete(stream);
      if (theirs?.size === 0) this.#byUser.delete(uid);
    }
    this.#dirty.delete(stream);
    this.#memory -= stream.memory;
  }

  /** Makes `change` to a stream, and counts what memory that takes or gives back. */
  change(stream: LiveStream, change: (stream: LiveStream) => void): void {
    const before = stream.memory;
    change(stream);
    this.#memory += stream.memory - before;
  }

  /** The stream has committed events that the database does not have. */
  touch(stream: LiveStream): void {
    this.#dirty.add(stream);
  }

  /**
   * Takes the active streams from the database; each counts as heard of now. To be called before
   * the WAL is replayed. Throws `internal`.
   */
  load(nowMs: number): void {
    this.#loadedAtMs = nowMs;
    for (const { head, parts, events } of this.#rows.active()) {
      const stream = this.begin(this.#memtable.channel(head.key), head, nowMs);
      for (const first of parts) stream.parts.add(first);
      for (const event of events) this.#take(stream, event);
      stream.stored = events.length;
    }
  }

  /**
   * The message of a stream was replayed; what the database has of the stream is not taken again.
   */
  replayMessage(channel: MemtableChannel, message: Message): void {
    const { key, messageSeq } = message;
    if (this.at(key, messageSeq) !== undefined) return;
    if (this.#rows.isEnded(channel.number, messageSeq)) return;
    this.begin(channel, message, this.#loadedAtMs).show(0);
  }

  /** Takes an event's record from the WAL. Throws `internal` when one before it is missing. */
  replayEvent(bytes: Buffer): void {
    const { stream: name, event, body } = decodeStreamRecord(bytes);
    const { key, messageSeq } = name;
    const stream = this.at(key, messageSeq);
    if (stream === undefined) {
      const { number } = this.#memtable.channel(key);
      if (this.#rows.isEnded(number, messageSeq)) return;
      throw skips(key, messageSeq);
    }
    if (event.index < stream.assigned) return;
    if (event.index > stream.assigned) throw skips(key, messageSeq);
    this.#take(stream, event);
    const encoded: EncodedEvent = { bytes, start: 0, body, end: bytes.length };
    stream.pending.push(encoded);
    this.#memtable.hold(bytes.length);
    this.touch(stream);
  }

  #take(stream: LiveStream, event: StreamEvent): void {
    this.change(stream, () => stream.assign(event));
    stream.show(event.index + 1);
  }

  /**
   * Marks every committed event as being written to the database. After a failure it is simply
   * called again.
   */
  startFlush() {
    const streams = [...this.#dirty];
    for (const stream of streams) stream.flushing = stream.shown;
    const rows = this.#rows;
    return {
      /** Puts what is marked; stops after each stream. To be advanced inside `commit`. */
      *puts(): Generator<void> {
        for (const stream of streams) {
          rows.put(stream);
          yield;
        }
      },
      /** Lets go of what is marked: the database has it. */
      finish: () => this.#finishFlush(streams),
    };
  }

  #finishFlush(streams: readonly LiveStream[]): void {
    for (const stream of streams) {
      const { stored, flushing, pending } = stream;
      for (const { start, end } of pending.splice(0, flushing - stored))
        this.#memtable.letGo(end - start);
      stream.stored = flushing;
      if (stream.isEndedBefore(flushing)) this.remove(stream);
      else if (pending.length === 0) this.#dirty.delete(stream);
    }
  }
}

/** The users of a personal channel; ids hold no `@`. */
function usersOf(key: ChannelKey): ReadonlySet<string> {
  return new Set(key.startsWith("1:") ? key.slice(2).split("@") : []);
}

function skips(key: string, messageSeq: number): BrokerError {
  return new BrokerError("internal", {
    message: `The journal skips events of the stream with message ${messageSeq} in channel ${key}`,
  });
}
