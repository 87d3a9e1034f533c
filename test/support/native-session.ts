// A small real client of the native protocol over one `ws` socket, for tests. It keeps everything
// it was pushed, in order, and what streams come to, never reconnects, and fails loudly: what a
// server should not send ends the connection and rejects whoever waits.

import { WebSocket } from "ws";
import type {
  ChannelEvent,
  ChannelRef,
  DeviceFlag,
  DeviceLevel,
  Message,
} from "../../src/broker/model.ts";
import type { ServerFrame } from "../../src/protocol/native/client-decode.ts";
import { NATIVE_VERSION } from "../../src/protocol/native/ops.ts";
import type {
  ConversationChange,
  Operation,
  Push,
  Reply,
  ResumePoint,
} from "../../src/protocol/protocol.ts";
import {
  type HistoryOptions,
  historyRequest,
  type PayloadInput,
  type Request,
  type SendOptions,
  sendRequest,
} from "./native-requests.ts";
import { type StreamView, StreamViews } from "./stream-view.ts";
import { Waiters } from "./waiters.ts";
import { nativeWire, type Wire } from "./wire.ts";

/** Whom a client connects as, and how patient it is. */
export interface NativeSessionOptions {
  readonly uid: string;
  /** Default: empty. */
  readonly token?: string;
  /** Default: 0, app. */
  readonly flag?: DeviceFlag;
  readonly deviceId?: string;
  /** Of its uid. Default: the native one. */
  readonly wire?: Wire;
  readonly level?: DeviceLevel;
  readonly resume?: readonly ResumePoint[];
  /** The session it continues. Default: none, it logs in. */
  readonly session?: string;
  /** What is held of streams already, by an earlier connection. Default: nothing. */
  readonly streams?: StreamViews;
  /** For every wait. Default: 5000. */
  readonly timeoutMs?: number;
  /**
   * Resolves once everything published before has reached the client's node. Default: that node
   * published it.
   */
  readonly publicationsDelivered?: (() => Promise<void>) | undefined;
}

/** A request that was refused, or could not be answered because the connection ended. */
export class NativeClientError extends Error {
  /** A code of the ERROR frame, `http_<status>`, or `closed_<close code>`. */
  readonly code: string;
  readonly retryAfterMs: number;

  constructor(code: string, message: string, retryAfterMs = 0) {
    super(`${code}: ${message}`);
    this.name = "NativeClientError";
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }
}

type ReplyOf<K extends Reply["kind"]> = Extract<Reply, { kind: K }>;
type PushOf<K extends Push["kind"]> = Extract<Push, { kind: K }>;

export class NativeClient {
  readonly uid: string;
  /** Everything pushed so far, in order of arrival. */
  readonly pushes: Push[] = [];
  /** Every ERROR frame so far, also those that rejected a request. */
  readonly errors: ReplyOf<"error">[] = [];
  /** What the pushes make of each stream. */
  readonly streams: StreamViews;
  /** Settles when the connection is over, however it ended. */
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>;
  readonly #socket: WebSocket;
  readonly #options: NativeSessionOptions;
  readonly #wire: Wire;
  readonly #waiters: Waiters;
  readonly #requests = new Map<number, (reply: Reply | Error) => void>();
  #ended: NativeClientError | undefined;
  #connack: ReplyOf<"connack"> | undefined;
  #nextRef = 1;
  #pushesTaken = 0;

