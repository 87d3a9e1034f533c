// The queue in which the reads of one session wait: their answers may be large, so few are made at
// once, and none is made while much of the earlier ones is not taken yet. Histories also begin in
// turns between the users of the node. State: the waiting reads. How many may wait is the client's
// bound on operations.

import { BrokerError } from "../broker/errors.ts";
import { FairSemaphore } from "../lib/fair-semaphore.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { OperationKind } from "../protocol/protocol.ts";
import type { Rate } from "./rates.ts";

/** An answer takes up to a quarter of what a connection may have unread. */
const READS_AT_ONCE = 4;
/** A list goes through all conversations of the user. */
const LISTS_AT_ONCE = 1;
/**
 * Histories of all sessions of a node that begin in one turn of the event loop; a store in the
 * process takes up to 4 ms for each.
 */
const HISTORIES_PER_TURN = 8;
/** More than the sessions of a user have under way by default. */
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

/**
 * The queue of all histories that are read over sockets of a node: they begin in turns between
 * users.
 */
export function createHistoryTurns(): FairSemaphore {
  const full = () =>
    new BrokerError("overloaded", {
      message: "Too many of the user's reads wait",
    });
  return new FairSemaphore(HISTORIES_PER_TURN, MAX_HISTORIES_WAITING, full);
}

/** A session, as its reads see it. */
interface Reader {
  readonly uid: string;
  readonly rate: Rate | undefined;
  /** Set when it is over. */
  readonly ended: unknown;
  /**
   * Resolves when no more than `bytes` wait to be taken by the client, or when the session is over.
   */
  writable(bytes: number): Promise<void>;
}

export class Reads {
  readonly #reader: Reader;
  readonly #maxUnreadBytes: number;
  readonly #turns: FairSemaphore;
  readonly #all = new Semaphore(READS_AT_ONCE);
  readonly #lists = new Semaphore(LISTS_AT_ONCE);

  /** While more than `maxUnreadBytes` wait to be taken by the client, a read keeps its place. */
  constructor(reader: Reader, maxUnreadBytes: number, turns: FairSemaphore) {
    this.#reader = reader;
    this.#maxUnreadBytes = maxUnreadBytes;
    this.#turns = turns;
  }

  /**
   * Reads when its turn comes, unless the session is over then. Rejects as `read` does; with
   * `overloaded` when too many reads of the user wait; with `rate_limited` a list whose session has
   * yet to pay for the one before, as what a list costs is known when it is made.
   */
  run(kind: OperationKind, read: Read): Promise<number | undefined> {
    switch (kind) {
      case "conversations":
        return this.#lists.run(() => this.#all.run(() => this.#list(read)));
      case "history":
        return this.#all.run(() => this.#answer(() => this.#history(read)));
      default:
        return this.#all.run(() => this.#answer(read));
    }
  }

  #list(read: Read): Promise<number | undefined> {
    this.#reader.rate?.requirePaid();
    return this.#answer(read);
  }

  /**
   * A place is held for one turn of the event loop, not for a round trip: where one shard is slow,
   * the histories of the others go on.
   */
  async #history(read: Read): Promise<number | undefined> {
    const begin = () => ({ work: read() });
    const begun = await this.#turns.run(this.#reader.uid, begin);
    return begun.work;
  }

  async #answer(read: Read): Promise<number | undefined> {
    if (this.#reader.ended !== undefined) return;
    const work = await read();
    await this.#reader.writable(this.#maxUnreadBytes);
    return work;
  }
}
