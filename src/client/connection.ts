// One WebSocket connection, from opening to end: handshake, requests and their replies, pushes,
// heartbeat. Calls `ended` exactly once, as its last callback, and never reconnects.

import { CLOSE_REASONS } from "../broker/errors.ts";
import { type Deferred, deferred } from "../lib/deferred.ts";
import { decodeServerFrame, type ServerFrame } from "../protocol/native/client-decode.ts";
import { encodeOperation } from "../protocol/native/client-encode.ts";
import { MAX_UINT32 } from "../protocol/native/ops.ts";
import type { Operation, Push, Reply } from "../protocol/protocol.ts";
import { asJindouError, JindouError } from "./errors.ts";
import { drop, type SocketLike } from "./socket.ts";

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

export type Request<K extends RequestKind> = Omit<
  Extract<Operation, { readonly kind: K }>,
  "ref"
> & { readonly kind: K };

export type ReplyTo<K extends RequestKind> = Extract<Reply, { readonly kind: ReplyKinds[K] }>;

/**
 * Sends a request and resolves with the reply. `seen` is called with the reply in order with the
 * pushes around it, whereas the promise may resolve after later pushes. Rejects with a JindouError.
 */
export type RequestFunction = <K extends RequestKind>(
  request: Request<K>,
  seen?: (reply: ReplyTo<K>) => void,
) => Promise<ReplyTo<K>>;

export type Connack = Extract<Reply, { readonly kind: "connack" }>;

export interface ConnectionEnd {
  /** WebSocket close code, 1006 if there was no close handshake. */
  readonly code: number;
  /**
   * Refusal of CONNECT, or the failure that made the client drop the connection; `undefined` if the
   * server or the network ended it.
   */
  readonly error: JindouError | undefined;
  readonly isConnectSent: boolean;
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
const DISCONNECT_MS = 1000;
const MIN_HEARTBEAT_MS = 10;

export class Connection {
  readonly #ports: ConnectionPorts;
  readonly #requests: OpenRequests;
  #status: "opening" | "open" | "closed" = "opening";
  #maxFrameBytes = Number.POSITIVE_INFINITY;
  #refusal: JindouError | undefined;
  #isConnectSent = false;
  #timer: ReturnType<typeof setTimeout>;
  #pingMs = 0;
  #lastFrameAt = 0;
  #pingedAt: number | undefined;

  constructor(ports: ConnectionPorts) {
    const { socket, timeouts } = ports;
    this.#ports = ports;
    this.#requests = new OpenRequests(timeouts.requestMs);
    this.#timer = setTimeout(() => this.fail(new JindouError("timeout")), timeouts.connectMs);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#isConnectSent = true;
      socket.send(ports.connectFrame);
    };
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code }) => this.#end({ code });
    socket.onerror = () => undefined; // a close event always follows
  }

  async request<K extends RequestKind>(
    request: Request<K>,
    seen?: (reply: ReplyTo<K>) => void,
  ): Promise<ReplyTo<K>> {
    if (this.#status !== "open") throw new JindouError("connection_lost");
    const ref = this.#requests.nextRef();
    // adding the ref makes it an operation again, which the compiler cannot infer for a generic
    // type
    const frame = this.#encode({ ...request, ref } as unknown as Operation);
    const answer = this.#requests.expect<K>(request.kind, ref, seen);
    this.#ports.socket.send(frame);
    return answer;
  }

  /** Sends a ping at once, to detect a dead connection after a change of network. */
  probe(): void {
    if (this.#status === "open") this.#heartbeat(0);
  }

  fail(error: JindouError): void {
    this.#end({ code: ABNORMAL_CLOSURE, error });
  }

  async disconnect(): Promise<void> {
    if (this.#status !== "open") return this.#end({ code: ABNORMAL_CLOSURE });
    const { socket } = this.#ports;
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
    // the server would close the connection because of a larger frame
    if (frame.length > this.#maxFrameBytes) throw new JindouError("too_large");
    return frame;
  }

  #receive(data: unknown): void {
    if (this.#status === "closed") return; // `disconnect` was called
    this.#lastFrameAt = performance.now();
    this.#pingedAt = undefined;
    try {
      if (!(data instanceof ArrayBuffer)) throw new TypeError("Not a binary frame");
      this.#dispatch(decodeServerFrame(new Uint8Array(data), this.#ports.uid));
    } catch (error) {
      if (isUnknownFrame(error)) return;
      this.fail(new JindouError("malformed_frame", { cause: error }));
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
    this.#heartbeat(this.#pingMs);
    this.#ports.opened(connack);
  }

  /**
   * Only an unanswered ping ends the connection, never silence, because browsers delay the timers
   * of background pages.
   */
  #heartbeat(silenceMs: number): void {
    const { pongMs } = this.#ports.timeouts;
    const now = performance.now();
    const isLate = this.#pingedAt !== undefined && now - this.#pingedAt >= pongMs;
    if (isLate) return this.fail(new JindouError("timeout"));
    if (this.#pingedAt === undefined && now - this.#lastFrameAt >= silenceMs) {
      this.#pingedAt = now;
      this.#ports.socket.send(encodeOperation({ kind: "ping", ref: 0 }));
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
    release(this.#ports.socket);
    const { code, error = this.#refusal } = end;
    this.#requests.fail(new JindouError("connection_lost"));
    this.#ports.ended({ code, error, isConnectSent: this.#isConnectSent });
  }
}

class OpenRequests {
  readonly #open = new Map<number, OpenRequest>();
  readonly #timeoutMs: number;
  #lastRef = 0;

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  /** Refs repeat after 2^32 - 1 requests, when the old request has long ended. */
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
    return answer.promise as Promise<ReplyTo<K>>; // `settle` rejects every other kind of reply
  }

  settle(reply: Reply): void {
    const open = this.#open.get(reply.ref);
    if (open === undefined) return; // the request timed out
    this.#open.delete(reply.ref);
    clearTimeout(open.timer);
    if (reply.kind !== open.kind) return open.answer.reject(refusal(reply));
    open.seen?.(reply as never); // the kind was compared above
    open.answer.resolve(reply);
  }

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
    return new JindouError("internal", { message: `Unexpected reply ${reply.kind}` });
  const { code, message, retryAfterMs } = reply;
  return new JindouError(code, { message, retryAfterMs });
}

/** Returns true if only a newer server sends such a frame, which is then ignored. */
function isUnknownFrame(error: unknown): boolean {
  return error instanceof Error && "fatal" in error && error.fatal === false;
}
