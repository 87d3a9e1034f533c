// Which connections a node takes: as many as there are descriptors, and of one client address no more than a few that have not shown a
// credential. State: how many sockets are open, and for each address how many of them are unauthenticated. Shared by the listeners of a node.
//
// uWebSockets.js names no connection when it closes, except one on which no request has come yet: until its first request a connection
// holds a slot, and gives it back when it closes. From its first request on calls without a credential count while they last, and their
// connection is closed with the answer. What is not given back is forgotten after one to two rounds, which are longer than the
// library lets a connection be silent. A request gives back the oldest slot of its address (its own connection's is not known); its address is
// read only while some address has many slots.

import type { DescriptorReserve } from "./descriptors.ts";

/** Why a connection was not taken. */
export type SocketRefusal = "max" | "address" | "descriptors";

export interface SocketLimitsParts {
  /** Of all sockets; asked once, at the first `start`. */
  readonly capacity: () => number;
  /** 0 = unlimited. */
  readonly maxUnauthenticatedPerAddress: number;
  readonly reserve: DescriptorReserve;
  /** Called for each connection that was closed at once. */
  onRefused(reason: SocketRefusal, address: string): void;
}

/** The unauthenticated sockets of one address. */
interface Tally {
  /** Slots of this round and of the one before. */
  young: number;
  old: number;
  /** What calls and client sockets hold until they give it back. */
  held: number;
}

/** Longer than uWebSockets.js waits for a request, 12 s. */
const ROUND_MS = 15_000;
/** Above this share of its limit, a quarter, an address is watched. */
const WATCHED_SHARE = 4;
/** Addresses counted at once. Above a quarter, all are watched, so that only connections without a request keep an entry. */
const MAX_ADDRESSES = 65_536;
const SPARE_SHARE = 8;

export class SocketLimits {
  readonly #parts: SocketLimitsParts;
  readonly #tallies = new Map<string, Tally>();
  #max = Number.POSITIVE_INFINITY;
  #maxPerAddress = Number.POSITIVE_INFINITY;
  #isStarted = false;
  #open = 0;
  #round = 0;
  #rounds: NodeJS.Timeout | undefined;
  #isWatching = false;

  constructor(parts: SocketLimitsParts) {
    this.#parts = parts;
  }

  /** Sockets open now. */
  get open(): number {
    return this.#open;
  }

  /** Sockets this node holds at most; Infinity before the start. */
  get max(): number {
    return this.#max;
  }

  /** Whether requests are to be reported by `requested`. */
  get isWatching(): boolean {
    return this.#isWatching;
  }

  /** Finds out what the process may hold; safe to call again. */
  start(): void {
    if (this.#isStarted) return;
    this.#isStarted = true;
    this.#parts.reserve.start();
    this.#max = this.#parts.capacity();
    const { maxUnauthenticatedPerAddress: limit } = this.#parts;
    if (limit > 0)
      this.#maxPerAddress = Math.max(
        1,
        Math.min(limit, Math.floor(this.#max / 2)),
      );
  }

  /** Safe to call again. */
  stop(): void {
    this.#parts.reserve.stop();
    clearInterval(this.#rounds);
  }

  /**
   * A connection was accepted; `spare` sockets, at most an eighth of all, are to be left for others. Undefined: close it at once. Else what to call when it closes before
   * its first request. `closed` follows in any case.
   */
  accepted(address: string, spare: number): (() => void) | undefined {
    this.#open += 1;
    if (this.#parts.reserve.isExhausted)
      return this.#refuse("descriptors", address);
    const left = Math.min(spare, this.#max / SPARE_SHARE);
    if (this.#open > this.#max - left) return this.#refuse("max", address);
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return nothing;
    const tally = this.#tally(address);
    if (tally === undefined) return this.#refuse("max", address);
    if (total(tally) >= this.#maxPerAddress)
      return this.#refuse("address", address);
    tally.young += 1;
    if (total(tally) * WATCHED_SHARE > this.#maxPerAddress)
      this.#isWatching = true;
    const round = this.#round;
    return () => {
      if (round === this.#round) tally.young = less(tally.young);
      else if (round === this.#round - 1) tally.old = less(tally.old);
      this.#tidy(address, tally);
    };
  }

  /** A connection is gone, whether it was taken or not. */
  closed(): void {
    this.#open -= 1;
  }

  /** A request came from `address`: one of its connections is silent no more. */
  requested(address: string): void {
    const tally = this.#tallies.get(address);
    if (tally === undefined) return;
    if (tally.old > 0) tally.old -= 1;
    else tally.young = less(tally.young);
    this.#tidy(address, tally);
  }

  /**
   * A connection of `address` goes on without a credential, until the function returned is called once. Undefined: it is one too many, close
   * it.
   */
  held(address: string): (() => void) | undefined {
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return nothing;
    const tally = this.#tally(address);
    if (tally === undefined) return this.#refuse("max", address);
    if (total(tally) >= this.#maxPerAddress)
      return this.#refuse("address", address);
    tally.held += 1;
    return () => {
      tally.held -= 1;
      this.#tidy(address, tally);
    };
  }

  /** A connection of `address` was refused and will be closed by the library soon. False: it is one too many, close it now. */
  lingers(address: string): boolean {
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return true;
    const tally = this.#tally(address);
    if (tally === undefined || total(tally) >= this.#maxPerAddress)
      return false;
    tally.young += 1;
    return true;
  }

  /** Undefined: too many other addresses are counted. */
  #tally(address: string): Tally | undefined {
    const known = this.#tallies.get(address);
    if (known !== undefined) return known;
    if (this.#tallies.size >= MAX_ADDRESSES) return undefined;
    if (this.#tallies.size * WATCHED_SHARE > MAX_ADDRESSES)
      this.#isWatching = true;
    const tally: Tally = { young: 0, old: 0, held: 0 };
    this.#tallies.set(address, tally);
    this.#rounds ??= setInterval(() => this.#nextRound(), ROUND_MS).unref();
    return tally;
  }

  #tidy(address: string, tally: Tally): void {
    if (total(tally) === 0 && this.#tallies.get(address) === tally)
      this.#tallies.delete(address);
  }

  #nextRound(): void {
    this.#round += 1;
    this.#isWatching = this.#tallies.size * WATCHED_SHARE > MAX_ADDRESSES;
    for (const [address, tally] of this.#tallies) {
      tally.old = tally.young;
      tally.young = 0;
      if (total(tally) === 0) this.#tallies.delete(address);
      else if (total(tally) * WATCHED_SHARE > this.#maxPerAddress)
        this.#isWatching = true;
    }
    if (this.#tallies.size > 0) return;
    clearInterval(this.#rounds);
    this.#rounds = undefined;
  }

  #refuse(reason: SocketRefusal, address: string): undefined {
    this.#parts.onRefused(reason, address);
    return undefined;
  }
}

function nothing(): void {}

function total({ young, old, held }: Tally): number {
  return young + old + held;
}

function less(count: number): number {
  return count > 0 ? count - 1 : 0;
}
