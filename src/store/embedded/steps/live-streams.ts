// The streams in memory: active streams, and ended streams that are not completely in the database.
// Must never drop a stream before the database has all of it.

import { BrokerError } from "../../../broker/errors.ts";
import { type ChannelKey, STREAM_END } from "../../../broker/model.ts";
import type { StreamEvent } from "../../../broker/stream-event.ts";
import type { StreamHead, ViewLimits } from "../../../broker/stream-fold.ts";
import { maxSnapshotBytes, snapshotBytes } from "../../held-bytes.ts";
import type { Memtable, MemtableChannel } from "../engine/memtable.ts";
import { eventBytes, LiveStream, type PlacedEvent } from "./live-stream.ts";
import { type StreamRows, usersOf } from "./stream-rows.ts";

interface StreamLimits {
  readonly view: ViewLimits;
  readonly maxActiveBytes: number;
  /**
   * Clock that measures how long a producer has been silent. Setting the machine's clock must not
   * affect this clock.
   */
  readonly steadyClock: () => number;
}

export class LiveStreams {
  readonly #memtable: Memtable;
  readonly #rows: StreamRows;
  readonly #limits: StreamLimits;
  readonly #byChannel = new Map<ChannelKey, LiveStream[]>();
  /** Streams in personal channels, by user. A stream is listed under both users of its channel. */
  readonly #byUser = new Map<string, Set<LiveStream>>();
  /** Streams with changes that no checkpoint has stored. May also contain removed streams. */
  #dirty: LiveStream[] = [];
  #memory = 0;

  constructor(memtable: Memtable, rows: StreamRows, limits: StreamLimits) {
    this.#memtable = memtable;
    this.#rows = rows;
    this.#limits = limits;
  }

  get memory(): number {
    return this.#memory;
  }

  now(): number {
    return this.#limits.steadyClock();
  }

