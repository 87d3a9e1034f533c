// A viewer of streams: a device on the native protocol that follows one channel, disconnects and
// reconnects, and stops reading and resumes. Keeps a view of each stream, the channel's newest seq,
// and the first error. The viewer never corrects an error.

import { WebSocket } from "ws";
import type {
  ChannelEvent,
  ChannelRef,
  Message,
  StreamPlace,
  StreamSnapshot,
} from "../../src/broker/model.ts";
import { decodeServerFrame, type ServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { NATIVE_SUBPROTOCOL, NATIVE_VERSION } from "../../src/protocol/native/ops.ts";
import { Waiters } from "../support/waiters.ts";
import { StrictView } from "./strict-view.ts";

const TIMEOUT_MS = 120_000;
const PACE_MS = 20;
const CONNECT_REF = 1;
const STREAM_REF = 2;
const PAD_REF = 3;

export class StreamViewer {
  readonly name: string;
  readonly uid: string;
  readonly channel: ChannelRef;
  /** Approximate reading speed. `undefined` means no limit. */
  bytesPerSecond: number | undefined;
  readonly #waiters = new Waiters(TIMEOUT_MS);
  readonly #views = new Map<string, StrictView>();
  #socket: WebSocket | undefined;
  #status: "away" | "connecting" | "open" = "away";
  /** Streams whose position was received on this connection. */
  #positioned = new Set<string>();
  /** Stream whose requested snapshot has not arrived. */
  #requested: string | undefined;
  #lastSeq = 0;
  #bytesSincePause = 0;
  #fault: Error | undefined;

  constructor(name: string, uid: string, channel: ChannelRef) {
    this.name = name;
    this.uid = uid;
    this.channel = channel;
  }

  get isOpen(): boolean {
    return this.#status === "open";
  }

  get fault(): Error | undefined {
    return this.#fault;
  }

  view(clientMsgNo: string): StrictView | undefined {
    return this.#views.get(clientMsgNo);
  }

  /** Resolves when the session is open or the broker is unreachable. */
  async connect(port: number): Promise<void> {
    const socket = new WebSocket(`ws://127.0.0.1:${port}`, NATIVE_SUBPROTOCOL, {
      perMessageDeflate: false,
    });
    this.#socket = socket;
    this.#status = "connecting";
    this.#positioned = new Set();
    this.#requested = undefined;
    socket.on("open", () => this.#sendConnect());
    socket.on("message", (data: Buffer) => {
      if (socket === this.#socket) this.#receive(data);
    });
    socket.on("error", () => undefined); // a `close` event always follows
    socket.on("close", () => {
      if (socket === this.#socket) this.#status = "away";
      this.#waiters.check();
    });
    await this.until("a session", () => this.#status !== "connecting");
  }

  /**
   * Resolves when `holds()` returns true. `holds` is called after every frame. Rejects on an error
   * and after the time-out.
   */
  async until(condition: string, holds: () => boolean): Promise<void> {
    await this.#waiters.until(`${condition} (${this.name})`, () => {
      if (this.#fault !== undefined) throw this.#fault;
      return holds();
    });
  }

  /**
   * Requests the snapshot of a stream. Resolves when it has arrived or the connection has ended.
   */
  async requestStream(clientMsgNo: string): Promise<void> {
    if (!this.isOpen) return;
    this.#requested = clientMsgNo;
    const { channel } = this;
    this.#send({ kind: "stream", ref: STREAM_REF, channel, clientMsgNo });
    await this.until("the snapshot", () => !this.#requested || !this.isOpen);
  }

  /** Resolves when the viewer has the end of the stream or the connection has ended. */
  ended(clientMsgNo: string): Promise<void> {
    const isEnded = () => this.view(clientMsgNo)?.isEnded === true;
    return this.until("the end", () => isEnded() || !this.isOpen);
  }

  /** Ends the connection. */
  drop(): void {
    this.#status = "away";
    this.#socket?.terminate();
    this.#socket = undefined;
  }

  /** Stops reading, so that the buffers between the viewer and the server fill up. */
  pause(): void {
    this.#socket?.pause();
  }

  resume(): void {
    this.#socket?.resume();
  }

  /** Requests `pages` pages of a padded channel, so that the viewer has much to read. */
  pad(channel: ChannelRef, pages: number): void {
    for (let page = 0; page < pages; page++)
      this.#send({
        ...{ kind: "history", ref: PAD_REF, channel },
        ...{ fromSeq: 1, toSeq: 0, limit: 1, reverse: false },
      });
  }

  #sendConnect(): void {
    const { uid, channel } = this;
    const lastSeq = this.#lastSeq;
    this.#send({
      kind: "connect",
      sessionName: "",
      ref: CONNECT_REF,
      version: NATIVE_VERSION,
      uid,
      token: "",
      flag: 0,
      deviceId: "",
      level: undefined,
      resume: lastSeq > 0 ? [{ channel, lastSeq }] : [],
    });
  }

  #send(operation: Parameters<typeof encodeOperation>[0]): void {
    this.#socket?.send(encodeOperation(operation));
  }

  #receive(data: Buffer): void {
    try {
      this.#handle(decodeServerFrame(data, this.uid));
    } catch (error) {
      this.#fault ??= new Error(`${this.name}: ${error}`, { cause: error });
    }
    this.#waiters.check();
    this.#pace(data.length);
  }

  #pace(bytes: number): void {
    if (this.bytesPerSecond === undefined) return;
    this.#bytesSincePause += bytes;
    const waitMs = (this.#bytesSincePause / this.bytesPerSecond) * 1000;
    if (waitMs < PACE_MS) return;
    this.#bytesSincePause = 0;
    this.pause();
    setTimeout(() => this.resume(), waitMs);
  }

  #handle(frame: ServerFrame): void {
    switch (frame.kind) {
      case "connack":
        this.#status = "open";
        return;
      case "error":
        throw new Error(`${frame.code}: ${frame.message}`);
      case "message":
        return this.#handleMessage(frame.message);
      case "messages":
        for (const message of frame.messages) this.#handleMessage(message);
        this.#lastSeq = Math.max(this.#lastSeq, frame.throughSeq);
        return;
      case "stream":
        if (!("ref" in frame)) return this.#viewOf(frame.snapshot).replace(frame.snapshot);
        this.#requested = undefined;
        return this.#viewOf(frame.snapshot).applyResponse(frame.snapshot);
      case "event": {
        const { stream } = frame.event;
        if (stream !== undefined) this.#handleEvent({ ...frame.event, stream });
        return;
      }
    }
  }

  #handleMessage(message: Message): void {
    this.#lastSeq = Math.max(this.#lastSeq, message.messageSeq);
    const { stream } = message;
    if (stream !== undefined) this.#viewOf(stream).applyResponse(stream);
  }

  #viewOf({ clientMsgNo, messageSeq }: StreamSnapshot): StrictView {
    const view = this.view(clientMsgNo) ?? new StrictView(clientMsgNo);
    this.#views.set(clientMsgNo, view);
    this.#positioned.add(clientMsgNo);
    this.#lastSeq = Math.max(this.#lastSeq, messageSeq);
    return view;
  }

  #handleEvent(event: ChannelEvent & { readonly stream: StreamPlace }): void {
    const view = this.view(event.clientMsgNo);
    if (view === undefined || !this.#positioned.has(event.clientMsgNo))
      throw new Error(`event ${event.stream.index} arrived before the snapshot of its stream`);
    view.apply(event);
  }
}
