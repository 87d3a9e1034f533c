// Requests on the connection of the moment. `Calls`, the app's except `send`, are idempotent: each
// waits for a connection, is repeated after a lost one and after `rate_limited`, and times out.
// `Background`, the client's own, is paced below the server's frame rate, so that the app's calls
// are never delayed; what fails temporarily is retried on the same connection, and rejected with
// it, since its senders start again with the next one. State: the requests without an answer.

import { type Deferred, deferred } from "../lib/deferred.ts";
import type { Ask, Connection, ReplyTo, Request, RequestKind } from "./connection.ts";
import { asJindouError, isLost, JindouError } from "./errors.ts";
import { sleep, Timer, within } from "./waiting.ts";

/** A refusal that names no time is retried after so long. */
const RETRY_MS = 500;
/** Calls that were rate-limited are repeated one at a time. */
const REPEAT_MS = 20;

interface CallLimits {
  /** Limit of calls without an answer. */
  readonly maxQueued: number;
  readonly requestMs: number;
}

interface Call extends Pick<Deferred<never>, "reject"> {
  send(connection: Connection): void;
}

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
    if (this.#open.size >= this.#limits.maxQueued) throw new JindouError("queue_full");
    const { promise, resolve, reject } = deferred<ReplyTo<K>>();
    const send = (connection: Connection): void => {
      connection.request(request, seen).then(resolve, (error) => {
        if (isLost(error)) return; // the next connection repeats it
        const refusal = asJindouError(error, "connection_lost");
        if (refusal.code !== "rate_limited") reject(refusal);
        else if (connection === this.#connection) this.#retry(open, refusal.retryAfterMs);
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
      if (this.#held.size > 0) this.#hold.start(REPEAT_MS);
      if (this.#connection !== undefined) call.send(this.#connection);
      return;
    }
  }
}

/** Twice as many as a server answers at a time for one connection. */
const MAX_IN_FLIGHT = 8;
/** After so many requests there is a pause … */
const PACE_REQUESTS = 16;
/** … which leaves half of the server's frames per second to others. */
const PACE_MS = 2 * 1000 * PACE_REQUESTS;
/** The longest delay: 32 s. */
const MAX_DOUBLINGS = 6;
/** Codes that concern the server, not the request: all requests wait. */
const SLOW_DOWN: readonly string[] = ["rate_limited", "overloaded", "unavailable"];

export class Background {
  #connection: Connection | undefined;
  #paceMs = 0;
  #queue: Deferred<void>[] = [];
  #inFlight = 0;
  #sent = 0;
  /** While it runs nothing is sent. */
  readonly #hold = new Timer(() => this.#sendNext());

  /** Rejects with `connection_lost` when the connection ends, else with permanent refusals. */
  readonly ask: Ask = async (request, seen) => {
    const connection = this.#connection;
    for (let failures = 0; ; failures++) {
      if (connection === undefined || connection !== this.#connection)
        throw new JindouError("connection_lost");
      await this.#turn(request.kind === "history");
      let waitMs: number;
      try {
        return await connection.request(request, seen);
      } catch (thrown) {
        const error = asJindouError(thrown, "connection_lost");
        if (!error.retry || isLost(error)) throw error;
        waitMs = retryDelay(error, failures);
        if (SLOW_DOWN.includes(error.code)) this.#hold.start(waitMs);
      } finally {
        this.#inFlight -= 1;
        this.#sendNext();
      }
      await sleep(waitMs);
    }
  };

  /** `maxFramesPerSecond` is the server's limit; 0: none. */
  opened(connection: Connection, maxFramesPerSecond: number): void {
    this.#connection = connection;
    this.#paceMs = maxFramesPerSecond && PACE_MS / maxFramesPerSecond;
  }

  lost(): void {
    this.#connection = undefined;
    this.#hold.stop();
    const queue = this.#queue;
    this.#queue = [];
    for (const turn of queue) turn.reject(new JindouError("connection_lost"));
  }

  /** Resolves when the request may be sent. History waits behind all else: it can be long. */
  #turn(isHistory: boolean): Promise<void> {
    const turn = deferred<void>();
    if (isHistory) this.#queue.push(turn);
    else this.#queue.unshift(turn);
    this.#sendNext();
    return turn.promise;
  }

  #sendNext(): void {
    while (this.#inFlight < MAX_IN_FLIGHT && !this.#hold.isRunning) {
      const turn = this.#queue.shift();
      if (turn === undefined) return;
      this.#inFlight += 1;
      this.#sent += 1;
      if (this.#sent % PACE_REQUESTS === 0 && this.#paceMs > 0) this.#hold.start(this.#paceMs);
      turn.resolve();
    }
  }
}

/** With jitter, so that clients refused together do not come back together. */
function retryDelay({ retryAfterMs }: JindouError, failures: number): number {
  const doublings = Math.min(failures, MAX_DOUBLINGS);
  const ms = retryAfterMs || RETRY_MS * 2 ** doublings;
  return ms * (1 + Math.random() / 2);
}
