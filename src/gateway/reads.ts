// The queue of one session's read operations. Their replies may be large, so at most
// `READS_AT_ONCE` reads run at once, and a finished read keeps its slot while the client has more
// than `maxUnreadBytes` unread bytes. History reads are also scheduled fairly among a node's users.

import { BrokerError } from "../broker/errors.ts";
import { FairSemaphore } from "../lib/fair-semaphore.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { Operation, OperationKind } from "../protocol/protocol.ts";
import type { Rate } from "./rates.ts";

/**
 * Maximum number of concurrent reads. Each may return up to a quarter of `client.maxBufferedBytes`.
 */
const READS_AT_ONCE = 4;
/**
 * Maximum number of lists that are read at once. Each read may examine all conversations or all
 * members.
 */
const LISTS_AT_ONCE = 1;
/**
 * Maximum number of history reads that start per turn of the event loop. With the embedded store,
 * each of them may take up to 4 ms.
 */
const HISTORIES_PER_TURN = 2;
/**
 * Maximum number of one user's history reads that wait for a turn. By default, at most 400 reads
 * wait: `READS_AT_ONCE` in each of 100 sessions.
 */
const MAX_HISTORIES_WAITING = 1000;

const READS: ReadonlySet<OperationKind> = new Set<OperationKind>([
  "history",
  "conversations",
  "members",
  "stream",
  "presence",
  "watch",
]);

export function isRead(operation: Operation): boolean {
  if (operation.kind === "conversation") return operation.change === undefined;
  return READS.has(operation.kind);
}

type Read = () => Promise<number | undefined> | undefined;

export function createHistoryTurns(): FairSemaphore {
  const tooMany = () =>
    new BrokerError("overloaded", {
      message: "Too many history requests from this user are waiting. Try again later.",
    });
  return new FairSemaphore(HISTORIES_PER_TURN, MAX_HISTORIES_WAITING, tooMany);
}

interface Reader {
  readonly uid: string;
  readonly rate: Rate | undefined;
  readonly ended: unknown;
  writable(bytes: number): Promise<void>;
}

export class Reads {
  readonly #reader: Reader;
  readonly #maxUnreadBytes: number;
  readonly #turns: FairSemaphore;
  readonly #slots = new Semaphore(READS_AT_ONCE);
  readonly #listSlots = new Semaphore(LISTS_AT_ONCE);

  constructor(reader: Reader, maxUnreadBytes: number, turns: FairSemaphore) {
    this.#reader = reader;
    this.#maxUnreadBytes = maxUnreadBytes;
    this.#turns = turns;
  }

  /**
   * Runs a read when a slot is free. While the budget is in debt, a read whose work is not known in
   * advance, such as a list of conversations, is rejected with `rate_limited`.
   */
  run(kind: OperationKind, read: Read): Promise<number | undefined> {
    switch (kind) {
      case "conversations":
      case "members":
        return this.#listSlots.run(() => this.#slots.run(() => this.#runPaid(read)));
      case "conversation":
      case "stream":
        return this.#slots.run(() => this.#runPaid(read));
      case "history":
        return this.#slots.run(() => this.#runUnlessEnded(() => this.#runHistory(read)));
      default:
        return this.#slots.run(() => this.#runUnlessEnded(read));
    }
  }

  #runPaid(read: Read): Promise<number | undefined> {
    this.#reader.rate?.requirePaid();
    return this.#runUnlessEnded(read);
  }

  /**
   * Runs a history read. The read holds its turn only while it starts, so that a slow Redis server
   * does not delay other users.
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
