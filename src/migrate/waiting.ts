// What a process that waits for another one's move knows of it. State: since when nobody has the right to move.

import { type MoveNow, type MoveProgress, progressIn } from "./record.ts";

/** A move by another process. */
export interface OtherMove extends MoveProgress {
  /** It is at it now. */
  readonly isMoving: boolean;
  /** Why its last try failed, until the next one begins; or that nobody goes on with it. */
  readonly lastErr: string | undefined;
  /** Nobody has been at it for so long that whoever was must be gone. */
  readonly isAbandoned: boolean;
}

const ABANDONED =
  "Nobody moves the data any more; start a process with migrate.from, or jindou migrate, which goes on where it was";
const LOST =
  "Redis has lost what it held of the move; start a process with migrate.from, or jindou migrate, which begins again; or this node again, which then serves what there is";

export interface WaitingParts {
  /** Milliseconds without anybody after which a move counts as abandoned: more than a process pauses between two tries. */
  readonly abandonedAfterMs: number;
}

export class Waiting {
  readonly #parts: WaitingParts;
  #nobodySinceMs: number | undefined;

  constructor(parts: WaitingParts) {
    this.#parts = parts;
  }

  /** To be called again and again while it is waited. */
  look({ record, isMoving }: MoveNow): OtherMove {
    const nowMs = performance.now();
    if (isMoving) this.#nobodySinceMs = undefined;
    else this.#nobodySinceMs ??= nowMs;
    const forMs = nowMs - (this.#nobodySinceMs ?? nowMs);
    const isAbandoned = forMs > this.#parts.abandonedAfterMs;
    const lastErr = isAbandoned
      ? [record === undefined ? LOST : ABANDONED, record?.lastErr ?? []]
          .flat()
          .join("; its last error: ")
      : record?.lastErr;
    return { ...progressIn(record), isMoving, isAbandoned, lastErr };
  }
}
