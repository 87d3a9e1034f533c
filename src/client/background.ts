// What the client asks on its own account: missed messages, how streams stand, acknowledgements. A few at a time, and slower than a server
// takes frames, so that the app's own calls always get through. State: those that wait for their turn. What fails for the moment is
// asked again while the connection is the same; with the connection it is rejected, as whoever asked begins anew with the next one.

import type { Ask, Connection } from "./connection.ts";
import { asJindouError, isLost, JindouError } from "./errors.ts";
import { type Deferred, deferred, sleep, Timer } from "./waiting.ts";

/** Twice as many as a server answers at a time for one connection. */
const MAX_UNDER_WAY = 8;
/** After so many it takes a breath … */
const PACE_ASKS = 16;
/** … that leaves half of the frames which the server takes in a second to others. */
const PACE_MS = 2 * 1000 * PACE_ASKS;
const RETRY_MS = 500;
/** The longest wait of what fails again and again: 32 s. */
const MAX_DOUBLINGS = 6;
/** It is not about what was asked: nothing is asked for a while. */
const SLOW_DOWN: readonly string[] = [
  "rate_limited",
  "overloaded",
  "unavailable",
];

export class Background {
  #connection: Connection | undefined;
  #paceMs = 0;
  #waiting: Deferred<void>[] = [];
  #underWay = 0;
  #asked = 0;
  /** Nothing leaves while it runs. */
  readonly #hold = new Timer(() => this.#leave());

  /** Rejects with `connection_lost` when the connection ends, else with what is refused for good. */
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
        waitMs = waitFor(error, failures);
        if (SLOW_DOWN.includes(error.code)) this.#hold.start(waitMs);
      } finally {
        this.#underWay -= 1;
        this.#leave();
      }
      await sleep(waitMs);
    }
  };

  /** `maxFramesPerSecond`: what the server takes; 0: anything. */
  opened(connection: Connection, maxFramesPerSecond: number): void {
    this.#connection = connection;
    this.#paceMs = maxFramesPerSecond && PACE_MS / maxFramesPerSecond;
  }

  lost(): void {
    this.#connection = undefined;
    this.#hold.stop();
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const turn of waiting) turn.reject(new JindouError("connection_lost"));
  }

  /** Resolves when it may leave. Missed messages can be many: they wait behind all else. */
  #turn(isPatient: boolean): Promise<void> {
    const turn = deferred<void>();
    if (isPatient) this.#waiting.push(turn);
    else this.#waiting.unshift(turn);
    this.#leave();
    return turn.promise;
  }

  #leave(): void {
    while (this.#underWay < MAX_UNDER_WAY && !this.#hold.isRunning) {
      const turn = this.#waiting.shift();
      if (turn === undefined) return;
      this.#underWay += 1;
      this.#asked += 1;
      if (this.#asked % PACE_ASKS === 0 && this.#paceMs > 0)
        this.#hold.start(this.#paceMs);
      turn.resolve();
    }
  }
}

/** Partly chance, so that clients that were refused together do not come back together. */
function waitFor({ retryAfterMs }: JindouError, failures: number): number {
  const doublings = Math.min(failures, MAX_DOUBLINGS);
  const ms = retryAfterMs || RETRY_MS * 2 ** doublings;
  return ms * (1 + Math.random() / 2);
}
