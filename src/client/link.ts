// One connection from its opening to its end: the handshake, requests and answers, pushes, the heartbeat. Never reconnects.
// Status: opening → open → over. `ended` is called once and last; nothing is called after it.

import { CLOSE_REASONS } from "../broker/errors.ts";
import {
  decodeServerFrame,
  type ServerFrame,
} from "../protocol/native/client-decode.ts";
import { encodeOperation } from "../protocol/native/client-encode.ts";
import type { Operation, Push, Reply } from "../protocol/protocol.ts";
import { asJindouError, JindouError } from "./errors.ts";
import {
  OpenRequests,
  type ReplyTo,
  type Request,
  type RequestKind,
} from "./requests.ts";
import { drop, type SocketLike } from "./socket.ts";

export type Connack = Extract<Reply, { readonly kind: "connack" }>;

/** How a connection ended. */
export interface LinkEnd {
  /** WebSocket close code; 1006 when it was just gone. */
  readonly code: number;
  /** Why CONNECT was refused, or what made this side give up. */
  readonly error: JindouError | undefined;
  /** It came so far that CONNECT was sent. */
  readonly isGreeted: boolean;
}

export interface LinkParts {
  readonly socket: SocketLike;
  readonly uid: string;
  /** The CONNECT frame. */
  readonly greeting: Uint8Array;
  readonly timeouts: {
    readonly connectMs: number;
    readonly requestMs: number;
    readonly pingMs: number;
    readonly pongMs: number;
  };
  opened(connack: Connack): void;
  pushed(push: Push): void;
  ended(end: LinkEnd): void;
}

/** The close code for a connection that is simply gone. */
const GONE = 1006;
/** How long a server may take to answer a goodbye. */
const GOODBYE_MS = 1000;

export class Link {
  readonly #parts: LinkParts;
  readonly #requests: OpenRequests;
  #status: "opening" | "open" | "over" = "opening";
  #maxFrameBytes = Number.POSITIVE_INFINITY;
  #refused: JindouError | undefined;
  #isGreeted = false;
  #timer: ReturnType<typeof setTimeout>;
  #pingMs = 0;
  /** Of a clock that nobody sets. */
  #heardAt = 0;
  #pingedAt: number | undefined;

  constructor(parts: LinkParts) {
    const { socket, timeouts } = parts;
    this.#parts = parts;
    this.#requests = new OpenRequests(timeouts.requestMs);
    this.#timer = setTimeout(
      () => this.fail(new JindouError("timeout")),
      timeouts.connectMs,
    );
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#isGreeted = true;
      socket.send(parts.greeting);
    };
    socket.onmessage = ({ data }) => this.#received(data);
    socket.onclose = ({ code }) => this.#end({ code });
    socket.onerror = () => undefined; // a close follows and says as much
  }

  /** Sends a request and resolves with its answer. Rejects with the refusal, `timeout`, `connection_lost`, `too_large`, `bad_request`. */
  async request<K extends RequestKind>(
    request: Request<K>,
    seen?: (reply: ReplyTo<K>) => void,
  ): Promise<ReplyTo<K>> {
    if (this.#status !== "open") throw new JindouError("connection_lost");
    const ref = this.#requests.nextRef();
    // the number completes the request to the operation it was taken from, which the compiler cannot see through the generic
    const frame = this.#encode({ ...request, ref } as unknown as Operation);
    const answer = this.#requests.expect<K>(request.kind, ref, seen);
    this.#parts.socket.send(frame);
    return answer;
  }

  /** Asks for a sign of life now: the network may be another one. */
  probe(): void {
    if (this.#status === "open") this.#watchPulse(0);
  }

  /** Gives the connection up, and says why to `ended`. Harmless when it is over. */
  fail(error: JindouError): void {
    this.#end({ code: GONE, error });
  }

  /** Says goodbye; resolves when the connection is over, at the latest after a second. */
  async goodbye(): Promise<void> {
    if (this.#status !== "open") return this.#end({ code: GONE });
    const { socket } = this.#parts;
    this.#end({ code: GONE }, () => undefined);
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, GOODBYE_MS);
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
    if (frame.length > this.#maxFrameBytes) throw new JindouError("too_large"); // the server would end the connection
    return frame;
  }

  #received(data: unknown): void {
    if (this.#status === "over") return; // saying goodbye
    this.#heardAt = performance.now();
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
    if (frame.kind === "disconnect")
      this.#end({ code: CLOSE_REASONS[frame.reason].code });
    else if (this.#status === "opening") this.#greeted(frame);
    else if ("ref" in frame) this.#requests.settle(frame);
    else this.#parts.pushed(frame);
  }

  #greeted(frame: ServerFrame): void {
    if (frame.kind === "connack") this.#open(frame);
    else if (frame.kind === "error") {
      const { code, message, retryAfterMs } = frame;
      this.#refused = new JindouError(code, { message, retryAfterMs });
    }
  }

  #open(connack: Connack): void {
    const { maxFrameBytes, idleTimeoutS } = connack.limits;
    const { pingMs } = this.#parts.timeouts;
    this.#pingMs = Math.min(pingMs, (idleTimeoutS * 1000) / 2);
    this.#status = "open";
    this.#maxFrameBytes = maxFrameBytes;
    this.#watchPulse(this.#pingMs);
    this.#parts.opened(connack);
  }

  /**
   * Asks for a sign of life when the silence is that long. A page in the background has its timers slowed down: only an unanswered ping is
   * a sign of death, not silence.
   */
  #watchPulse(silenceMs: number): void {
    const { pongMs } = this.#parts.timeouts;
    const now = performance.now();
    const isLate =
      this.#pingedAt !== undefined && now - this.#pingedAt >= pongMs;
    if (isLate) return this.fail(new JindouError("timeout"));
    if (this.#pingedAt === undefined && now - this.#heardAt >= silenceMs) {
      this.#pingedAt = now;
      this.#parts.socket.send(encodeOperation({ kind: "ping", ref: 0 }));
    }
    const next =
      this.#pingedAt === undefined
        ? this.#heardAt + this.#pingMs
        : Math.min(this.#pingedAt + pongMs, now + this.#pingMs);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      () => this.#watchPulse(this.#pingMs),
      Math.max(next - now, 10),
    );
  }

  #end(
    end: Partial<LinkEnd> & { readonly code: number },
    letGo: (socket: SocketLike) => void = drop,
  ): void {
    if (this.#status === "over") return;
    this.#status = "over";
    clearTimeout(this.#timer);
    letGo(this.#parts.socket);
    const { code, error = this.#refused } = end;
    this.#requests.fail(new JindouError("connection_lost"));
    this.#parts.ended({ code, error, isGreeted: this.#isGreeted });
  }
}

/** A frame of a newer server, to be ignored. */
function isUnknown(error: unknown): boolean {
  return error instanceof Error && "fatal" in error && error.fatal === false;
}
