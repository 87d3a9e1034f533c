// One WebSocket connection from opening to end: handshake, requests with their answers, pushes,
// heartbeat. Never reconnects. State: status opening → open → closed, and the open requests.
// `ended` is called once and last.

import { CLOSE_REASONS } from "../broker/errors.ts";
import { type Deferred, deferred } from "../lib/deferred.ts";
import { decodeServerFrame, type ServerFrame } from "../protocol/native/client-decode.ts";
import { encodeOperation } from "../protocol/native/client-encode.ts";
import { MAX_UINT32 } from "../protocol/native/ops.ts";
import type { Operation, Push, Reply } from "../protocol/protocol.ts";
import { asJindouError, JindouError } from "./errors.ts";
import { drop, type SocketLike } from "./socket.ts";

/** What answers each operation; operations without an answer are not requests. */
interface ReplyKinds {
  readonly send: "sendack";
  readonly history: "history";
  readonly presence: "presence";
  readonly stream: "stream";
  readonly cancel: "cancel";
  readonly conversations: "conversations";
  readonly conversation: "conversation";
  readonly commandack: "commandack";
  readonly watch: "watch";
}

export type RequestKind = keyof ReplyKinds;

/** An operation without its ref. */
export type Request<K extends RequestKind> = Omit<
  Extract<Operation, { readonly kind: K }>,
  "ref"
> & { readonly kind: K };

export type ReplyTo<K extends RequestKind> = Extract<Reply, { readonly kind: ReplyKinds[K] }>;

/**
 * Sends a request; rejects with JindouError. `seen` gets the answer in its order among the pushes;
 * the promise may resolve after pushes that came later.
 */
export type Ask = <K extends RequestKind>(
  request: Request<K>,
  seen?: (reply: ReplyTo<K>) => void,
) => Promise<ReplyTo<K>>;

export type Connack = Extract<Reply, { readonly kind: "connack" }>;

/** How a connection ended. */
export interface ConnectionEnd {
  /** WebSocket close code; 1006 when there was no close handshake. */
  readonly code: number;
  /** Why CONNECT was refused, or what made this side give up. */
  readonly error: JindouError | undefined;
  readonly isConnectSent: boolean;
}

export interface ConnectionParts {
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

/** The close code of a connection that ended without a close handshake. */
const ABNORMAL_CLOSURE = 1006;
/** How long the server may take to answer DISCONNECT. */
const DISCONNECT_MS = 1000;
const MIN_HEARTBEAT_MS = 10;

export class Connection {
  readonly #parts: ConnectionParts;
  readonly #requests: OpenRequests;
  #status: "opening" | "open" | "closed" = "opening";
  #maxFrameBytes = Number.POSITIVE_INFINITY;
  #refused: JindouError | undefined;
  #isConnectSent = false;
  #timer: ReturnType<typeof setTimeout>;
  #pingMs = 0;
  /** Monotonic clock. */
  #lastFrameAt = 0;
  #pingedAt: number | undefined;

  constructor(parts: ConnectionParts) {
    const { socket, timeouts } = parts;
    this.#parts = parts;
    this.#requests = new OpenRequests(timeouts.requestMs);
    this.#timer = setTimeout(() => this.fail(new JindouError("timeout")), timeouts.connectMs);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#isConnectSent = true;
      socket.send(parts.connectFrame);
    };
    socket.onmessage = ({ data }) => this.#received(data);
    socket.onclose = ({ code }) => this.#end({ code });
    socket.onerror = () => undefined; // a close event follows
  }

  /**
   * Resolves with the answer. Rejects with the refusal, `timeout`, `connection_lost`, `too_large`,
   * `bad_request`.
   */
  async request<K extends RequestKind>(
    request: Request<K>,
    seen?: (reply: ReplyTo<K>) => void,
  ): Promise<ReplyTo<K>> {
    if (this.#status !== "open") throw new JindouError("connection_lost");
    const ref = this.#requests.nextRef();
    // with its ref it is the operation again, which the compiler cannot see through the generic
    const frame = this.#encode({ ...request, ref } as unknown as Operation);
    const answer = this.#requests.expect<K>(request.kind, ref, seen);
    this.#parts.socket.send(frame);
    return answer;
  }

  /** Pings now: the network may have changed. */
  probe(): void {
    if (this.#status === "open") this.#heartbeat(0);
  }

  /** Drops the connection; `ended` gets the error. No effect when it has ended. */
  fail(error: JindouError): void {
    this.#end({ code: ABNORMAL_CLOSURE, error });
  }

  /** Closes with DISCONNECT; resolves when the server closed, at the latest after a second. */
  async disconnect(): Promise<void> {
    if (this.#status !== "open") return this.#end({ code: ABNORMAL_CLOSURE });
    const { socket } = this.#parts;
    this.#end({ code: ABNORMAL_CLOSURE }, () => undefined);
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, DISCONNECT_MS);
      socket.onclose = () => {
        clearTimeout(timer);
        resolve();
      };
      socket.send(encodeOperation({ kind: "disconnect", ref: 0 }));
    });
    drop(socket);
  }

