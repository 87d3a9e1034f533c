// Limits the logins that access the store at the same time, and the time that logins take in one
// turn of the event loop. Other clients' frames are handled between two turns.

import { PacedSteps } from "../lib/paced-steps.ts";
import { Semaphore } from "../lib/semaphore.ts";

/** Maximum number of short logins at the same time. */
const MAX_OPENINGS = 128;
/**
 * Maximum number of long logins at the same time. A login is long if its CONNECT, without the
 * token, has more than `SHORT_CONNECT_BYTES` bytes, because such a CONNECT usually has many resume
 * points.
 */
const MAX_LONG_OPENINGS = 24;
const SHORT_CONNECT_BYTES = 512;
/**
 * Time in one turn of the event loop after which no further login begins. If several logins
 * end at the same moment, the turn may take longer, because each of them lets one waiting login
 * begin.
 */
const MAX_MS = 3;

export class OpeningTurns {
  readonly #pace = new PacedSteps(MAX_MS);
  readonly #openings = new Semaphore(MAX_OPENINGS, this.#pace);
  readonly #longOpenings = new Semaphore(MAX_LONG_OPENINGS, this.#pace);

  /** Runs a step of a login. `bytes` is the size of the CONNECT without its token. */
  run<T>(bytes: number, step: () => Promise<T>): Promise<T> {
    return (bytes > SHORT_CONNECT_BYTES ? this.#longOpenings : this.#openings).run(step);
  }
}
