// The active streams this client follows: snapshots replace, events are applied by their index, a
// gap is resynced. State: those streams, and the events buffered during a resync. It resyncs all of
// them after a reconnect, and silent ones periodically: an end may be lost or not be for this user.

import {
  type ChannelEvent,
  type ChannelRef,
  STREAM_END,
  type StreamSnapshot,
} from "../broker/model.ts";
import { deferred } from "../lib/deferred.ts";
import type { ReceivedEvent, Stream } from "./api.ts";
import type { Ask } from "./connection.ts";
import { isLost, JindouError } from "./errors.ts";
import { LiveStream, type StreamFor } from "./live-stream.ts";
import { messageKey } from "./messages.ts";
import { Timer } from "./waiting.ts";

interface StreamsParts {
  readonly uid: string;
  /** For requests of the app. */
  readonly call: Ask;
  /** For requests of the client itself; retries what fails temporarily. */
  readonly ask: Ask;
  /** The client follows another active stream. */
  onStream(stream: Stream): void;
  /** A custom or a tool-call event. */
  onEvent(event: ReceivedEvent): void;
}

interface Tracked {
  readonly stream: LiveStream;
  /** A snapshot was received, or the start. */
  isKnown: boolean;
  /** An event was received since the last sweep. */
  isFresh: boolean;
  /** Events received during a resync; undefined: none is under way. */
  buffer: ChannelEvent[] | undefined;
}

/** Beyond that the stream tracked longest fails. */
const MAX_TRACKED = 1000;
/** Beyond that a resync is repeated instead. */
const MAX_BUFFERED = 1000;
/** A silent stream is resynced after 30 to 75 s, jitter included. */
const SWEEP_MS = 30_000;

export class Streams {
  readonly #parts: StreamsParts;
  readonly #tracked = new Map<string, Tracked>();
  /** The app's requests for streams that are not known yet. */
  readonly #asked = new Map<string, Promise<Stream>>();
  readonly #sweep = new Timer(() => this.#sweepNow());

  constructor(parts: StreamsParts) {
    this.#parts = parts;
  }

  /** The stream that a message starts, if any. */
  readonly ofMessage: StreamFor = (channel, { stream }) => stream && this.snapshot(channel, stream);

  /** A snapshot, pushed or in a message or a reply. */
  snapshot(channel: ChannelRef, snapshot: StreamSnapshot): Stream {
    const { clientMsgNo, state } = snapshot;
    const found = this.#tracked.get(this.#keyOf(channel, clientMsgNo));
    if (found !== undefined) return this.#replace(found, snapshot);
    if (state === "active") return this.#replace(this.#track(channel, clientMsgNo), snapshot);
    const ended = this.#make(channel, clientMsgNo);
    ended.replace(snapshot);
    return ended;
  }

  event(channel: ChannelRef, event: ChannelEvent): void {
    const { clientMsgNo, stream: place, type } = event;
    if (place === undefined) return this.#emit(channel, event, undefined);
    const found = this.#tracked.get(this.#keyOf(channel, clientMsgNo));
    if (found !== undefined) return this.#apply(found, event);
    if (type === STREAM_END) return; // of a stream that is not followed
    this.#apply(this.#track(channel, clientMsgNo), event);
  }

  /** Rejects with `stream_unknown` and other refusals of the server, `timeout`, `closed`. */
  async of(channel: ChannelRef, clientMsgNo: string): Promise<Stream> {
    const key = this.#keyOf(channel, clientMsgNo);
    const found = this.#tracked.get(key);
    if (found?.isKnown) return found.stream;
    const asked = this.#asked.get(key) ?? this.#ask(channel, clientMsgNo);
    this.#asked.set(key, asked);
    try {
      return await asked;
    } finally {
      this.#asked.delete(key);
    }
  }

  /** A new connection is open. */
  opened(): void {
    this.#resyncAll(() => true);
  }

  lost(): void {
    this.#sweep.stop();
  }

  close(error: JindouError): void {
    this.lost();
    for (const tracked of this.#tracked.values()) this.#fail(tracked, error);
  }

  #sweepNow(): void {
    this.#resyncAll(({ isFresh }) => !isFresh);
    for (const tracked of this.#tracked.values()) tracked.isFresh = false;
  }

  #resyncAll(isDue: (tracked: Tracked) => boolean): void {
    for (const tracked of this.#tracked.values())
      if (tracked.buffer === undefined && isDue(tracked)) void this.#resync(tracked);
    this.#sweep.start(SWEEP_MS * (1 + Math.random() / 4));
  }

  #ask(channel: ChannelRef, clientMsgNo: string): Promise<Stream> {
    const { promise, resolve, reject } = deferred<Stream>();
    this.#parts
      .call({ kind: "stream", channel, clientMsgNo }, ({ snapshot }) =>
        resolve(this.snapshot(channel, snapshot)),
      )
      .catch(reject);
    return promise;
  }