  constructor(socket: WebSocket, options: NativeSessionOptions) {
    this.uid = options.uid;
    this.streams = options.streams ?? new StreamViews();
    this.#socket = socket;
    this.#options = options;
    this.#wire = options.wire ?? nativeWire(options.uid);
    this.#waiters = new Waiters(options.timeoutMs ?? 60_000);
    socket.on("message", (data: Buffer, isBinary) => this.#received(data, isBinary));
    socket.on("error", (error) => this.#end("closed_1006", error.message));
    this.closed = new Promise((resolve) => {
      socket.once("close", (code, reason) => {
        this.#end(`closed_${code}`, reason.toString());
        resolve({ code, reason: reason.toString() });
      });
    });
  }

  /** What the server said to CONNECT. Throws before that. */
  get connack(): ReplyOf<"connack"> {
    if (this.#connack === undefined) throw new Error("not connected yet");
    return this.#connack;
  }

  /** The subprotocol the server chose; "" for none. */
  get subprotocol(): string {
    return this.#socket.protocol;
  }

  /** All messages pushed so far, of live pushes and resume runs alike, in order of arrival. */
  get messages(): readonly Message[] {
    return this.pushes.flatMap((push) => {
      if (push.kind === "message") return [push.message];
      return push.kind === "messages" ? push.messages : [];
    });
  }

  /** All events pushed so far, in order of arrival. */
  get events(): readonly ChannelEvent[] {
    return this.pushesOf("event").map(({ event }) => event);
  }

  /** All commands pushed so far, repeated ones included, in order of arrival. */
  get commands(): readonly PushOf<"command">[] {
    return this.pushesOf("command");
  }

  /** All pushes of one kind so far. */
  pushesOf<K extends Push["kind"]>(kind: K): readonly PushOf<K>[] {
    return this.pushes.filter(
      (push): push is PushOf<K> => push.kind === kind, // a generic does not narrow by itself
    );
  }

  /** How a stream stands for this viewer; undefined: it heard nothing of it. */
  view(channel: ChannelRef, clientMsgNo: string): StreamView | undefined {
    return this.streams.of(channel, clientMsgNo);
  }

  /** Says CONNECT as the options tell, with what differs in `changes`. */
  async connect(changes: { readonly version?: number } = {}): Promise<ReplyOf<"connack">> {
    const { uid, token, flag, deviceId, level, resume, session } = this.#options;
    this.#connack = await this.request("connack", {
      kind: "connect",
      version: changes.version ?? NATIVE_VERSION,
      uid,
      token: token ?? "",
      flag: flag ?? 0,
      deviceId: deviceId ?? "",
      level,
      resume: resume ?? [],
      session: session ?? "",
    });
    return this.#connack;
  }

  send(
    channel: ChannelRef,
    payload: PayloadInput,
    options: SendOptions = {},
  ): Promise<ReplyOf<"sendack">> {
    return this.request("sendack", sendRequest(channel, payload, options));
  }

  /** Default: the oldest 100 of the channel. */
  history(channel: ChannelRef, options: HistoryOptions = {}): Promise<ReplyOf<"history">> {
    return this.request("history", historyRequest(channel, options));
  }

  presence(uids: readonly string[]): Promise<ReplyOf<"presence">> {
    return this.request("presence", { kind: "presence", uids });
  }

  /** What it answers is also taken into `streams`. */
  stream(channel: ChannelRef, clientMsgNo: string): Promise<ReplyOf<"stream">> {
    return this.request("stream", { kind: "stream", channel, clientMsgNo });
  }

  /** The stop button. */
  cancel(channel: ChannelRef, clientMsgNo: string): Promise<ReplyOf<"cancel">> {
    return this.request("cancel", { kind: "cancel", channel, clientMsgNo });
  }

  /** Default: the newest 100. */
  conversations(
    page: { readonly limit?: number; readonly offset?: number } = {},
  ): Promise<ReplyOf<"conversations">> {
    const { limit = 100, offset = 0 } = page;
    return this.request("conversations", {
      kind: "conversations",
      limit,
      offset,
    });
  }

  changeConversation(
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<ReplyOf<"conversation">> {
    return this.request("conversation", {
      kind: "conversation",
      channel,
      change,
    });
  }

  acknowledge(inboxSeqs: readonly number[]): Promise<ReplyOf<"commandack">> {
    return this.request("commandack", { kind: "commandack", inboxSeqs });
  }

  watch(uids: readonly string[]): Promise<ReplyOf<"watch">> {
    return this.request("watch", { kind: "watch", uids });
  }

  /** Answered behind everything that was published before. */
  async ping(): Promise<ReplyOf<"pong">> {
    if (this.#options.publicationsDelivered !== undefined)
      await this.#options.publicationsDelivered();
    return this.request("pong", { kind: "ping" });
  }

  /** Has no answer. */
  recvack(channel: ChannelRef, message: Pick<Message, "messageSeq" | "messageId">): void {
    const { messageSeq, messageId } = message;
    const operation = { kind: "recvack", ref: 0, channel } as const;
    this.raw(this.#wire.encode({ ...operation, messageSeq, messageId }));
  }

  /**
   * Sends any operation and resolves with its reply of the given kind; rejects on an ERROR, another
   * kind, a close, a time-out.
   */
  request<K extends Reply["kind"]>(kind: K, operation: Request): Promise<ReplyOf<K>> {
    const ref = this.#nextRef++;
    let reply: Reply | Error | undefined = this.#ended;
    this.#requests.set(ref, (outcome) => {
      reply = outcome;
    });
    this.raw(this.#wire.encode({ ...operation, ref } as Operation)); // spreading a union loses which member it was
    const done = this.#waiters
      .until(`a ${kind} to request ${ref}`, () => reply !== undefined)
      .then(() => answerOf(kind, reply));
    done.catch(() => undefined); // a test may drop a request on purpose; who awaits it still gets the rejection
    return done;
  }

  /** The next push that satisfies `filter`, those seen by earlier calls left out; waits for one. */
  async nextPush(filter: (push: Push) => boolean = () => true): Promise<Push> {
    let index = -1;
    await this.waitFor(() => {
      index = this.pushes.findIndex((push, i) => i >= this.#pushesTaken && filter(push));
      return index >= 0;
    }, "a push");
    this.#pushesTaken = index + 1;
    const push = this.pushes[index];
    if (push === undefined) throw new Error("a found push must exist");
    return push;
  }

  /** The next pushed live message; rejects like `waitFor`. */
  async nextMessage(): Promise<Message> {
    const push = await this.nextPush(({ kind }) => kind === "message");
    if (push.kind !== "message") throw new Error("filtered");
    return push.message;
  }

  /**
   * Resolves when `predicate` holds, tried after every frame. Rejects when the connection ends
   * without it, or after the time-out.
   */
  async waitFor(predicate: (client: this) => boolean, what = "the condition"): Promise<void> {
    await this.#waiters.until(
      `${what} (${this.uid})`,
      () => predicate(this) || this.#ended !== undefined,
    );
    if (!predicate(this) && this.#ended !== undefined) throw this.#ended;
  }

  /** Any bytes as a binary frame, any string as a text frame. Harmless when closed. */
  raw(data: Uint8Array | string): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(data);
  }

  /** Stops reading: the server's buffers fill up. */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** Says DISCONNECT and resolves when the server closed. */
  async disconnect(): Promise<{ readonly code: number; readonly reason: string }> {
    this.raw(this.#wire.encode({ kind: "disconnect", ref: this.#nextRef++ }));
    return this.closed;
  }

  /** Closes the WebSocket in order. */
  async close(): Promise<void> {
    this.#socket.resume(); // a paused socket never sees the answer
    this.#socket.close(1000);
    const impatience = setTimeout(() => this.#socket.terminate(), 1000);
    await this.closed;
    clearTimeout(impatience);
  }

  /** Destroys the TCP connection without a close frame. */
  kill(): void {
    this.#socket.terminate();
  }

  #received(data: Buffer, isBinary: boolean): void {
    try {
      this.#take(this.#wire.decode(data, isBinary));
    } catch (error) {
      this.#end("bad_server_frame", String(error));
      this.#socket.terminate();
    }
    this.#waiters.check();
  }

  #take(frame: ServerFrame): void {
    this.streams.applyFrame(frame);
    if (!("ref" in frame)) {
      this.pushes.push(frame);
      return;
    }
    if (frame.kind === "error") this.errors.push(frame);
    this.#requests.get(frame.ref)?.(frame);
    this.#requests.delete(frame.ref);
  }

  #end(code: string, message: string): void {
    if (this.#ended !== undefined) return;
    const ended = new NativeClientError(code, message);
    this.#ended = ended;
    for (const settle of this.#requests.values()) settle(ended);
    this.#requests.clear();
    this.#waiters.check();
  }
}

/** The content of a text message. */
export function textOf(message: Pick<Message, "payload">): string {
  const { content } = JSON.parse(new TextDecoder().decode(message.payload));
  return content;
}

function answerOf<K extends Reply["kind"]>(kind: K, reply: Reply | Error | undefined): ReplyOf<K> {
  if (reply === undefined || reply instanceof Error) throw reply;
  if (reply.kind === "error")
    throw new NativeClientError(reply.code, reply.message, reply.retryAfterMs);
  if (reply.kind !== kind) throw new NativeClientError("bad_reply", `${reply.kind} to a ${kind}`);
  return reply as ReplyOf<K>; // the kind was just compared, which a generic cannot narrow by
}
