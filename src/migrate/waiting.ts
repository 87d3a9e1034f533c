// What a process that waits for another one's move knows of it. State: since when nobody has the right to move.

import type { RedisLink } from "../redis/link.ts";
import { isHeld } from "./lease.ts";
import { type MoveProgress, type MoveRecord, progressIn } from "./record.ts";

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

export interface WaitingParts {
  /** Milliseconds without anybody after which a move counts as abandoned. */
  readonly abandonedAfterMs: number;
  /** The longest pause of a process between two tries. */
  readonly maxRetryMs: number;
}

export class Waiting {
  readonly #parts: WaitingParts;
  #nobodySinceMs: number | undefined;

  constructor(parts: WaitingParts) {
    this.#parts = parts;
  }

  /** To be called again and again while it is waited. Throws as the link does. */
  async look(
    link: Pick<RedisLink, "call" | "keys">,
    record: MoveRecord | undefined,
  ): Promise<OtherMove> {
    const isMoving = await isHeld(link);
    const nowMs = performance.now();
    if (isMoving) this.#nobodySinceMs = undefined;
    else this.#nobodySinceMs ??= nowMs;
    const forMs = nowMs - (this.#nobodySinceMs ?? nowMs);
    const isAbandoned = forMs > this.#patienceMs(record);
    const lastErr = isAbandoned
      ? [ABANDONED, record?.lastErr ?? []].flat().join("; its last error: ")
      : record?.lastErr;
    return { ...progressIn(record), isMoving, isAbandoned, lastErr };
  }

  /** Who failed tries again after a pause. */
  #patienceMs(record: MoveRecord | undefined): number {
    const { abandonedAfterMs, maxRetryMs } = this.#parts;
    const isPausing = record?.lastErr !== undefined;
    return abandonedAfterMs + (isPausing ? maxRetryMs : 0);
  }
}
