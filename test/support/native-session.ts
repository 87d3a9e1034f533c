// A small client of the native protocol on one `ws` socket, for tests. It keeps every push in order
// and the state of every stream, and never reconnects. A frame that a server must not send ends the
// connection and rejects all waiting calls.

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

/** Login of a client, its wire format and its timeout. */
export interface NativeSessionOptions {
  readonly uid: string;
  /** Default: empty. */
  readonly token?: string;
  /** Default: 0, app. */
  readonly flag?: DeviceFlag;
  readonly deviceId?: string;
  /** Wire format, which must have been created for the same `uid`. Default: native. */
  readonly wire?: Wire;
  readonly level?: DeviceLevel;
  readonly resume?: readonly ResumePoint[];
  /** Session to continue. Default: none, so that CONNECT is a new login. */
  readonly session?: string;
  /** Streams that an earlier connection of the user has received. Default: none. */
  readonly streams?: StreamViews;
  /** Timeout of every wait. Default: 60,000. */
  readonly timeoutMs?: number;
  /**
   * Resolves when everything published so far has reached the client's node. Default: no
   * wait, because the client's node publishes everything itself.
   */
  readonly publicationsDelivered?: (() => Promise<void>) | undefined;
}

/** A request that the server refused, or that has no reply because the connection ended. */
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
  /** Every push so far, in order of arrival. */
  readonly pushes: Push[] = [];
  /** Every ERROR frame so far, including those that rejected a request. */
  readonly errors: ReplyOf<"error">[] = [];
  /** State of each stream as received so far. */
  readonly streams: StreamViews;
  /** Resolves when the connection has ended, for any reason. */
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>;
  readonly #messages: Message[] = [];
  readonly #socket: WebSocket;
  readonly #options: NativeSessionOptions;
  readonly #wire: Wire;
  readonly #waiters: Waiters;
  readonly #requests = new Map<number, (reply: Reply | Error) => void>();
  #ended: NativeClientError | undefined;
  #connack: ReplyOf<"connack"> | undefined;
  #nextRef = 1;
  #nextPush = 0;

  constructor(socket: WebSocket, options: NativeSessionOptions) {
    this.uid = options.uid;
    this.streams = options.streams ?? new StreamViews();
    this.#socket = socket;
    this.#options = options;
    this.#wire = options.wire ?? nativeWire(options.uid);
    this.#waiters = new Waiters(options.timeoutMs ?? 60_000);
    socket.on("message", (data: Buffer, isBinary) => this.#receive(data, isBinary));
    socket.on("error", (error) => this.#end("closed_1006", error.message));
    this.closed = new Promise((resolve) => {
      socket.once("close", (code, reason) => {
        this.#end(`closed_${code}`, reason.toString());
        resolve({ code, reason: reason.toString() });
      });
    });
  }

  /** The CONNACK. Throws before it has arrived. */
  get connack(): ReplyOf<"connack"> {
    if (this.#connack === undefined) throw new Error("not connected yet");
    return this.#connack;
  }

  /** Subprotocol that the server selected, empty if it selected none. */
  get subprotocol(): string {
    return this.#socket.protocol;
  }

  /** Messages of all live pushes and catch-up pushes so far, in order of arrival. */
  get messages(): readonly Message[] {
    return [...this.#messages];
  }

  /** Events pushed so far, in order of arrival. */
  get events(): readonly ChannelEvent[] {
    return this.pushesOf("event").map(({ event }) => event);
  }

  /** Commands pushed so far, including repeated ones, in order of arrival. */
  get commands(): readonly PushOf<"command">[] {
    return this.pushesOf("command");
  }

  /** Returns all pushes of one kind so far. */
  pushesOf<K extends Push["kind"]>(kind: K): readonly PushOf<K>[] {
    return this.pushes.filter(
      (push): push is PushOf<K> => push.kind === kind, // the compiler does not narrow by a generic kind
    );
  }

  /**
   * Returns the stream as this client has received it, or `undefined` if the client has received no
   * part of the stream.
   */
  view(channel: ChannelRef, clientMsgNo: string): StreamView | undefined {
    return this.streams.of(channel, clientMsgNo);
  }

  /** Sends CONNECT with the client's options. `changes` overrides them. */
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
      sessionName: session ?? "",
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

  /** Reads history. Default: the oldest 100 messages of the channel. */
  history(channel: ChannelRef, options: HistoryOptions = {}): Promise<ReplyOf<"history">> {
    return this.request("history", historyRequest(channel, options));
  }

  presence(uids: readonly string[]): Promise<ReplyOf<"presence">> {
    return this.request("presence", { kind: "presence", uids });
  }

  /** Reads a stream. Its snapshot is also applied to `streams`. */
  stream(channel: ChannelRef, clientMsgNo: string): Promise<ReplyOf<"stream">> {
    return this.request("stream", { kind: "stream", channel, clientMsgNo });
  }

  /** Cancels a running stream. */
  cancel(channel: ChannelRef, clientMsgNo: string): Promise<ReplyOf<"cancel">> {
    return this.request("cancel", { kind: "cancel", channel, clientMsgNo });
  }

  /** Lists conversations. Default: the newest 100. */
  conversations(
    page: {
      readonly limit?: number;
      readonly cursor?: string | undefined;
      readonly sinceMs?: number;
    } = {},
  ): Promise<ReplyOf<"conversations">> {
    const request = { kind: "conversations", limit: 100, cursor: undefined, ...page } as const;
    return this.request("conversations", request);
  }

  /** Lists members of a group. Default: the first 100. */
  members(
    channel: ChannelRef,
    page: { readonly limit?: number; readonly cursor?: string | undefined } = {},
  ): Promise<ReplyOf<"members">> {
    const request = { kind: "members", channel, limit: 100, cursor: undefined, ...page } as const;
    return this.request("members", request);
  }

  /** Changes a conversation and returns its state. Without `change`, only reads the state. */
  changeConversation(
    channel: ChannelRef,
    change?: ConversationChange,
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

  /** Sends an event to the members of a channel who are online. */
  emit(channel: ChannelRef, type: string, data = ""): Promise<ReplyOf<"emit">> {
    return this.request("emit", { kind: "emit", channel, type, data });
  }

  /** Sends an event without asking for a reply. */
  emitUnanswered(channel: ChannelRef, type: string, data = ""): void {
    this.raw(this.#wire.encode({ kind: "emit", ref: 0, channel, type, data }));
  }

  /** Reports whether the user is looking at the app. */
  state(foreground: boolean): Promise<ReplyOf<"state">> {
    return this.request("state", { kind: "state", foreground });
  }

  /** Replaces the JWT of the session. */
  refresh(token: string): Promise<ReplyOf<"connack">> {
    return this.request("connack", { kind: "refresh", token });
  }

  /** Sends PING. Its PONG arrives after the pushes of everything published before. */
  async ping(): Promise<ReplyOf<"pong">> {
    if (this.#options.publicationsDelivered !== undefined)
      await this.#options.publicationsDelivered();
    return this.request("pong", { kind: "ping" });
  }

  /** Acknowledges a message. The server sends no reply. */
  recvack(channel: ChannelRef, message: Pick<Message, "messageSeq" | "messageId">): void {
    const { messageSeq, messageId } = message;
    const operation = { kind: "recvack", ref: 0, channel } as const;
    this.raw(this.#wire.encode({ ...operation, messageSeq, messageId }));
  }

  /**
   * Sends an operation and resolves with its reply. Rejects on an ERROR, on a reply of a different
   * kind, when the connection ends, and after the timeout.
   */
  request<K extends Reply["kind"]>(kind: K, operation: Request): Promise<ReplyOf<K>> {
    const ref = this.#nextRef++;
    let reply: Reply | Error | undefined = this.#ended;
    this.#requests.set(ref, (outcome) => {
      reply = outcome;
    });
    this.raw(this.#wire.encode({ ...operation, ref } as Operation)); // a spread union loses the relation of `kind` to the other fields
    const done = this.#waiters
      .until(`the ${kind} for request ${ref}`, () => reply !== undefined)
      .then(() => replyOrThrow(kind, reply));
    done.catch(() => undefined); // no unhandled rejection if a test ignores the request
    return done;
  }

  /**
   * Waits for the next push that satisfies `filter` and returns it. The next call starts after that
   * push, so pushes that were skipped are not returned later.
   */
  async nextPush(filter: (push: Push) => boolean = () => true): Promise<Push> {
    let index = -1;
    await this.waitFor(() => {
      index = this.pushes.findIndex((push, i) => i >= this.#nextPush && filter(push));
      return index >= 0;
    }, "a push");
    this.#nextPush = index + 1;
    const push = this.pushes[index];
    if (push === undefined) throw new Error("the push that was waited for is missing");
    return push;
  }

  /** Waits for the next live message and returns it. Rejects like `waitFor`. */
  async nextMessage(): Promise<Message> {
    const push = await this.nextPush(({ kind }) => kind === "message");
    if (push.kind !== "message") throw new Error("nextPush returned a push of a different kind");
    return push.message;
  }

  /**
   * Resolves when `predicate` returns true. It is evaluated after every frame. Rejects if the
   * connection ends first, or after the timeout.
   */
  async waitFor(
    predicate: (client: this) => boolean,
    description = "the condition",
  ): Promise<void> {
    await this.#waiters.until(
      `${description} (${this.uid})`,
      () => predicate(this) || this.#ended !== undefined,
    );
    if (!predicate(this) && this.#ended !== undefined) throw this.#ended;
  }

  /** Sends bytes as a binary frame, or a string as a text frame, if the socket is open. */
  raw(data: Uint8Array | string): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(data);
  }

  /** Stops reading, so that the server's buffers fill up. */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** Sends DISCONNECT and resolves when the server has closed the connection. */
  async disconnect(): Promise<{ readonly code: number; readonly reason: string }> {
    this.raw(this.#wire.encode({ kind: "disconnect", ref: this.#nextRef++ }));
    return this.closed;
  }

  /** Closes the WebSocket with a close frame. Terminates the socket after one second. */
  async close(): Promise<void> {
    this.#socket.resume(); // a paused socket never receives the server's close frame
    this.#socket.close(1000);
    const timer = setTimeout(() => this.#socket.terminate(), 1000);
    await this.closed;
    clearTimeout(timer);
  }

  /** Destroys the TCP connection without a close frame. */
  kill(): void {
    this.#socket.terminate();
  }

  #receive(data: Buffer, isBinary: boolean): void {
    try {
      this.#handleFrame(this.#wire.decode(data, isBinary));
    } catch (error) {
      this.#end("bad_server_frame", String(error));
      this.#socket.terminate();
    }
    this.#waiters.check();
  }

  #handleFrame(frame: ServerFrame): void {
    this.streams.applyFrame(frame);
    if (!("ref" in frame)) {
      this.pushes.push(frame);
      if (frame.kind === "message") this.#messages.push(frame.message);
      if (frame.kind === "messages") this.#messages.push(...frame.messages);
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

/** Returns the content of a text message. */
export function textOf(message: Pick<Message, "payload">): string {
  const { content } = JSON.parse(new TextDecoder().decode(message.payload));
  return content;
}

function replyOrThrow<K extends Reply["kind"]>(
  kind: K,
  reply: Reply | Error | undefined,
): ReplyOf<K> {
  if (reply === undefined || reply instanceof Error) throw reply;
  if (reply.kind === "error")
    throw new NativeClientError(reply.code, reply.message, reply.retryAfterMs);
  if (reply.kind !== kind) throw new NativeClientError("bad_reply", `${reply.kind} to a ${kind}`);
  return reply as ReplyOf<K>; // the compiler does not narrow by a generic kind
}
