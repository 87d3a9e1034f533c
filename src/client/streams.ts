// The active streams in sight, each kept level with the server: snapshots replace, events follow by their index, a gap is asked for.
// State: those streams, and what came while the server was asked. After a reconnect it asks for every one that had not ended, and now and
// then for those of which nothing is heard: an end may be lost, or not be for this user any more.

import {
  type ChannelEvent,
  type ChannelRef,
  STREAM_END,
  type StreamSnapshot,
} from "../broker/model.ts";
import type { ReceivedEvent, Stream } from "./api.ts";
import type { Ask } from "./connection.ts";
import { isLost, JindouError } from "./errors.ts";
import { LiveStream, type StreamFor } from "./live-stream.ts";
import { messageKey } from "./messages.ts";
import { Timer } from "./waiting.ts";

export interface StreamsParts {
  readonly uid: string;
  /** For what the app asks. */
  readonly call: Ask;
  /** For what nobody waits for; repeats what fails for the moment. */
  readonly ask: Ask;
  /** An active stream came into sight. */
  appeared(stream: Stream): void;
  /** A custom event, or a tool call's. */
  told(event: ReceivedEvent): void;
}

interface Tracked {
  readonly stream: LiveStream;
  /** The server told how it stands. */
  isKnown: boolean;
  /** Something was heard of it since the last sweep. */
  isFresh: boolean;
  /** Events that came while the server is asked how it stands; undefined: it is not asked. */
  waiting: ChannelEvent[] | undefined;
}

/** Active streams followed at a time; the one longest in sight is given up for a new one. */
const MAX_TRACKED = 1000;
/** More than that is asked for again instead of kept. */
const MAX_WAITING = 1000;
/** Streams of which nothing was heard since the last sweep are asked for: after 30 to 75 s, as it is partly chance. */
const SWEEP_MS = 30_000;

export class Streams {
  readonly #parts: StreamsParts;
  readonly #tracked = new Map<string, Tracked>();
  /** What the app asked for and does not know yet. */
  readonly #asked = new Map<string, Promise<Stream>>();
  readonly #sweep = new Timer(() => this.#sweepNow());

  constructor(parts: StreamsParts) {
    this.#parts = parts;
  }

  /** The stream of a message; undefined: a plain one. */
  readonly ofMessage: StreamFor = (channel, { stream }) =>
    stream && this.snapshot(channel, stream);

  /** How a stream stands, by a push or with a message. */
  snapshot(channel: ChannelRef, snapshot: StreamSnapshot): Stream {
    const { clientMsgNo, state } = snapshot;
    const found = this.#tracked.get(this.#idOf(channel, clientMsgNo));
    if (found !== undefined) return this.#level(found, snapshot);
    if (state === "active")
      return this.#level(this.#track(channel, clientMsgNo), snapshot);
    const ended = this.#make(channel, clientMsgNo);
    ended.replace(snapshot);
    return ended;
  }

  event(channel: ChannelRef, event: ChannelEvent): void {
    const { clientMsgNo, stream: place, type } = event;
    if (place === undefined) return this.#tell(channel, event, undefined);
    const found = this.#tracked.get(this.#idOf(channel, clientMsgNo));
    if (found !== undefined) return this.#follow(found, event);
    if (type === STREAM_END) return; // nobody here knows it, and it is over
    this.#follow(this.#track(channel, clientMsgNo), event);
  }

  /** Rejects with `stream_unknown` and what else the server refuses, `timeout`, `closed`. */
  async of(channel: ChannelRef, clientMsgNo: string): Promise<Stream> {
    const id = this.#idOf(channel, clientMsgNo);
    const found = this.#tracked.get(id);
    if (found?.isKnown) return found.stream;
    const asked = this.#asked.get(id) ?? this.#ask(channel, clientMsgNo);
    this.#asked.set(id, asked);
    try {
      return await asked;
    } finally {
      this.#asked.delete(id);
    }
  }

  /** A new connection is open. */
  opened(): void {
    this.#lookAt(() => true);
  }

  lost(): void {
    this.#sweep.stop();
  }

