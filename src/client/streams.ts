// The active streams that the client follows. A snapshot replaces a stream, and events are applied
// in the order of their index. After a gap, a new snapshot is requested (resync). All streams are
// resynced after a reconnect. Silent streams are also resynced periodically, because the end of a
// stream can get lost or may not be sent to this user.

import {
  type ChannelEvent,
  type ChannelRef,
  channelKey,
  STREAM_END,
  type StreamSnapshot,
  streamLogPath,
} from "../broker/model.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { LiveStream, ReceivedEvent, Stream, StreamTarget } from "./api.ts";
import type { RequestFunction } from "./connection.ts";
import { isConnectionLost, JindouError } from "./errors.ts";
import { FollowedText } from "./live-stream.ts";
import type { StreamFor } from "./messages.ts";
import { checkedChannel } from "./options.ts";
import { Timer } from "./waiting.ts";

interface StreamsPorts {
  readonly uid: string;
  readonly call: RequestFunction;
  readonly ask: RequestFunction;
  onStream(stream: Stream): void;
  onEvent(event: ReceivedEvent): void;
  callListener(listener: () => unknown): void;
}

interface FollowedStream {
  readonly stream: FollowedText;
  isAnnounced: boolean;
  isFresh: boolean;
  buffer: ChannelEvent[] | undefined;
}

const MAX_FOLLOWED = 1000;
const MAX_BUFFERED = 1000;
const MAX_ENDS = 100;
/**
 * Minimum time between two sweeps. A sweep resyncs the streams that were silent since the previous
 * sweep. With jitter, a stream is resynced 30 to 75 s after its last event.
 */
const SWEEP_MS = 30_000;

export class Streams {
  readonly #ports: StreamsPorts;
  /** Followed streams by log path. */
  readonly #followed = new Map<string, FollowedStream>();
  /**
   * Log paths of the streams that ended most recently. The reply to an earlier read may arrive after the end
   * and still show such a stream as active.
   */
  readonly #ends = new BoundedMap<string, true>(MAX_ENDS);
  readonly #sweep = new Timer(() => this.#sweepNow());

  constructor(ports: StreamsPorts) {
    this.#ports = ports;
  }

  readonly startedBy: StreamFor = (channel, { stream }) => stream && this.snapshot(channel, stream);

  snapshot(channel: ChannelRef, snapshot: StreamSnapshot): Stream {
    const { clientMsgNo, state } = snapshot;
    const log = this.#logOf(channel, clientMsgNo);
    const followed = this.#followed.get(log);
    if (followed !== undefined) return this.#replace(followed, snapshot);
    if (state === "active") {
      const started = this.#follow(channel, clientMsgNo);
      this.#replace(started, snapshot);
      if (this.#ends.get(log)) void this.#resync(started);
      return started.stream.snapshot();
    }
    const ended = this.#create(channel, clientMsgNo);
    ended.replace(snapshot);
    return ended.snapshot();
  }

  event(channel: ChannelRef, event: ChannelEvent): void {
    const { clientMsgNo, stream: position, type } = event;
    if (position === undefined) return this.#emit(channel, event, undefined);
    const log = this.#logOf(channel, clientMsgNo);
    if (type === STREAM_END) this.#ends.set(log, true);
    const followed = this.#followed.get(log);
    if (followed !== undefined) return this.#apply(followed, event);
    if (type === STREAM_END) return; // the event ends a stream that the client does not follow
    this.#apply(this.#follow(channel, clientMsgNo), event);
  }

  /**
   * Follows a stream. Sends no request if the stream is already followed, or if `target` contains
   * its end. Throws `bad_option` if the channel is invalid.
   */
  open(target: StreamTarget): LiveStream {
    const { clientMsgNo } = target;
    const channel = checkedChannel(target.channel);
    const followed = this.#followed.get(this.#logOf(channel, clientMsgNo));
    if (followed !== undefined) return followed.stream;
    const data = target.stream ?? (target as Partial<Stream>);
    if ((data.state ?? "active") !== "active") {
      const ended = this.#create(channel, clientMsgNo);
      ended.replace(data as Stream); // only a `Stream` has a state
      return ended;
    }
    return this.#lookUp(channel, clientMsgNo);
  }

  opened(): void {
    this.#resyncAll(() => true);
  }

  lost(): void {
    this.#sweep.stop();
  }

  close(error: JindouError): void {
    this.lost();
    for (const followed of this.#followed.values()) this.#fail(followed, error);
  }

  #sweepNow(): void {
    this.#resyncAll(({ isFresh }) => !isFresh);
    for (const followed of this.#followed.values()) followed.isFresh = false;
  }

  #resyncAll(isDue: (followed: FollowedStream) => boolean): void {
    for (const followed of this.#followed.values())
      if (followed.buffer === undefined && isDue(followed)) void this.#resync(followed);
    this.#sweep.start(SWEEP_MS * (1 + Math.random() / 4));
  }

  #lookUp(channel: ChannelRef, clientMsgNo: string): LiveStream {
    const followed = this.#follow(channel, clientMsgNo);
    followed.buffer = [];
    this.#ports
      .call({ kind: "stream", channel, clientMsgNo }, ({ snapshot }) =>
        this.#resynced(followed, snapshot),
      )
      .catch((error: JindouError) => this.#fail(followed, error));
    return followed.stream;
  }

  #apply(followed: FollowedStream, event: ChannelEvent): void {
    const { stream, buffer } = followed;
    followed.isFresh = true;
    if (buffer !== undefined) {
      if (buffer.length <= MAX_BUFFERED) buffer.push(event);
      return;
    }
    const { notes, channel } = stream.snapshot();
    const applied = stream.append(event);
    if (applied === "gap") return void this.#resync(followed);
    if (applied === "old") return;
    this.#announce(followed);
    if (stream.snapshot().notes !== notes) this.#emit(channel, event, stream.snapshot());
    this.#forgetEnded(followed);
  }

  /**
   * Requests a new snapshot. The event that revealed a gap is dropped, because the snapshot
   * contains it. If the client kept the event and a fail-over had lost it on the server, the gap
   * would never close.
   */
  async #resync(followed: FollowedStream): Promise<void> {
    const { channel, clientMsgNo } = followed.stream.snapshot();
    followed.buffer = [];
    try {
      const request = { kind: "stream", channel, clientMsgNo } as const;
      await this.#ports.ask(request, ({ snapshot }) => this.#resynced(followed, snapshot));
    } catch (error) {
      followed.buffer = undefined;
      // the next connection starts the resync again; `ask` rejects only with JindouError
      if (!isConnectionLost(error)) this.#fail(followed, error as JindouError);
    }
  }

