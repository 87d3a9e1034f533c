// The queue of one session's read operations. Their replies may be large, so only a few run at
// once. A finished read keeps its slot while the client has too many unread bytes. Reads of
// histories are also scheduled fairly among the users of a node. State: the waiting reads. Their
// number is limited by the number of operations that a client may have running.

import { BrokerError } from "../broker/errors.ts";
import { FairSemaphore } from "../lib/fair-semaphore.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { OperationKind } from "../protocol/protocol.ts";
import type { Rate } from "./rates.ts";

/**
 * Maximum number of reads of one session that run at once. A reply may be as large as a quarter of
 * the bytes that a connection may leave unread.
 */
const READS_AT_ONCE = 4;
/**
 * Maximum number of conversation lists that are read at once for one session. Reading a list
 * examines all conversations of the user.
 */
const LISTS_AT_ONCE = 1;
/**
 * Maximum number of history reads that start in one turn of the event loop, over all sessions of a
 * node. With the embedded store, each may take up to 4 ms.
 */
const HISTORIES_PER_TURN = 8;
/**
 * Maximum number of waiting history reads of one user. The sessions of a user cannot reach it with
 * the default options.
 */
const MAX_HISTORIES_WAITING = 1000;

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

type Read = () => Promise<number | undefined> | undefined;

/** Creates the queue for the history reads of all sockets of a node. The users take turns. */
export function createHistoryTurns(): FairSemaphore {
  const tooMany = () =>
    new BrokerError("overloaded", {
      message: "Too many history requests of the user are waiting. Try again later.",
    });
  return new FairSemaphore(HISTORIES_PER_TURN, MAX_HISTORIES_WAITING, tooMany);
}

/** The part of a session that its reads use. */
interface Reader {
  readonly uid: string;
  readonly rate: Rate | undefined;
  /** Set if the session has ended. */
  readonly ended: unknown;
  /** Resolves when the client has at most `bytes` unread bytes, or when the session has ended. */
  writable(bytes: number): Promise<void>;
}

export class Reads {
  readonly #reader: Reader;
  readonly #maxUnreadBytes: number;
  readonly #turns: FairSemaphore;
  readonly #slots = new Semaphore(READS_AT_ONCE);
  readonly #listSlots = new Semaphore(LISTS_AT_ONCE);

  /**
   * A read that is done keeps its slot while the client has more than `maxUnreadBytes` unread
   * bytes.
   */
  constructor(reader: Reader, maxUnreadBytes: number, turns: FairSemaphore) {
    this.#reader = reader;
    this.#maxUnreadBytes = maxUnreadBytes;
    this.#turns = turns;
  }

  /**
   * Runs the read in its turn, unless the session has ended by then. Rejects with the error of
   * `read`. Rejects with `overloaded` if too many reads of the user are waiting. Rejects a
   * conversation list with `rate_limited` while the previous list has left the budget in debt,
   * because the work of a list is known only after it ran.
   */
  run(kind: OperationKind, read: Read): Promise<number | undefined> {
    switch (kind) {
      case "conversations":
        return this.#listSlots.run(() => this.#slots.run(() => this.#runList(read)));
      case "history":
        return this.#slots.run(() => this.#runUnlessEnded(() => this.#runHistory(read)));
      default:
        return this.#slots.run(() => this.#runUnlessEnded(read));
    }
  }

  #runList(read: Read): Promise<number | undefined> {
    this.#reader.rate?.requirePaid();
    return this.#runUnlessEnded(read);
  }

  /**
   * Runs a history read. Holds its turn only while the read starts, not until it ends, so that a
   * slow shard does not delay history reads from other shards.
   */
  async #runHistory(read: Read): Promise<number | undefined> {
    const begin = () => ({ work: read() });
    const started = await this.#turns.run(this.#reader.uid, begin);
    return started.work;
  }

  async #runUnlessEnded(read: Read): Promise<number | undefined> {
    if (this.#reader.ended !== undefined) return;
    const work = await read();
    await this.#reader.writable(this.#maxUnreadBytes);
    return work;
  }
}
