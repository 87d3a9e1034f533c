// Limits the unread bytes of each user's connections, and of all of the node's client connections
// [decisions: Limits that hold under attack]. The connection with the most unread bytes is closed
// first. State: the sums, and the users who have connections with more unread bytes than
// `IGNORED_SHARE` allows.

import type { TurnEnd } from "./turn-end.ts";

export interface UnreadReader {
  /** Name of the user, or `undefined` before the login. */
  readonly owner: string | undefined;
  readonly unreadBytes: number;
  /** Measures the unread bytes again, and passes a change to `UnreadBytes.changed`. */
  measure(): void;
  /** Closes the socket soon, without a close frame. The unread bytes count as 0 from now on. */
  drop(): void;
}

interface Limits {
  readonly perUser: number;
  readonly total: number;
}

interface Owner {
  bytes: number;
  readonly readers: Set<UnreadReader>;
}

/** Fraction of `perUser` up to which a connection's unread bytes are not counted for its user. */
const IGNORED_SHARE = 1 / 256;

export class UnreadBytes {
  readonly #limits: Limits;
  readonly #readers: Iterable<UnreadReader>;
  readonly #turnEnd: TurnEnd;
  readonly #ignoredBytes: number;
  readonly #owners = new Map<string, Owner>();
  readonly #overOwners = new Set<string>();
  #total = 0;
  #isScheduled = false;

  constructor(limits: Limits, readers: Iterable<UnreadReader>, turnEnd: TurnEnd) {
    this.#limits = limits;
    this.#readers = readers;
    this.#turnEnd = turnEnd;
    this.#ignoredBytes = limits.perUser * IGNORED_SHARE;
  }

  /**
   * Records a change in a connection's unread bytes. If a limit is exceeded, closes connections at
   * the end of the turn.
   */
  changed(reader: UnreadReader, before: number, after: number): void {
    this.#total += after - before;
    const { owner } = reader;
    if (owner !== undefined) this.#changeOwner(owner, reader, before, after);
    if (this.#total > this.#limits.total || this.#overOwners.size > 0) this.#schedule();
  }

  #changeOwner(name: string, reader: UnreadReader, before: number, after: number): void {
    const countsAfter = after > this.#ignoredBytes;
    const existing = this.#owners.get(name);
    if (existing === undefined && !countsAfter) return;
    const owner = existing ?? { bytes: 0, readers: new Set() };
    if (owner.readers.has(reader)) owner.bytes -= before;
    if (countsAfter) {
      owner.bytes += after;
      owner.readers.add(reader);
      this.#owners.set(name, owner);
      if (owner.bytes > this.#limits.perUser) this.#overOwners.add(name);
    } else if (owner.readers.delete(reader) && owner.readers.size === 0) this.#owners.delete(name);
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#turnEnd.add(this);
  }

  turnEnded(): void {
    this.#isScheduled = false;
    for (const name of this.#overOwners) {
      const owner = this.#owners.get(name);
      if (owner !== undefined) cutLargest(owner.readers, () => owner.bytes > this.#limits.perUser);
    }
    this.#overOwners.clear();
    cutLargest(this.#readers, () => this.#total > this.#limits.total);
  }
}

function cutLargest(readers: Iterable<UnreadReader>, isOver: () => boolean): void {
  if (!isOver()) return;
  const sorted = [...readers];
  for (const reader of sorted) reader.measure();
  sorted.sort((a, b) => b.unreadBytes - a.unreadBytes);
  for (const reader of sorted) {
    if (!isOver() || reader.unreadBytes === 0) return;
    reader.drop();
  }
}
