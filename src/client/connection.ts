// One WebSocket connection, from opening to closing: handshake, requests and their replies, pushes,
// heartbeat. Calls `ended` exactly once, as its last callback, and never reconnects.

import { CLOSE_REASONS } from "../broker/errors.ts";
import { type Deferred, deferred } from "../lib/deferred.ts";
import { decodeServerFrame, type ServerFrame } from "../protocol/native/client-decode.ts";
import { encodeOperation } from "../protocol/native/client-encode.ts";
import { MAX_UINT32 } from "../protocol/native/ops.ts";
import type { Operation, Push, Reply } from "../protocol/protocol.ts";
import { bytesOf } from "./bytes.ts";
import { asJindouError, JindouError } from "./errors.ts";
import { drop, type OwnBytes, type SocketLike } from "./socket.ts";
import { now, timeLimit } from "./waiting.ts";

interface ReplyKinds {
  readonly send: "sendack";
  readonly history: "history";
  readonly presence: "presence";
  readonly stream: "stream";
  readonly cancel: "cancel";
  readonly conversations: "conversations";
  readonly conversation: "conversation";
  readonly members: "members";
  readonly commandack: "commandack";
  readonly watch: "watch";
  readonly emit: "emit";
  readonly state: "state";
  readonly refresh: "connack";
  readonly ping: "pong";
}

export type RequestKind = keyof ReplyKinds;

export type Request<K extends RequestKind> = Omit<
  Extract<Operation, { readonly kind: K }>,
  "ref"
> & { readonly kind: K };

export type ReplyTo<K extends RequestKind> = Extract<Reply, { readonly kind: ReplyKinds[K] }>;

/**
 * Function that sends a request and resolves with the reply. `seen` is called with the reply before
 * any later push is handled. When the promise resolves, later pushes may already have been handled.
 * Rejects with a JindouError.
 */
export type RequestFunction = <K extends RequestKind>(
  request: Request<K>,
  seen?: (reply: ReplyTo<K>) => void,
) => Promise<ReplyTo<K>>;

export type Connack = Extract<Reply, { readonly kind: "connack" }>;

export interface ConnectionEnd {
  /** WebSocket close code, or 1006 if there was no close handshake. */
  readonly code: number;
  /** Error that ended the connection or with which the server refused CONNECT, or `undefined`. */
  readonly error: JindouError | undefined;
  readonly isConnectSent: boolean;
  /** Text of the socket's error event, or "" if the socket reported no text. */
  readonly cause: string;
  /** True if the socket failed before it opened, with an error event but without a close event. */
  readonly isBlocked: boolean;
}

export interface ConnectionPorts {
  readonly socket: SocketLike;
  readonly uid: string;
  readonly connectFrame: Uint8Array;
  readonly timeouts: {
    readonly connectMs: number;
    readonly requestMs: number;
    readonly pingMs: number;
    readonly pongMs: number;
  };
  opened(connack: Connack): void;
  pushed(push: Push): void;
  ended(end: ConnectionEnd): void;
}

const ABNORMAL_CLOSURE = 1006;
const DISCONNECT_MS = 3000;
/** Maximum time between the error event of an open socket and its close event. */
const CLOSE_EVENT_MS = 1000;
const MIN_SILENCE_MS = 10;

export class Connection {
  readonly #ports: ConnectionPorts;
  readonly #requests: OpenRequests;
  #status: "opening" | "open" | "closed" = "opening";
  #maxFrameBytes = Number.POSITIVE_INFINITY;
  #refusal: JindouError | undefined;
  #isConnectSent = false;
  #cause = "";
  /**
   * Stops the current timer: the time limit for the login or a pong, or the delay before a ping.
   */
  #stopTimer: () => void;
  #pingMs = 0;
  #lastFrameAt = 0;
  #isPinged = false;

