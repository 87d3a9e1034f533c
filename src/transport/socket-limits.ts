// Limits of a node's connections: all by descriptors, unauthenticated ones by client address.
// State: the number of open sockets, and of unauthenticated ones per address. Shared by the
// listeners of a node.
//
// uWebSockets.js identifies a closing connection only if it never sent a request. Until its first
// request a connection holds a slot, released when it closes. After that, calls without a
// credential count while they last, and their connection is closed with the answer. A slot that is
// not released expires after one to two rounds, each longer than uWebSockets.js lets a connection
// be silent. A request releases the oldest slot of its address (that of its own connection is not
// known); its address is read only while some address has many slots.

import type { DescriptorReserve } from "./descriptors.ts";

/** Why a connection was refused. */
type SocketRefusal = "max" | "address" | "descriptors";

interface SocketLimitsParts {
  /** Limit of all sockets; called once, at the first `start`. */
  readonly capacity: () => number;
  /** 0 = unlimited. */
  readonly maxUnauthenticatedPerAddress: number;
  readonly reserve: DescriptorReserve;
  /** A connection was closed at once. */
  onRefused(reason: SocketRefusal, address: string): void;
}

/** The unauthenticated sockets of one address. */
interface Tally {
  /** Slots of this round and of the previous one. */
  young: number;
  old: number;
  /** Calls and client sockets without a credential. */
  held: number;
}

/** Longer than uWebSockets.js waits for a request, 12 s. */
const ROUND_MS = 15_000;
/** An address is watched above a quarter of its limit. */
const WATCHED_SHARE = 4;
/** Above a quarter of it all addresses are watched: only silent connections keep an entry. */
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

  /** Whether `requested` must be called for requests. */
  get isWatching(): boolean {
    return this.#isWatching;
  }

  /** Determines the limits; safe to call again. */
  start(): void {
    if (this.#isStarted) return;
    this.#isStarted = true;
    this.#parts.reserve.start();
    this.#max = this.#parts.capacity();
    const { maxUnauthenticatedPerAddress: limit } = this.#parts;
    if (limit > 0) this.#maxPerAddress = Math.max(1, Math.min(limit, Math.floor(this.#max / 2)));
  }

  /** Safe to call again. */
  stop(): void {
    this.#parts.reserve.stop();
    clearInterval(this.#rounds);
  }

  /**
   * A connection was accepted; `spare` sockets, at most an eighth of all, are left free for others.
   * Undefined: close it at once. Else a function to call when it closes before its first request.
   * `closed` must follow in any case.
   */
  accepted(address: string, spare: number): (() => void) | undefined {
    this.#open += 1;
    if (this.#parts.reserve.isExhausted) return this.#refuse("descriptors", address);
    const left = Math.min(spare, this.#max / SPARE_SHARE);
    if (this.#open > this.#max - left) return this.#refuse("max", address);
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return nothing;
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

  /** A connection closed, refused or not. */
  closed(): void {
    this.#open -= 1;
  }

  /** A request from `address`: one of its connections is no longer silent. */
  requested(address: string): void {
    const tally = this.#tallies.get(address);
    if (tally === undefined) return;
    if (tally.old > 0) tally.old -= 1;
    else tally.young = decremented(tally.young);
    this.#dropEmpty(address, tally);
  }

  /**
   * Counts a connection of `address` without a credential until the returned function is called,
   * once. Undefined: the address is at its limit, close the connection.
   */
  held(address: string): (() => void) | undefined {
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return nothing;
    const tally = this.#tally(address);
    if (tally === undefined) return this.#refuse("max", address);
    if (total(tally) >= this.#maxPerAddress) return this.#refuse("address", address);
    tally.held += 1;
    return () => {
      tally.held -= 1;
      this.#dropEmpty(address, tally);
    };
  }

  /** A refused connection of `address` closes by itself soon. False: close it now. */
  closesLater(address: string): boolean {
    if (this.#maxPerAddress === Number.POSITIVE_INFINITY) return true;
    const tally = this.#tally(address);
    if (tally === undefined || total(tally) >= this.#maxPerAddress) return false;
    tally.young += 1;
    return true;
  }

  /** Undefined: too many addresses are counted. */
  #tally(address: string): Tally | undefined {
    const known = this.#tallies.get(address);
    if (known !== undefined) return known;
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
    this.#parts.onRefused(reason, address);
    return undefined;
  }
}

function nothing(): void {}

function total({ young, old, held }: Tally): number {
  return young + old + held;
}

function decremented(count: number): number {
  return count > 0 ? count - 1 : 0;
}