  close(error: JindouError): void {
    this.lost();
    for (const tracked of this.#tracked.values()) this.#fail(tracked, error);
  }

  #sweepNow(): void {
    this.#lookAt(({ isFresh }) => !isFresh);
    for (const tracked of this.#tracked.values()) tracked.isFresh = false;
  }

  #lookAt(isDue: (tracked: Tracked) => boolean): void {
    for (const tracked of this.#tracked.values())
      if (tracked.waiting === undefined && isDue(tracked))
        void this.#look(tracked);
    this.#sweep.start(SWEEP_MS * (1 + Math.random() / 4));
  }

  async #ask(channel: ChannelRef, clientMsgNo: string): Promise<Stream> {
    const request = { kind: "stream", channel, clientMsgNo } as const;
    let stream: Stream | undefined;
    const { snapshot } = await this.#parts.call(request, (reply) => {
      stream = this.snapshot(channel, reply.snapshot);
    });
    return stream ?? this.snapshot(channel, snapshot);
  }

  #follow(tracked: Tracked, event: ChannelEvent): void {
    const { stream, waiting } = tracked;
    tracked.isFresh = true;
    if (waiting !== undefined) {
      if (waiting.length <= MAX_WAITING) waiting.push(event);
      return;
    }
    const { notes } = stream;
    const verdict = stream.append(event);
    if (verdict === "gap") return void this.#look(tracked, event);
    if (verdict === "old") return;
    this.#appeared(tracked);
    if (stream.notes !== notes) this.#tell(stream.channel, event, stream);
    this.#forgetEnded(tracked);
  }

  /** Asks how it stands until there is an answer; what comes meanwhile waits. */
  async #look(tracked: Tracked, first?: ChannelEvent): Promise<void> {
    const { channel, clientMsgNo } = tracked.stream;
    tracked.waiting = first === undefined ? [] : [first];
    try {
      const request = { kind: "stream", channel, clientMsgNo } as const;
      await this.#parts.ask(request, ({ snapshot }) =>
        this.#answered(tracked, snapshot),
      );
    } catch (error) {
      tracked.waiting = undefined;
      if (!isLost(error)) this.#fail(tracked, error as JindouError); // `ask` rejects with nothing else
      // the next connection asks again
    }
  }

  #answered(tracked: Tracked, snapshot: StreamSnapshot): void {
    const waiting = tracked.waiting ?? [];
    tracked.waiting = undefined;
    this.#level(tracked, snapshot);
    if (waiting.length > MAX_WAITING) return void this.#look(tracked);
    for (const event of waiting) this.#follow(tracked, event);
  }

  #level(tracked: Tracked, snapshot: StreamSnapshot): Stream {
    const { stream } = tracked;
    const { channel, fromUid, clientMsgNo } = stream;
    const notes = stream.replace(snapshot);
    if (tracked.isKnown)
      for (const note of notes)
        this.#tell(channel, { fromUid, clientMsgNo, ...note }, stream);
    this.#appeared(tracked);
    this.#forgetEnded(tracked);
    return stream;
  }

  #appeared(tracked: Tracked): void {
    if (tracked.isKnown) return;
    tracked.isKnown = true;
    if (tracked.stream.state === "active") this.#parts.appeared(tracked.stream);
  }

  #tell(
    channel: ChannelRef,
    event: Omit<ReceivedEvent, "channel" | "stream">,
    stream: Stream | undefined,
  ): void {
    const { fromUid, clientMsgNo, eventId, type, data, timestampMs } = event;
    const what = { fromUid, clientMsgNo, eventId, type, data, timestampMs };
    this.#parts.told({ ...what, channel, stream });
  }

  #track(channel: ChannelRef, clientMsgNo: string): Tracked {
    const [oldest] = this.#tracked.values();
    if (oldest !== undefined && this.#tracked.size >= MAX_TRACKED)
      this.#fail(oldest, new JindouError("overloaded"));
    const tracked: Tracked = {
      stream: this.#make(channel, clientMsgNo),
      isKnown: false,
      isFresh: true,
      waiting: undefined,
    };
    this.#tracked.set(this.#idOf(channel, clientMsgNo), tracked);
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
    if (this.#isTracked(tracked))
      this.#tracked.delete(this.#idOf(channel, clientMsgNo));
  }

  #isTracked({ stream }: Tracked): boolean {
    const id = this.#idOf(stream.channel, stream.clientMsgNo);
    return this.#tracked.get(id)?.stream === stream;
  }

  #idOf(channel: ChannelRef, clientMsgNo: string): string {
    return messageKey(this.#parts.uid, channel, clientMsgNo);
  }
}
