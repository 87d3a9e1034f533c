// Limits the connections of a node: all of them by file descriptors, unauthenticated ones by client
// address. uWebSockets.js identifies a closing connection only if it never sent a request. Until
// its first request a connection occupies a slot; after that, each call without a credential counts
// until its reply, which closes the connection. A request releases the oldest slot of its address,
// because the slot of its own connection is not known, and a slot that is not released expires
// after one to two rounds.

import type { DescriptorReserve } from "./descriptors.ts";

type SocketRefusal = "max" | "address" | "descriptors";

interface SocketLimitsPorts {
  /** Returns the limit of all sockets. Called once, at the first `start`. */
  readonly capacity: () => number;
  /** Maximum number of unauthenticated sockets per address. 0 means no limit. */
  readonly maxUnauthenticatedPerAddress: number;
  readonly reserve: DescriptorReserve;
  onRefused(reason: SocketRefusal, address: string): void;
}

interface Tally {
  /** Slots occupied since this round began. */
  young: number;
  /** Slots occupied in the previous round. */
  old: number;
  /** Calls and client sockets without a credential. */
  held: number;
}

/** Length of a round. It is longer than the 12 s that uWebSockets.js waits for a request. */
const ROUND_MS = 15_000;
/** Requests are watched while an address uses more than 1/`WATCHED_SHARE` of its limit. */
const WATCHED_SHARE = 4;
/** Maximum number of entries. Above a quarter of it all requests are watched. */
const MAX_ADDRESSES = 65_536;
/** At most 1/`SPARE_SHARE` of all sockets is left free for other listeners. */
const SPARE_SHARE = 8;

export class SocketLimits {
  readonly #ports: SocketLimitsPorts;
  readonly #tallies = new Map<string, Tally>();
  #max = Number.POSITIVE_INFINITY;
  #maxPerAddress = Number.POSITIVE_INFINITY;
  #isStarted = false;
  #open = 0;
  #round = 0;
  #rounds: NodeJS.Timeout | undefined;
  #isWatching = false;

  constructor(ports: SocketLimitsPorts) {
    this.#ports = ports;
  }

  get open(): number {
    return this.#open;
  }

  /** Maximum number of sockets of this node. `Infinity` before the start. */
  get max(): number {
    return this.#max;
  }

  /** True if `requested` must be called for each request. */
  get isWatching(): boolean {
    return this.#isWatching;
  }

  start(): void {
    if (this.#isStarted) return;
    this.#isStarted = true;
    this.#ports.reserve.start();
    this.#max = this.#ports.capacity();
    const { maxUnauthenticatedPerAddress: limit } = this.#ports;
    if (limit > 0) this.#maxPerAddress = Math.max(1, Math.min(limit, Math.floor(this.#max / 2)));
  }

  stop(): void {
    this.#ports.reserve.stop();
    clearInterval(this.#rounds);
  }

  /**
   * Counts an accepted connection. `spare` sockets, at most an eighth of all, are left free for
   * other listeners. Returns `undefined` if the connection must be closed at once, otherwise a
   * function to call if it closes before its first request. `closed` must be called in both cases.
   */
  accepted(address: string, spare: number): (() => void) | undefined {
    this.#open += 1;
    if (this.#ports.reserve.isExhausted) return this.#refuse("descriptors", address);
    const reserved = Math.min(spare, this.#max / SPARE_SHARE);
    if (this.#open > this.#max - reserved) return this.#refuse("max", address);
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return noop;
    const tally = this.#tally(address);
    if (tally === undefined) return this.#refuse("max", address);
    if (total(tally) >= this.#maxPerAddress) return this.#refuse("address", address);
    tally.young += 1;
    if (total(tally) * WATCHED_SHARE > this.#maxPerAddress) this.#isWatching = true;
    const round = this.#round;
    return () => {
      if (round === this.#round) tally.young = decremented(tally.young);
      else if (round === this.#round - 1) tally.old = decremented(tally.old);
      this.#dropEmpty(address, tally);
    };
  }

  /** Counts the close of a connection, even of a connection that was refused. */
  closed(): void {
    this.#open -= 1;
  }

  /** Releases a slot of the address, because one of its connections sent a request. */
  requested(address: string): void {
    const tally = this.#tallies.get(address);
    if (tally === undefined) return;
    if (tally.old > 0) tally.old -= 1;
    else tally.young = decremented(tally.young);
    this.#dropEmpty(address, tally);
  }

  /**
   * Counts a connection without a credential until the returned function is called, once. Returns
   * `undefined` if the connection must be closed.
   */
  hold(address: string): (() => void) | undefined {
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return noop;
    const tally = this.#tally(address);
    if (tally === undefined) return this.#refuse("max", address);
    if (total(tally) >= this.#maxPerAddress) return this.#refuse("address", address);
    tally.held += 1;
    return () => {
      tally.held -= 1;
      this.#dropEmpty(address, tally);
    };
  }

  /** Returns true if a refused connection may stay open, counted, until it closes by itself. */
  allowLateClose(address: string): boolean {
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return true;
    const tally = this.#tally(address);
    if (tally === undefined || total(tally) >= this.#maxPerAddress) return false;
    tally.young += 1;
    return true;
  }

  /** Returns the counts of the address, `undefined` if too many addresses are counted. */
  #tally(address: string): Tally | undefined {
    const existing = this.#tallies.get(address);
    if (existing !== undefined) return existing;
    if (this.#tallies.size >= MAX_ADDRESSES) return undefined;
    if (this.#tallies.size * WATCHED_SHARE > MAX_ADDRESSES) this.#isWatching = true;
    const tally: Tally = { young: 0, old: 0, held: 0 };
    this.#tallies.set(address, tally);
    this.#rounds ??= setInterval(() => this.#nextRound(), ROUND_MS).unref();
    return tally;
  }

  #dropEmpty(address: string, tally: Tally): void {
    if (total(tally) === 0 && this.#tallies.get(address) === tally) this.#tallies.delete(address);
  }

  #nextRound(): void {
    this.#round += 1;
    this.#isWatching = this.#tallies.size * WATCHED_SHARE > MAX_ADDRESSES;
    for (const [address, tally] of this.#tallies) {
      tally.old = tally.young;
      tally.young = 0;
      if (total(tally) === 0) this.#tallies.delete(address);
      else if (total(tally) * WATCHED_SHARE > this.#maxPerAddress) this.#isWatching = true;
    }
    if (this.#tallies.size > 0) return;
    clearInterval(this.#rounds);
    this.#rounds = undefined;
  }

  #refuse(reason: SocketRefusal, address: string): undefined {
    this.#ports.onRefused(reason, address);
    return undefined;
  }
}

function noop(): void {}

function total({ young, old, held }: Tally): number {
  return young + old + held;
}

function decremented(count: number): number {
  return count > 0 ? count - 1 : 0;
}