  constructor(ports: ConnectionPorts) {
    const { socket, timeouts } = ports;
    this.#ports = ports;
    this.#requests = new OpenRequests(timeouts.requestMs);
    this.#stopTimer = timeLimit(timeouts.connectMs, () => this.#timedOut());
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#isConnectSent = true;
      this.#write(ports.connectFrame);
    };
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code }) => this.#end({ code });
    socket.onerror = (event) => this.#socketFailed(event);
  }

  async request<K extends RequestKind>(
    request: Request<K>,
    seen?: (reply: ReplyTo<K>) => void,
  ): Promise<ReplyTo<K>> {
    if (this.#status !== "open") throw new JindouError("connection_lost");
    const ref = this.#requests.nextRef();
    // adding the ref makes the request an `Operation` again, which the compiler cannot infer for a
    // generic type
    const frame = this.#encode({ ...request, ref } as unknown as Operation);
    const answer = this.#requests.expect<K>(request.kind, ref, seen);
    this.#write(frame);
    return answer;
  }

  /**
   * Sends a ping at once, to detect a dead connection after a network change. If `limitMs` is set,
   * the pong must arrive within that time, and a connection that is still opening fails at once.
   */
  probe(limitMs?: number): void {
    if (this.#status === "open" && (limitMs !== undefined || !this.#isPinged)) this.#ping(limitMs);
    else if (this.#status === "opening" && limitMs !== undefined) this.#timedOut();
  }

  fail(error: JindouError): void {
    this.#end({ code: ABNORMAL_CLOSURE, error });
  }

  /**
   * Ends the session with a DISCONNECT and closes the socket. First waits for the reply to a
   * pending CONNECT. Without the wait, the server could log this connection in after a later
   * connection. Resolves when the socket is closed, or after three seconds.
   */
  async disconnect(): Promise<void> {
    const { socket } = this.#ports;
    const isOpen = this.#status === "open";
    if (this.#status === "closed") return;
    this.#end({ code: ABNORMAL_CLOSURE }, () => undefined);
    if (this.#isConnectSent)
      await new Promise<void>((resolve) => {
        const stop = timeLimit(DISCONNECT_MS, resolve);
        const leave = () => {
          socket.onmessage = null;
          this.#write(encodeOperation({ kind: "disconnect", ref: 0 }));
        };
        socket.onerror = () => undefined;
        socket.onclose = () => {
          stop();
          resolve();
        };
        if (isOpen) leave();
        else socket.onmessage = leave;
      });
    drop(socket);
  }

  /** Sends a frame. Never throws, because the caller may be a timer. */
  #write(frame: Uint8Array): void {
    try {
      this.#ports.socket.send(frame as OwnBytes); // encoders do not use shared memory
    } catch (cause) {
      this.fail(new JindouError("connection_lost", { cause }));
    }
  }

  #timedOut(): void {
    this.fail(new JindouError("timeout"));
  }

  /** Handles a socket error. A close event usually follows, but not always. */
  #socketFailed(event: unknown): void {
    const { message } = event as { readonly message?: unknown };
    if (typeof message === "string") this.#cause = message;
    const isBlocked = !this.#isConnectSent;
    setTimeout(
      () => this.#end({ code: ABNORMAL_CLOSURE, isBlocked }),
      isBlocked ? 0 : CLOSE_EVENT_MS,
    );
  }

  #encode(operation: Operation): Uint8Array {
    let frame: Uint8Array;
    try {
      frame = encodeOperation(operation);
    } catch (error) {
      const cause = asJindouError(error, "bad_option");
      throw new JindouError("bad_request", { message: cause.message, cause });
    }
    // the server refuses a frame above its limit, or closes the connection
    if (frame.length <= this.#maxFrameBytes) return frame;
    const message = `The request has ${frame.length} bytes. The limit is ${this.#maxFrameBytes}`;
    throw new JindouError("too_large", { message });
  }

  #receive(data: unknown): void {
    if (this.#status === "closed") return; // `disconnect` was called
    this.#lastFrameAt = now();
    if (this.#isPinged) this.#awaitSilence();
    try {
      const bytes = bytesOf(data);
      if (bytes === undefined) throw new TypeError("Not a binary frame");
      this.#dispatch(decodeServerFrame(bytes, this.#ports.uid));
    } catch (cause) {
      if (isUnknownFrame(cause)) return;
      const message = "Cannot decode a frame from the server";
      this.fail(new JindouError("malformed_frame", { message, cause }));
    }
  }

  #dispatch(frame: ServerFrame): void {
    if (frame.kind === "disconnect") this.#end({ code: CLOSE_REASONS[frame.reason].code });
    else if (this.#status === "opening") this.#handshake(frame);
    else if ("ref" in frame) this.#requests.settle(frame);
    else this.#ports.pushed(frame);
  }

  #handshake(frame: ServerFrame): void {
    if (frame.kind === "connack") this.#open(frame);
    else if (frame.kind === "error") this.#refusal = refusal(frame);
  }

  #open(connack: Connack): void {
    const { maxFrameBytes, idleTimeoutS } = connack.limits;
    const { pingMs } = this.#ports.timeouts;
    this.#pingMs = Math.min(pingMs, (idleTimeoutS * 1000) / 2);
    this.#status = "open";
    this.#maxFrameBytes = maxFrameBytes;
    this.#awaitSilence();
    this.#ports.opened(connack);
  }

  /**
   * Starts the timer for the next ping. An unanswered ping ends the connection, but silence alone
   * does not, because browsers delay the timers of background pages.
   */
  #awaitSilence(): void {
    this.#stopTimer();
    this.#isPinged = false;
    const waitMs = this.#lastFrameAt + this.#pingMs - now();
    const timer = setTimeout(
      () => {
        if (now() - this.#lastFrameAt < this.#pingMs) this.#awaitSilence();
        else this.#ping();
      },
      Math.max(waitMs, MIN_SILENCE_MS),
    );
    this.#stopTimer = () => clearTimeout(timer);
  }

  #ping(limitMs = this.#ports.timeouts.pongMs): void {
    this.#stopTimer();
    this.#isPinged = true;
    this.#stopTimer = timeLimit(limitMs, () => this.#timedOut());
    this.#write(encodeOperation({ kind: "ping", ref: 0 }));
  }

  #end(
    end: Partial<ConnectionEnd> & { readonly code: number },
    release: (socket: SocketLike) => void = drop,
  ): void {
    if (this.#status === "closed") return;
    this.#status = "closed";
    this.#stopTimer();
    release(this.#ports.socket);
    const { code, error = this.#refusal, isBlocked = false } = end;
    this.#requests.fail(new JindouError("connection_lost"));
    const isConnectSent = this.#isConnectSent;
    this.#ports.ended({ code, error, isConnectSent, isBlocked, cause: this.#cause });
  }
}

/** Reply kinds whose names differ from those of their requests. */
const REPLY_KINDS: Partial<ReplyKinds> = { send: "sendack", refresh: "connack", ping: "pong" };

class OpenRequests {
  readonly #open = new Map<number, OpenRequest>();
  readonly #timeoutMs: number;
  #lastRef = 0;

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  /** Returns the next ref. A ref is reused only after 2^32 - 1 requests. */
  nextRef(): number {
    this.#lastRef = (this.#lastRef % MAX_UINT32) + 1;
    return this.#lastRef;
  }

  expect<K extends RequestKind>(
    kind: K,
    ref: number,
    seen: ((reply: ReplyTo<K>) => void) | undefined,
  ): Promise<ReplyTo<K>> {
    const answer = deferred<Reply>();
    const stop = timeLimit(this.#timeoutMs, () => {
      this.#open.delete(ref);
      answer.reject(new JindouError("timeout"));
    });
    const expected = (REPLY_KINDS[kind as "send"] ?? kind) as Reply["kind"];
    this.#open.set(ref, { kind: expected, seen, answer, stop });
    return answer.promise as Promise<ReplyTo<K>>; // `settle` rejects every other kind of reply
  }

  settle(reply: Reply): void {
    const open = this.#open.get(reply.ref);
    if (open === undefined) return; // the request timed out
    this.#open.delete(reply.ref);
    open.stop();
    if (reply.kind !== open.kind) return open.answer.reject(refusal(reply));
    open.seen?.(reply as never); // the kind was compared above
    open.answer.resolve(reply);
  }

  fail(error: JindouError): void {
    for (const { answer, stop } of this.#open.values()) {
      stop();
      answer.reject(error);
    }
    this.#open.clear();
  }
}

interface OpenRequest {
  readonly kind: Reply["kind"];
  readonly seen: ((reply: never) => void) | undefined;
  readonly answer: Deferred<Reply>;
  readonly stop: () => void;
}

function refusal(reply: Reply): JindouError {
  if (reply.kind !== "error")
    return new JindouError("internal", { message: `Unexpected reply ${reply.kind}` });
  const { code, message, retryAfterMs } = reply;
  return new JindouError(code, { message, retryAfterMs });
}

/**
 * Returns true if the error means that the frame's kind is unknown. Only newer servers send such
 * frames, which the client ignores.
 */
function isUnknownFrame(error: unknown): boolean {
  return error instanceof Error && "fatal" in error && error.fatal === false;
}