  *[Symbol.iterator](): Generator<LiveStream> {
    for (const streams of this.#byChannel.values()) yield* streams;
  }

  countActive(): number {
    let count = 0;
    for (const stream of this) if (stream.isShownActive) count++;
    return count;
  }

  /**
   * Returns the stream with this name if it is in memory, even if it has ended or is uncommitted.
   */
  find(key: ChannelKey, clientMsgNo: string): LiveStream | undefined {
    return this.#byChannel.get(key)?.find((stream) => stream.head.clientMsgNo === clientMsgNo);
  }

  atSeq(key: ChannelKey, messageSeq: number): LiveStream | undefined {
    return this.#byChannel.get(key)?.find((stream) => stream.head.messageSeq === messageSeq);
  }

  /**
   * Returns the channel's stream that `POST /event` started and that has not ended. The start of
   * the stream may be uncommitted.
   */
  openSession(key: ChannelKey): LiveStream | undefined {
    return this.#byChannel
      .get(key)
      ?.find((stream) => stream.ending === undefined && stream.isTextSession);
  }

  /** Returns the number of the channel's streams that have not ended, committed or not. */
  countOpen(key: ChannelKey): number {
    const streams = this.#byChannel.get(key) ?? [];
    return streams.filter((stream) => stream.ending === undefined).length;
  }

  /** Returns the visible active streams of the channel. */
  activeIn(key: ChannelKey): readonly LiveStream[] {
    return this.#byChannel.get(key)?.filter((stream) => stream.isShownActive) ?? [];
  }

  /** Returns the channel's streams that are in memory, including ended streams. */
  of(key: ChannelKey): Iterable<LiveStream> {
    return this.#byChannel.get(key) ?? [];
  }

  /** Returns the user's streams in personal channels, including ended streams. */
  personalOf(uid: string): Iterable<LiveStream> {
    return this.#byUser.get(uid) ?? [];
  }

  /**
   * Throws `too_large` if the event would make the stream exceed its maximum size, and `overloaded`
   * if there is no memory for the event. An end without data is always accepted. An end is never
   * rejected with `overloaded`, because it frees memory.
   */
  assertRoom(event: Pick<StreamEvent, "type" | "data" | "eventId">, streamBytes: number): void {
    const { maxBytes } = this.#limits.view;
    const isEnd = event.type === STREAM_END;
    if (isEnd && event.data === "") return;
    if (
      streamBytes + maxSnapshotBytes(event) > maxBytes &&
      streamBytes + snapshotBytes(event) > maxBytes
    )
      throw new BrokerError("too_large", {
        message: `The stream would exceed its maximum of ${maxBytes} bytes.`,
      });
    if (!isEnd) this.assertMemory(eventBytes(event));
  }

  /** Throws `overloaded` if there is no memory for another `bytes` bytes. */
  assertMemory(bytes: number): void {
    if (this.#memory + bytes > this.#limits.maxActiveBytes) throw new BrokerError("overloaded");
  }

  add(channel: MemtableChannel, head: StreamHead, log: LiveStream["log"]): LiveStream {
    const { view: limits } = this.#limits;
    const stream = new LiveStream(channel, head, { log, nowMs: this.now(), limits });
    const streams = this.#byChannel.get(head.key);
    if (streams === undefined) this.#byChannel.set(head.key, [stream]);
    else streams.push(stream);
    for (const uid of usersOf(head.key)) {
      const userStreams = this.#byUser.get(uid) ?? new Set();
      this.#byUser.set(uid, userStreams.add(stream));
    }
    this.#memory += stream.memory;
    return stream;
  }

  remove(stream: LiveStream): void {
    this.#removeAll([stream]);
  }

  /**
   * Removes the streams. Filters the list of each channel only once, because a channel may have
   * thousands of streams that ended since the last checkpoint.
   */
  #removeAll(streams: readonly LiveStream[]): void {
    const removed = new Set(streams);
    for (const key of new Set(streams.map(({ head }) => head.key))) {
      const remaining = this.#byChannel.get(key)?.filter((stream) => !removed.has(stream)) ?? [];
      if (remaining.length === 0) this.#byChannel.delete(key);
      else this.#byChannel.set(key, remaining);
    }
    for (const stream of streams) {
      for (const uid of usersOf(stream.head.key)) {
        const userStreams = this.#byUser.get(uid);
        userStreams?.delete(stream);
        if (userStreams?.size === 0) this.#byUser.delete(uid);
      }
      stream.isDirty = false;
      this.#memory -= stream.memory;
    }
  }

  change(stream: LiveStream, change: (stream: LiveStream) => void): void {
    const before = stream.memory;
    try {
      change(stream);
    } finally {
      this.#memory += stream.memory - before;
    }
  }

  show(stream: LiveStream, event: PlacedEvent): void {
    const before = stream.memory;
    stream.showEvent(event);
    this.#memory += stream.memory - before;
  }

  markDirty(stream: LiveStream): void {
    if (stream.isDirty) return;
    stream.isDirty = true;
    this.#dirty.push(stream);
  }

  /**
   * Loads the active streams. Also loads the streams whose logs were in the WAL, because the
   * database may lack their rows. `replayed` contains the numbers of these logs. Must be called
   * after the replay of the WAL. The idle time of all producers starts at this call. A stream that
   * cannot be read is reported and left out.
   */
  load(replayed: ReadonlySet<number>, onError: (error: Error, what: string) => void): void {
    for (const number of new Set([...this.#rows.active(), ...replayed]))
      try {
        const stream = this.#load(number);
        if (stream !== undefined && replayed.has(number)) this.markDirty(stream);
      } catch (error) {
        onError(error as Error, "Could not load a stream, so it accepts no further events");
      }
  }

  /** Returns `undefined` if the log or the message has been removed. */
  #load(number: number): LiveStream | undefined {
    const log = this.#rows.logOf(number);
    const message = log && this.#rows.messageOf(log);
    if (log === undefined || message === undefined) return undefined;
    const stream = this.add(this.#memtable.channel(message.key), message, log);
    try {
      this.change(stream, () => this.#rows.restore(stream, log));
    } catch (error) {
      this.remove(stream);
      throw error;
    }
    return stream;
  }

  startFlush() {
    const streams = this.#dirty.filter(({ isDirty }) => isDirty);
    for (const stream of streams) stream.flushing = stream.shown;
    const rows = this.#rows;
    return {
      /** Puts the streams. Yields after each stream and must be advanced inside `commit`. */
      *puts(): Generator<void> {
        for (const stream of streams) {
          rows.put(stream);
          yield;
        }
      },
      finish: () => this.#finishFlush(streams),
    };
  }

  #finishFlush(streams: readonly LiveStream[]): void {
    for (const stream of streams) {
      stream.isStoredActive = true;
      if (stream.shown === stream.flushing) stream.isDirty = false;
    }
    this.#removeAll(streams.filter((stream) => stream.isEndedBefore(stream.flushing)));
    this.#dirty = this.#dirty.filter(({ isDirty }) => isDirty);
  }
}
