// The line in which the reads of one session wait: their answers may be large, so few are made at once, and none is made while much of the
// earlier ones is not taken yet. State: who waits. How many may wait is the client's bound on operations.

import { Line } from "../lib/line.ts";
import type { OperationKind } from "../protocol/protocol.ts";

/** An answer takes up to a quarter of what a connection may have unread. */
const READS_AT_ONCE = 4;
/** A list goes through all conversations of the user. */
const LISTS_AT_ONCE = 1;

const READS: ReadonlySet<OperationKind> = new Set<OperationKind>([
  "history",
  "conversations",
  "stream",
  "presence",
  "watch",
]);

export function isRead(kind: OperationKind): boolean {
  return READS.has(kind);
}

/** A session, as its reads see it. */
export interface Reader {
  /** Set when it is over. */
  readonly ended: unknown;
  /** Resolves when no more than `bytes` wait to be taken by the client, or when the session is over. */
  writable(bytes: number): Promise<void>;
}

export class Reads {
  readonly #reader: Reader;
  readonly #maxUnreadBytes: number;
  readonly #all = new Line(READS_AT_ONCE);
  readonly #lists = new Line(LISTS_AT_ONCE);

  /** While more than `maxUnreadBytes` wait to be taken by the client, a read keeps its place. */
  constructor(reader: Reader, maxUnreadBytes: number) {
    this.#reader = reader;
    this.#maxUnreadBytes = maxUnreadBytes;
  }

  /** Reads when its turn comes, unless the session is over then. Rejects as `read` does. */
  run(kind: OperationKind, read: () => Promise<void> | void): Promise<void> {
    const answer = () => this.#all.run(() => this.#answer(read));
    return kind === "conversations" ? this.#lists.run(answer) : answer();
  }

  async #answer(read: () => Promise<void> | void): Promise<void> {
    if (this.#reader.ended !== undefined) return;
    await read();
    await this.#reader.writable(this.#maxUnreadBytes);
  }
}
