// Sends requests on the current connection and limits their number. `Calls` sends the app's
// requests except `send`. Requests made with `Calls.call` are sent again after a lost connection or
// a `rate_limited` error. `Background` sends the client's own requests, at a rate below the
// server's limit, so that they never delay the app's calls. When the connection is lost, the
// requests of `Background` are rejected, and their callers start again.

import { type Deferred, deferred } from "../lib/deferred.ts";
import type { Connection, ReplyTo, Request, RequestFunction, RequestKind } from "./connection.ts";
import { asJindouError, isConnectionLost, JindouError } from "./errors.ts";
import { sleep, Timer, within } from "./waiting.ts";

const RETRY_MS = 500;
const REPEAT_MS = 20;

interface CallLimits {
  readonly maxQueued: number;
  readonly requestMs: number;
}

interface Call extends Pick<Deferred<never>, "reject"> {
  send(connection: Connection): void;
}

export class Calls {
  readonly #limits: CallLimits;
  readonly #openCalls = new Set<Call>();
  #connection: Connection | undefined;
  #closed: JindouError | undefined;
  #connected = deferred<void>();
  readonly #rateLimited = new Set<Call>();
  readonly #rateLimitTimer = new Timer(() => this.#sendNext());

  constructor(limits: CallLimits) {
    this.#limits = limits;
  }