  #encode(operation: Operation): Uint8Array {
    let frame: Uint8Array;
    try {
      frame = encodeOperation(operation);
    } catch (error) {
      const cause = asJindouError(error, "bad_option");
      throw new JindouError("bad_request", { message: cause.message, cause });
    }
    // the server would close the connection
    if (frame.length > this.#maxFrameBytes) throw new JindouError("too_large");
    return frame;
  }

  #received(data: unknown): void {
    if (this.#status === "closed") return; // disconnecting
    this.#lastFrameAt = performance.now();
    this.#pingedAt = undefined;
    try {
      if (!(data instanceof ArrayBuffer)) throw new TypeError("a text frame");
      this.#take(decodeServerFrame(new Uint8Array(data), this.#parts.uid));
    } catch (error) {
      if (isUnknown(error)) return;
      this.fail(new JindouError("malformed_frame", { cause: error }));
    }
  }

  #take(frame: ServerFrame): void {
    if (frame.kind === "disconnect") this.#end({ code: CLOSE_REASONS[frame.reason].code });
    else if (this.#status === "opening") this.#handshake(frame);
    else if ("ref" in frame) this.#requests.settle(frame);
    else this.#parts.pushed(frame);
  }

  #handshake(frame: ServerFrame): void {
    if (frame.kind === "connack") this.#open(frame);
    else if (frame.kind === "error") this.#refused = refusal(frame);
  }

  #open(connack: Connack): void {
    const { maxFrameBytes, idleTimeoutS } = connack.limits;
    const { pingMs } = this.#parts.timeouts;
    this.#pingMs = Math.min(pingMs, (idleTimeoutS * 1000) / 2);
    this.#status = "open";
    this.#maxFrameBytes = maxFrameBytes;
    this.#heartbeat(this.#pingMs);
    this.#parts.opened(connack);
  }

  /**
   * Pings after `silenceMs` without a frame. Browsers throttle the timers of background pages, so
   * only an unanswered ping ends the connection, never silence.
   */
  #heartbeat(silenceMs: number): void {
    const { pongMs } = this.#parts.timeouts;
    const now = performance.now();
    const isLate = this.#pingedAt !== undefined && now - this.#pingedAt >= pongMs;
    if (isLate) return this.fail(new JindouError("timeout"));
    if (this.#pingedAt === undefined && now - this.#lastFrameAt >= silenceMs) {
      this.#pingedAt = now;
      this.#parts.socket.send(encodeOperation({ kind: "ping", ref: 0 }));
    }
    const next =
      this.#pingedAt === undefined
        ? this.#lastFrameAt + this.#pingMs
        : Math.min(this.#pingedAt + pongMs, now + this.#pingMs);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      () => this.#heartbeat(this.#pingMs),
      Math.max(next - now, MIN_HEARTBEAT_MS),
    );
  }

  #end(
    end: Partial<ConnectionEnd> & { readonly code: number },
    release: (socket: SocketLike) => void = drop,
  ): void {
    if (this.#status === "closed") return;
    this.#status = "closed";
    clearTimeout(this.#timer);
    release(this.#parts.socket);
    const { code, error = this.#refused } = end;
    this.#requests.fail(new JindouError("connection_lost"));
    this.#parts.ended({ code, error, isConnectSent: this.#isConnectSent });
  }
}

/** The requests that wait for their answer, by ref. Each is settled exactly once. */
class OpenRequests {
  readonly #open = new Map<number, OpenRequest>();
  readonly #timeoutMs: number;
  #lastRef = 0;

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  /** A ref that no open request has: none stays open until all refs are used up. */
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
    const timer = setTimeout(() => {
      this.#open.delete(ref);
      answer.reject(new JindouError("timeout"));
    }, this.#timeoutMs);
    const expected: Reply["kind"] = kind === "send" ? "sendack" : kind;
    this.#open.set(ref, { kind: expected, seen, answer, timer });
    return answer.promise as Promise<ReplyTo<K>>; // `settle` lets no other kind through
  }

  settle(reply: Reply): void {
    const open = this.#open.get(reply.ref);
    if (open === undefined) return; // timed out
    this.#open.delete(reply.ref);
    clearTimeout(open.timer);
    if (reply.kind !== open.kind) return open.answer.reject(refusal(reply));
    open.seen?.(reply as never); // its kind was just compared
    open.answer.resolve(reply);
  }

  /** Rejects all of them. */
  fail(error: JindouError): void {
    for (const { answer, timer } of this.#open.values()) {
      clearTimeout(timer);
      answer.reject(error);
    }
    this.#open.clear();
  }
}

interface OpenRequest {
  readonly kind: Reply["kind"];
  readonly seen: ((reply: never) => void) | undefined;
  readonly answer: Deferred<Reply>;
  readonly timer: ReturnType<typeof setTimeout>;
}

function refusal(reply: Reply): JindouError {
  if (reply.kind !== "error")
    return new JindouError("internal", { message: `Answered ${reply.kind}` });
  const { code, message, retryAfterMs } = reply;
  return new JindouError(code, { message, retryAfterMs });
}

/** A frame of a newer server: ignored. */
function isUnknown(error: unknown): boolean {
  return error instanceof Error && "fatal" in error && error.fatal === false;
}
