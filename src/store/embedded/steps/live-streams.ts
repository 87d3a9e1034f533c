// The streams in memory: every active one, and those that ended and are not yet wholly in the database. Owns the map of them, the sum of
// the memory they take, and which of them have events the database does not have. Must never drop one before the database has all of it.

import { BrokerError } from "../../../broker/errors.ts";
import { type ChannelKey, STREAM_END } from "../../../broker/model.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import type { Memtable, MemtableChannel } from "../engine/memtable.ts";
import { eventBytes, LiveStream, type StreamHead } from "./live-stream.ts";
import type { StreamEvent } from "./stream-record.ts";

interface StreamBounds {
  /** What one stream's events add to what a viewer who joins is sent. */
  readonly maxStreamBytes: number;
  /** Memory of all that are held. */
  readonly maxActiveBytes: number;
}

export class LiveStreams {
  readonly #memtable: Memtable;
  readonly #bounds: StreamBounds;
  readonly #byChannel = new Map<ChannelKey, LiveStream[]>();
  /** Of personal channels, by each of the two users. */
  readonly #byUser = new Map<string, Set<LiveStream>>();
  #dirty = new Set<LiveStream>();
  #memory = 0;

  constructor(memtable: Memtable, bounds: StreamBounds) {
    this.#memtable = memtable;
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

  /** The stream of that name, settled or not. */
  find(key: ChannelKey, clientMsgNo: string): LiveStream | undefined {
    return this.#byChannel
      .get(key)
      ?.find((stream) => stream.head.clientMsgNo === clientMsgNo);
  }

  /** The stream whose message has that seq, settled or not. */
  at(key: ChannelKey, messageSeq: number): LiveStream | undefined {
    return this.#byChannel
      .get(key)
      ?.find((stream) => stream.head.messageSeq === messageSeq);
  }

  /** The channel's stream that takes events, settled or not. */
  running(key: ChannelKey): LiveStream | undefined {
    return this.#byChannel
      .get(key)
      ?.find((stream) => stream.ending === undefined);
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
   * Whether an event fits its stream, whose events count so much, and all others. An end gives room back: it is not refused for lack of it,
   * unless it brings data. Throws `too_large`, `overloaded`.
   */
  assertRoom(
    event: Pick<StreamEvent, "type" | "data" | "eventId">,
    held: number,
  ): void {
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

  /** The stream has settled events that the database does not have. */
  touch(stream: LiveStream): void {
    this.#dirty.add(stream);
  }

  /** Marks every settled event as being written to the database and returns their streams. After a failure it is simply called again. */
  startFlush(): LiveStream[] {
    const streams = [...this.#dirty];
    for (const stream of streams) stream.flushing = stream.shown;
    return streams;
  }

  /** Lets go of what the last `startFlush` marked: the database has it. */
  finishFlush(streams: readonly LiveStream[]): void {
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
