// A viewer of streams: one user's device on the native protocol that follows one channel, drops and
// comes back, stops reading and goes on. State: the socket, the newest seq of the channel, a view
// per stream, the first fault. It never repairs what comes wrong.

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
const ASK_REF = 2;
const PAD_REF = 3;

export class StreamViewer {
  readonly name: string;
  readonly uid: string;
  readonly channel: ChannelRef;
  /** Reads about so many bytes a second; undefined: as fast as they come. */
  bytesPerSecond: number | undefined;
  readonly #waiters = new Waiters(TIMEOUT_MS);
  readonly #views = new Map<string, StrictView>();
  #socket: WebSocket | undefined;
  #status: "away" | "connecting" | "open" = "away";
  /** Of this connection: the streams whose place in it was told. */
  #anchored = new Set<string>();
  #asked: string | undefined;
  #lastSeq = 0;
  #bytesThisStep = 0;
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

  /** Resolves when the session is open, or the broker is not there. */
  async connect(port: number): Promise<void> {
    const socket = new WebSocket(`ws://127.0.0.1:${port}`, NATIVE_SUBPROTOCOL, {
      perMessageDeflate: false,
    });
    this.#socket = socket;
    this.#status = "connecting";
    this.#anchored = new Set();
    this.#asked = undefined;
    socket.on("open", () => this.#sayConnect());
    socket.on("message", (data: Buffer) => {
      if (socket === this.#socket) this.#received(data);
    });
    socket.on("error", () => undefined); // the close that follows tells
    socket.on("close", () => {
      if (socket === this.#socket) this.#status = "away";
      this.#waiters.check();
    });
    await this.until("a session", () => this.#status !== "connecting");
  }

  /** Resolves when `holds()`, tried after every frame; rejects on a fault or after the time-out. */
  async until(what: string, holds: () => boolean): Promise<void> {
    await this.#waiters.until(`${what} (${this.name})`, () => {
      if (this.#fault !== undefined) throw this.#fault;
      return holds();
    });
  }

  /** Asks how a stream stands; resolves when that was told, or the connection is gone. */
  async ask(clientMsgNo: string): Promise<void> {
    if (!this.isOpen) return;
    this.#asked = clientMsgNo;
    const { channel } = this;
    this.#send({ kind: "stream", ref: ASK_REF, channel, clientMsgNo });
    await this.until("an answer", () => !this.#asked || !this.isOpen);
  }

  /** Resolves when it has the end of a stream, or the connection is gone. */
  ended(clientMsgNo: string): Promise<void> {
    const isEnded = () => this.view(clientMsgNo)?.isEnded === true;
    return this.until("the end", () => isEnded() || !this.isOpen);
  }

  /** Breaks the connection off. */
  drop(): void {
    this.#status = "away";
    this.#socket?.terminate();
    this.#socket = undefined;
  }

  /** Stops reading: the buffers between here and the server fill up. */
  pause(): void {
    this.#socket?.pause();
  }

  resume(): void {
    this.#socket?.resume();
  }

  /** Asks for so many pages of a padded channel, to have much to read or to leave unread. */
  pad(channel: ChannelRef, pages: number): void {
    for (let page = 0; page < pages; page++)
      this.#send({
        ...{ kind: "history", ref: PAD_REF, channel },
        ...{ fromSeq: 1, toSeq: 0, limit: 1, reverse: false },
      });
  }

  #sayConnect(): void {
    const { uid, channel } = this;
    const lastSeq = this.#lastSeq;
    this.#send({
      kind: "connect",
      session: "",
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

  #received(data: Buffer): void {
    try {
      this.#take(decodeServerFrame(data, this.uid));
    } catch (error) {
      this.#fault ??= new Error(`${this.name}: ${error}`, { cause: error });
    }
    this.#waiters.check();
    this.#pace(data.length);
  }

  #pace(bytes: number): void {
    if (this.bytesPerSecond === undefined) return;
    this.#bytesThisStep += bytes;
    const waitMs = (this.#bytesThisStep / this.bytesPerSecond) * 1000;
    if (waitMs < PACE_MS) return;
    this.#bytesThisStep = 0;
    this.pause();
    setTimeout(() => this.resume(), waitMs);
  }

  #take(frame: ServerFrame): void {
    switch (frame.kind) {
      case "connack":
        this.#status = "open";
        return;
      case "error":
        throw new Error(`${frame.code}: ${frame.message}`);
      case "message":
        return this.#takeMessage(frame.message);
      case "messages":
        for (const message of frame.messages) this.#takeMessage(message);
        this.#lastSeq = Math.max(this.#lastSeq, frame.throughSeq);
        return;
      case "stream":
        if (!("ref" in frame)) return this.#viewOf(frame.snapshot).replace(frame.snapshot);
        this.#asked = undefined;
        return this.#viewOf(frame.snapshot).answer(frame.snapshot);
      case "event": {
        const { stream } = frame.event;
        if (stream !== undefined) this.#takeEvent({ ...frame.event, stream });
        return;
      }
    }
  }

  #takeMessage(message: Message): void {
    this.#lastSeq = Math.max(this.#lastSeq, message.messageSeq);
    const { stream } = message;
    if (stream !== undefined) this.#viewOf(stream).answer(stream);
  }

  #viewOf({ clientMsgNo, messageSeq }: StreamSnapshot): StrictView {
    const view = this.view(clientMsgNo) ?? new StrictView(clientMsgNo);
    this.#views.set(clientMsgNo, view);
    this.#anchored.add(clientMsgNo);
    this.#lastSeq = Math.max(this.#lastSeq, messageSeq);
    return view;
  }

  #takeEvent(event: ChannelEvent & { readonly stream: StreamPlace }): void {
    const view = this.view(event.clientMsgNo);
    if (view === undefined || !this.#anchored.has(event.clientMsgNo))
      throw new Error(`event ${event.stream.index} of a stream not told of`);
    view.apply(event);
  }
}