  /**
   * Sends a request. If `repeat` is passed, and the request has waited for a connection or was sent
   * before, calls `repeat` instead.
   */
  readonly call = async <K extends RequestKind>(
    request: Request<K>,
    seen?: (reply: ReplyTo<K>) => void,
    repeat?: (connection: Connection) => Promise<ReplyTo<K>>,
  ) => {
    if (this.#closed !== undefined) throw this.#closed;
    if (this.#openCalls.size >= this.#limits.maxQueued) throw new JindouError("queue_full");
    const { promise, resolve, reject } = deferred<ReplyTo<K>>();
    let firstConnection = this.#connection; // `undefined` after the first attempt
    const send = (connection: Connection): void => {
      const isFirst = repeat === undefined || connection === firstConnection;
      const reply = isFirst ? connection.request(request, seen) : repeat(connection);
      firstConnection = undefined;
      reply.then(resolve, (error) => {
        if (isConnectionLost(error)) return; // the next connection sends the request again
        const refusal = asJindouError(error, "connection_lost");
        if (refusal.code !== "rate_limited") reject(refusal);
        else if (connection === this.#connection) this.#retry(call, refusal.retryAfterMs);
      });
    };
    const call: Call = { send, reject };
    this.#openCalls.add(call);
    if (this.#rateLimitTimer.isRunning) this.#rateLimited.add(call);
    else if (this.#connection !== undefined) send(this.#connection);
    try {
      return await within(this.#limits.requestMs, "timeout", promise);
    } finally {
      this.#openCalls.delete(call);
      this.#rateLimited.delete(call);
    }
  };

  /** Sends a request on the current connection, or rejects with `connection_lost`. */
  readonly once: RequestFunction = async (request, seen) => {
    if (this.#closed !== undefined) throw this.#closed;
    if (this.#connection === undefined) throw new JindouError("connection_lost");
    return this.#connection.request(request, seen);
  };

  opened(connection: Connection): void {
    this.#connection = connection;
    this.#connected.resolve();
    for (const { send } of this.#openCalls) send(connection);
  }

  lost(): void {
    this.#connection = undefined;
    this.#rateLimited.clear();
    this.#rateLimitTimer.stop();
    this.#connected = deferred();
  }

  close(error: JindouError): void {
    this.#connection = undefined;
    this.#rateLimitTimer.stop();
    this.#closed = error;
    this.#connected.reject(error);
    for (const { reject } of this.#openCalls) reject(error);
  }

  connected(): Promise<void> {
    if (this.#closed !== undefined) return Promise.reject(this.#closed);
    return this.#connected.promise;
  }

  /** Schedules a retry with jitter, so that a user's clients do not all retry at the same time. */
  #retry(call: Call, retryAfterMs: number): void {
    if (!this.#openCalls.has(call)) return; // the call timed out
    this.#rateLimited.add(call);
    this.#rateLimitTimer.start((retryAfterMs || RETRY_MS) * (1 + Math.random() / 4));
  }

  #sendNext(): void {
    for (const call of this.#rateLimited) {
      this.#rateLimited.delete(call);
      if (this.#rateLimited.size > 0) this.#rateLimitTimer.start(REPEAT_MS);
      if (this.#connection !== undefined) call.send(this.#connection);
      return;
    }
  }
}

/**
 * Maximum number of background requests in flight: twice the number of reads that a server runs
 * concurrently for one connection.
 */
const MAX_IN_FLIGHT = 8;
const PACE_REQUESTS = 16;
/**
 * Product of the pause after `PACE_REQUESTS` requests, in milliseconds, and the server's limit on
 * frames per second. The pause leaves half of the limit to other requests.
 */
const PACE_MS = 2 * 1000 * PACE_REQUESTS;
const MAX_DOUBLINGS = 6;
/**
 * Error codes that concern more than a single request. After an error with such a code, all
 * background requests pause.
 */
const SLOW_DOWN: readonly string[] = [
  "rate_limited",
  "overloaded",
  "unavailable",
  "too_late",
  "disk_full",
];

export class Background {
  #connection: Connection | undefined;
  #paceMs = 0;
  #queue: Deferred<void>[] = [];
  #inFlight = 0;
  #sent = 0;
  /** Promise that resolves when the connection is lost. */
  #lost = deferred<void>();
  readonly #pause = new Timer(() => this.#sendNext());

  readonly ask: RequestFunction = async (request, seen) => {
    const connection = this.#connection;
    for (let failures = 0; ; failures++) {
      if (connection === undefined || connection !== this.#connection)
        throw new JindouError("connection_lost");
      await this.#waitForTurn(request.kind === "history");
      let waitMs: number;
      try {
        return await connection.request(request, seen);
      } catch (thrown) {
        const error = asJindouError(thrown, "connection_lost");
        if (!error.retry || isConnectionLost(error)) throw error;
        // a refusal on the old connection must not pause the requests on the new one
        if (connection !== this.#connection) continue;
        waitMs = retryDelay(error, failures);
        if (SLOW_DOWN.includes(error.code)) this.#pause.start(waitMs);
      } finally {
        this.#inFlight -= 1;
        this.#sendNext();
      }
      await Promise.race([sleep(waitMs), this.#lost.promise]);
    }
  };

  /** Starts sending on a connection. `maxFramesPerSecond` is 0 if the server has no limit. */
  opened(connection: Connection, maxFramesPerSecond: number): void {
    this.#connection = connection;
    this.#paceMs = maxFramesPerSecond && PACE_MS / maxFramesPerSecond;
  }

  lost(): void {
    this.#connection = undefined;
    this.#pause.stop();
    this.#lost.resolve();
    this.#lost = deferred();
    const queue = this.#queue;
    this.#queue = [];
    for (const turn of queue) turn.reject(new JindouError("connection_lost"));
  }

  /**
   * Resolves when the request may be sent. History requests come last, because their replies can be
   * long. Every second request is taken from the end of the queue, so that history requests do not
   * wait for all others.
   */
  #waitForTurn(isHistory: boolean): Promise<void> {
    const turn = deferred<void>();
    if (isHistory) this.#queue.push(turn);
    else this.#queue.unshift(turn);
    this.#sendNext();
    return turn.promise;
  }

  #sendNext(): void {
    while (this.#inFlight < MAX_IN_FLIGHT && !this.#pause.isRunning) {
      const turn = this.#sent % 2 === 0 ? this.#queue.shift() : this.#queue.pop();
      if (turn === undefined) return;
      this.#inFlight += 1;
      this.#sent += 1;
      if (this.#sent % PACE_REQUESTS === 0 && this.#paceMs > 0) this.#pause.start(this.#paceMs);
      turn.resolve();
    }
  }
}

/**
 * Returns a delay with jitter, so that clients that were refused together do not retry together.
 */
function retryDelay({ retryAfterMs }: JindouError, failures: number): number {
  const doublings = Math.min(failures, MAX_DOUBLINGS);
  const ms = retryAfterMs || RETRY_MS * 2 ** doublings;
  return ms * (1 + Math.random() / 2);
}
