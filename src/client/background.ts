// The client's own requests: history, stream snapshots, acknowledgements. Paced below the server's
// frame rate, so that the app's calls are never delayed. State: the queue. What fails temporarily
// is retried on the same connection; when that is lost, requests are rejected, since their senders
// start again with the next one.

import type { Ask, Connection } from "./connection.ts";
import { asJindouError, isLost, JindouError } from "./errors.ts";
import { type Deferred, deferred, sleep, Timer } from "./waiting.ts";

/** Twice as many as a server answers at a time for one connection. */
const MAX_IN_FLIGHT = 8;
/** After so many requests there is a pause … */
const PACE_REQUESTS = 16;
/** … which leaves half of the server's frames per second to others. */
const PACE_MS = 2 * 1000 * PACE_REQUESTS;
const RETRY_MS = 500;
/** The longest delay: 32 s. */
const MAX_DOUBLINGS = 6;
/** Codes that concern the server, not the request: all requests wait. */
const SLOW_DOWN: readonly string[] = [
  "rate_limited",
  "overloaded",
  "unavailable",
];

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
      if (this.#sent % PACE_REQUESTS === 0 && this.#paceMs > 0)
        this.#hold.start(this.#paceMs);
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