  #apply(tracked: Tracked, event: ChannelEvent): void {
    const { stream, buffer } = tracked;
    tracked.isFresh = true;
    if (buffer !== undefined) {
      if (buffer.length <= MAX_BUFFERED) buffer.push(event);
      return;
    }
    const { notes } = stream;
    const applied = stream.append(event);
    if (applied === "gap") return void this.#resync(tracked, event);
    if (applied === "old") return;
    this.#announce(tracked);
    if (stream.notes !== notes) this.#emit(stream.channel, event, stream);
    this.#forgetEnded(tracked);
  }

  /** Asks for a snapshot; events that arrive meanwhile are buffered. */
  async #resync(tracked: Tracked, first?: ChannelEvent): Promise<void> {
    const { channel, clientMsgNo } = tracked.stream;
    tracked.buffer = first === undefined ? [] : [first];
    try {
      const request = { kind: "stream", channel, clientMsgNo } as const;
      await this.#parts.ask(request, ({ snapshot }) => this.#resynced(tracked, snapshot));
    } catch (error) {
      tracked.buffer = undefined;
      // the next connection asks again; `ask` rejects with nothing else
      if (!isLost(error)) this.#fail(tracked, error as JindouError);
    }
  }

  #resynced(tracked: Tracked, snapshot: StreamSnapshot): void {
    const buffered = tracked.buffer ?? [];
    tracked.buffer = undefined;
    this.#replace(tracked, snapshot);
    if (buffered.length > MAX_BUFFERED) return void this.#resync(tracked);
    for (const event of buffered) this.#apply(tracked, event);
  }

  #replace(tracked: Tracked, snapshot: StreamSnapshot): Stream {
    const { stream } = tracked;
    const { channel, fromUid, clientMsgNo } = stream;
    const notes = stream.replace(snapshot);
    if (tracked.isKnown)
      for (const note of notes) this.#emit(channel, { fromUid, clientMsgNo, ...note }, stream);
    this.#announce(tracked);
    this.#forgetEnded(tracked);
    return stream;
  }

  #announce(tracked: Tracked): void {
    if (tracked.isKnown) return;
    tracked.isKnown = true;
    if (tracked.stream.state === "active") this.#parts.onStream(tracked.stream);
  }

  #emit(
    channel: ChannelRef,
    event: Omit<ReceivedEvent, "channel" | "stream">,
    stream: Stream | undefined,
  ): void {
    const { fromUid, clientMsgNo, eventId, type, data, timestampMs } = event;
    this.#parts.onEvent({
      channel,
      fromUid,
      clientMsgNo,
      eventId,
      type,
      data,
      timestampMs,
      stream,
    });
  }

  #track(channel: ChannelRef, clientMsgNo: string): Tracked {
    const [oldest] = this.#tracked.values();
    if (oldest !== undefined && this.#tracked.size >= MAX_TRACKED)
      this.#fail(oldest, new JindouError("overloaded"));
    const tracked: Tracked = {
      stream: this.#make(channel, clientMsgNo),
      isKnown: false,
      isFresh: true,
      buffer: undefined,
    };
    this.#tracked.set(this.#keyOf(channel, clientMsgNo), tracked);
    return tracked;
  }

  #make(channel: ChannelRef, clientMsgNo: string): LiveStream {
    return new LiveStream(channel, clientMsgNo, async () => {
      const request = { kind: "cancel", channel, clientMsgNo } as const;
      const { state } = await this.#parts.call(request);
      return state;
    });
  }

  #fail(tracked: Tracked, error: JindouError): void {
    tracked.stream.fail(error);
    this.#forget(tracked);
  }

  #forgetEnded(tracked: Tracked): void {
    if (tracked.stream.state !== "active") this.#forget(tracked);
  }

  #forget(tracked: Tracked): void {
    const { channel, clientMsgNo } = tracked.stream;
    const key = this.#keyOf(channel, clientMsgNo);
    if (this.#tracked.get(key) === tracked) this.#tracked.delete(key);
  }

  #keyOf(channel: ChannelRef, clientMsgNo: string): string {
    return messageKey(this.#parts.uid, channel, clientMsgNo);
  }
}