  #resynced(followed: FollowedStream, snapshot: StreamSnapshot): void {
    const buffered = followed.buffer ?? [];
    followed.buffer = undefined;
    this.#replace(followed, snapshot);
    if (buffered.length > MAX_BUFFERED) return void this.#resync(followed);
    for (const event of buffered) this.#apply(followed, event);
  }

  #replace(followed: FollowedStream, snapshot: StreamSnapshot): Stream {
    const notes = followed.stream.replace(snapshot);
    const stream = followed.stream.snapshot();
    const { channel, fromUid, clientMsgNo } = stream;
    if (followed.isAnnounced)
      for (const note of notes) this.#emit(channel, { fromUid, clientMsgNo, ...note }, stream);
    this.#announce(followed);
    this.#forgetEnded(followed);
    return stream;
  }

  #announce(followed: FollowedStream): void {
    if (followed.isAnnounced) return;
    followed.isAnnounced = true;
    const stream = followed.stream.snapshot();
    if (stream.state === "active") this.#ports.onStream(stream);
  }

  #emit(
    channel: ChannelRef,
    event: Omit<ReceivedEvent, "channel" | "stream">,
    stream: Stream | undefined,
  ): void {
    const { fromUid, clientMsgNo, eventId, type, data, timestampMs } = event;
    this.#ports.onEvent({
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

  #follow(channel: ChannelRef, clientMsgNo: string): FollowedStream {
    const [oldest] = this.#followed.values();
    if (oldest !== undefined && this.#followed.size >= MAX_FOLLOWED)
      this.#fail(
        oldest,
        new JindouError("overloaded", { message: `More than ${MAX_FOLLOWED} streams are active` }),
      );
    const stream = this.#create(channel, clientMsgNo);
    const followed: FollowedStream = {
      stream,
      isAnnounced: false,
      isFresh: true,
      buffer: undefined,
    };
    this.#followed.set(stream.snapshot().log, followed);
    return followed;
  }

  #create({ id, type }: ChannelRef, clientMsgNo: string): FollowedText {
    const channel = { id, type };
    const log = this.#logOf(channel, clientMsgNo);
    return new FollowedText({ channel, clientMsgNo, log }, this.#ports.callListener);
  }

  #fail(followed: FollowedStream, error: JindouError): void {
    followed.stream.fail(error);
    this.#forget(followed);
  }

  #forgetEnded(followed: FollowedStream): void {
    if (followed.stream.snapshot().state !== "active") this.#forget(followed);
  }

  #forget(followed: FollowedStream): void {
    const { log } = followed.stream.snapshot();
    if (this.#followed.get(log) === followed) this.#followed.delete(log);
  }

  #logOf(channel: ChannelRef, clientMsgNo: string): string {
    return streamLogPath(channelKey(channel, this.#ports.uid), clientMsgNo);
  }
}
