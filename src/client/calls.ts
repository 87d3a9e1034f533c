// The app's calls except `send`, all idempotent: each waits for a connection, is repeated after a
// lost one and after `rate_limited`, and times out. State: the calls without an answer.

import type {
  Ask,
  Connection,
  ReplyTo,
  Request,
  RequestKind,
} from "./connection.ts";
import { asJindouError, isLost, JindouError } from "./errors.ts";
import { type Deferred, deferred, Timer, within } from "./waiting.ts";

interface CallLimits {
  /** Limit of calls without an answer. */
  readonly maxQueued: number;
  readonly requestMs: number;
}

interface Call extends Pick<Deferred<never>, "reject"> {
  send(connection: Connection): void;
}

/** Calls that were rate-limited are repeated one at a time. */
const PACE_MS = 20;
const RETRY_MS = 500;

export class Calls {
  readonly #limits: CallLimits;
  readonly #open = new Set<Call>();
  #connection: Connection | undefined;
  #closed: JindouError | undefined;
  #connected = deferred<void>();
  /** Calls that wait for the end of the delay which the server asked for. */
  readonly #held = new Set<Call>();
  readonly #hold = new Timer(() => this.#sendNext());

  constructor(limits: CallLimits) {
    this.#limits = limits;
  }

  /** Rejects with the refusal, `timeout`, `queue_full`, or the reason the client was closed. */
  readonly call: Ask = async <K extends RequestKind>(
    request: Request<K>,
    seen?: (reply: ReplyTo<K>) => void,
  ) => {
    if (this.#closed !== undefined) throw this.#closed;
    if (this.#open.size >= this.#limits.maxQueued)
      throw new JindouError("queue_full");
    const { promise, resolve, reject } = deferred<ReplyTo<K>>();
    const send = (connection: Connection): void => {
      connection.request(request, seen).then(resolve, (error) => {
        if (isLost(error)) return; // the next connection repeats it
        const refusal = asJindouError(error, "connection_lost");
        if (refusal.code !== "rate_limited") reject(refusal);
        else if (connection === this.#connection)
          this.#retry(open, refusal.retryAfterMs);
      });
    };
    const open: Call = { send, reject };
    this.#open.add(open);
    if (this.#hold.isRunning) this.#held.add(open);
    else if (this.#connection !== undefined) send(this.#connection);
    try {
      return await within(this.#limits.requestMs, "timeout", promise);
    } finally {
      this.#open.delete(open);
      this.#held.delete(open);
    }
  };

  opened(connection: Connection): void {
    this.#connection = connection;
    this.#connected.resolve();
    for (const { send } of this.#open) send(connection);
  }

  lost(): void {
    this.#connection = undefined;
    this.#held.clear();
    this.#hold.stop();
    this.#connected = deferred();
  }

  /** All open and later calls are rejected with `error`. */
  close(error: JindouError): void {
    this.#connection = undefined;
    this.#hold.stop();
    this.#closed = error;
    this.#connected.reject(error);
    for (const { reject } of this.#open) reject(error);
  }

  /** Resolves when connected; rejects when closed. */
  connected(): Promise<void> {
    if (this.#closed !== undefined) return Promise.reject(this.#closed);
    return this.#connected.promise;
  }

  /** With jitter, so that a user's clients do not come back together. */
  #retry(call: Call, retryAfterMs: number): void {
    if (!this.#open.has(call)) return; // timed out
    this.#held.add(call);
    this.#hold.start((retryAfterMs || RETRY_MS) * (1 + Math.random() / 4));
  }

  #sendNext(): void {
    for (const call of this.#held) {
      this.#held.delete(call);
      if (this.#held.size > 0) this.#hold.start(PACE_MS);
      if (this.#connection !== undefined) call.send(this.#connection);
      return;
    }
  }
}
