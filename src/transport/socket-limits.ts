// Limits a node's connections. `sockets.max` and the number of file descriptors limit all
// connections. Each address has a limit on unauthenticated connections. A connection occupies one
// of its peer's slots until its first request. After that, a call without a credential (except a
// GET) may count against its address's limit until its reply is sent, and the connection is closed
// after the reply. A client socket counts against its address's limit until it is authenticated.

import type { DescriptorReserve } from "./descriptors.ts";
import { RoundCount } from "./round-count.ts";

type SocketRefusal = "max" | "address" | "descriptors";

interface SocketLimitsPorts {
  /** Returns the maximum number of sockets. Called once, at the first `start`. */
  readonly capacity: () => number;
  /** Value of `sockets.maxUnauthenticatedPerAddress`. 0 means no limit. */
  readonly maxUnauthenticatedPerAddress: number;
  readonly reserve: DescriptorReserve;
  onRefused(reason: SocketRefusal, address: string): void;
  onDisplaced(address: string): void;
}

interface Tally {
  readonly address: string;
  /** Connections that have not sent a request yet. */
  readonly slots: RoundCount;
  /** Connections that may stay open for a while after their last reply. */
  readonly lateCloses: RoundCount;
  calls: number;
  sockets: number;
  /** Number of client sockets without a credential that have not sent anything yet. */
  silent: number;
}

/** A client socket that counts against its address until `leave` is called. */
export interface Place {
  readonly tally: Tally;
  readonly sinceTick: number;
  /** Closes the socket. `leave` must be called before the function returns. */
  readonly close: () => void;
}

/**
 * Length of a round. It is longer than the time for which uWebSockets.js waits for a request. A
 * slot that is not released expires after one to two rounds.
 */
const ROUND_MS = 15_000;
/**
 * Divisor of two limits: the one on silent connections (connections without a request) from one
 * address, and `MAX_ADDRESSES`. When one of the quotients is exceeded, `isWatching` becomes true.
 */
const WATCHED_SHARE = 4;
const MAX_ADDRESSES = 65_536;
/** At most 1/`SPARE_SHARE` of all sockets are left free for other listeners. */
const SPARE_SHARE = 8;
/** Fraction of all sockets that one address's silent connections may occupy. */
const SILENT_SHARE = 3 / 4;
const TICK_MS = 250;
/**
 * Number of whole ticks after which a silent client socket may be closed. After the event loop was
 * blocked, at most one tick runs, so time in which nothing could be read does not count.
 */
const SILENT_TICKS = 3000 / TICK_MS;

export class SocketLimits {
  readonly #ports: SocketLimitsPorts;
  readonly #tallies = new Map<string, Tally>();
  #max = Number.POSITIVE_INFINITY;
  #maxPerAddress = Number.POSITIVE_INFINITY;
  #maxSilentPerAddress = Number.POSITIVE_INFINITY;
  #isStarted = false;
  #open = 0;
  #rounds: NodeJS.Timeout | undefined;
  #isWatching = false;
  readonly #silent = new Set<Place>();
  /** Number of addresses with more unauthenticated client sockets than the limit. */
  #crowded = 0;
  #tick = 0;
  #ticks: NodeJS.Timeout | undefined;

  constructor(ports: SocketLimitsPorts) {
    this.#ports = ports;
  }

  get open(): number {
    return this.#open;
  }

  get max(): number {
    return this.#max;
  }

  /**
   * True if, at any time in the current round, an address has held more slots, or more addresses
   * have been counted, than `WATCHED_SHARE` allows. It may therefore stay true for up to
   * `ROUND_MS` after the numbers have fallen. While it is true, `requested` must be called for each
   * request if the driver does not report first requests itself.
   */
  get isWatching(): boolean {
    return this.#isWatching;
  }

  start(): void {
    if (this.#isStarted) return;
    this.#isStarted = true;
    this.#ports.reserve.start();
    this.#max = this.#ports.capacity();
    const { maxUnauthenticatedPerAddress: limit } = this.#ports;
    if (limit === 0) return;
    this.#maxPerAddress = Math.max(1, Math.min(limit, Math.floor(this.#max / 2)));
    this.#maxSilentPerAddress = Math.max(1, Math.floor(this.#max * SILENT_SHARE));
  }

  stop(): void {
    this.#ports.reserve.stop();
    clearInterval(this.#rounds);
    clearInterval(this.#ticks);
  }

  /**
   * Counts a connection that was accepted from `peer`, which may be a proxy. Leaves `spare`
   * sockets, at most an eighth of all sockets, free for other listeners. Returns `undefined` if the
   * connection must be closed at once. Otherwise, returns a function that must be called once, when
   * the connection sends its first request or closes before that. `closed` must be called when the
   * connection closes, even if this method returns `undefined`.
   */
  accepted(peer: string, spare: number): (() => void) | undefined {
    this.#open += 1;
    if (this.#ports.reserve.isExhausted) return this.#refuse("descriptors", peer);
    const reserved = Math.min(spare, this.#max / SPARE_SHARE);
    if (this.#open > this.#max - reserved) return this.#refuse("max", peer);
    if (!this.#isLimited) return noop;
    const tally = this.#tally(peer);
    if (tally === undefined) return this.#refuse("max", peer);
    const { slots } = tally;
    if (slots.total + tally.silent >= this.#maxSilentPerAddress)
      return this.#refuse("address", peer);
    const release = slots.add();
    if (slots.total * WATCHED_SHARE > this.#maxSilentPerAddress) this.#isWatching = true;
    return () => {
      release();
      this.#dropEmpty(tally);
    };
  }

  /** Counts the close of a connection, even if the connection was refused. */
  closed(): void {
    this.#open -= 1;
  }

  /**
   * Releases the oldest slot of a request's peer. Needed for a driver that does not report the
   * first request of a connection, because the slot of the request's own connection is then
   * unknown.
   */
  requested(peer: string): void {
    const tally = this.#tallies.get(peer);
    if (tally === undefined) return;
    tally.slots.releaseOldest();
    this.#dropEmpty(tally);
  }

  /**
   * Counts a call without a credential against its address until the returned function is called,
   * which must happen once. Returns `undefined` if the connection must be closed, because the
   * address is at its limit or `MAX_ADDRESSES` addresses are already counted.
   */
  hold(address: string): (() => void) | undefined {
    if (!this.#isLimited) return noop;
    const tally = this.#tally(address);
    if (tally === undefined) return this.#refuse("max", address);
    if (!this.#allowsCall(tally)) return this.#refuse("address", address);
    tally.calls += 1;
    return () => {
      tally.calls -= 1;
      this.#dropEmpty(tally);
    };
  }

  /**
   * Returns true if one more connection of the address may stay open for a while after its last
   * reply, and counts that connection. `share` is the fraction of the address's limit that such
   * connections may use. Returns false while more than `MAX_ADDRESSES` / `WATCHED_SHARE` addresses
   * are counted. Otherwise, one host with many IPv6 networks could use up `MAX_ADDRESSES`, because
   * a late close is counted for one to two rounds.
   */
  allowLateClose(address: string, share = 1): boolean {
    if (!this.#isLimited) return true;
    if (this.#countsMany) return false;
    const tally = this.#tally(address);
    if (tally === undefined || !this.#allowsCall(tally, share)) return false;
    tally.lateCloses.add();
    return true;
  }

  /**
   * Counts a client socket against its address until `leave` is called. If the address has more
   * sockets than its limit, the new socket is not refused. Instead, the address's sockets that are
   * at least 3 seconds old and have sent nothing are closed with `close`, oldest first, until the
   * limit is met. Returns `undefined` if the connection must be closed at once, because
   * `MAX_ADDRESSES` addresses are already counted.
   */
  enter(address: string, close: () => void): Place | undefined {
    if (!this.#isLimited) return UNCOUNTED;
    const tally = this.#tally(address);
    if (tally === undefined) return this.#refuse("max", address);
    const place = { tally, sinceTick: this.#tick, close };
    if (tally.sockets === this.#maxPerAddress) this.#crowded += 1;
    tally.sockets += 1;
    tally.silent += 1;
    this.#silent.add(place);
    this.#ticks ??= setInterval(() => this.#nextTick(), TICK_MS).unref();
    return place;
  }

  heard(place: Place): void {
    if (this.#silent.delete(place)) place.tally.silent -= 1;
  }

  /**
   * Stops counting a client socket that is now authenticated or closed. Must be called once for
   * each place that `enter` returned.
   */
  leave(place: Place): void {
    if (place === UNCOUNTED) return;
    const { tally } = place;
    this.heard(place);
    tally.sockets -= 1;
    if (tally.sockets === this.#maxPerAddress) this.#crowded -= 1;
    this.#dropEmpty(tally);
  }

  get #isLimited(): boolean {
    return this.#maxPerAddress !== Number.POSITIVE_INFINITY;
  }

  get #countsMany(): boolean {
    return this.#tallies.size * WATCHED_SHARE > MAX_ADDRESSES;
  }

  #allowsCall({ calls, lateCloses }: Tally, share = 1): boolean {
    return calls + lateCloses.total < this.#maxPerAddress * share;
  }

  #tally(address: string): Tally | undefined {
    const existing = this.#tallies.get(address);
    if (existing !== undefined) return existing;
    if (this.#tallies.size >= MAX_ADDRESSES) return undefined;
    if (this.#countsMany) this.#isWatching = true;
    const tally = newTally(address);
    this.#tallies.set(address, tally);
    this.#rounds ??= setInterval(() => this.#nextRound(), ROUND_MS).unref();
    return tally;
  }

  #dropEmpty(tally: Tally): void {
    const { address } = tally;
    if (isEmpty(tally) && this.#tallies.get(address) === tally) this.#tallies.delete(address);
  }

  #nextRound(): void {
    this.#isWatching = this.#countsMany;
    for (const [address, tally] of this.#tallies) {
      tally.slots.nextRound();
      tally.lateCloses.nextRound();
      if (isEmpty(tally)) this.#tallies.delete(address);
      else if (tally.slots.total * WATCHED_SHARE > this.#maxSilentPerAddress)
        this.#isWatching = true;
    }
    if (this.#tallies.size > 0) return;
    clearInterval(this.#rounds);
    this.#rounds = undefined;
  }

  #nextTick(): void {
    this.#tick += 1;
    if (this.#crowded > 0) this.#displaceSilent();
    if (this.#silent.size > 0) return;
    clearInterval(this.#ticks);
    this.#ticks = undefined;
  }

  #displaceSilent(): void {
    for (const { tally, sinceTick, close } of this.#silent) {
      // The tick in which the socket was opened was not a whole tick.
      if (this.#tick - sinceTick <= SILENT_TICKS) return;
      if (tally.sockets <= this.#maxPerAddress) continue;
      close();
      this.#ports.onDisplaced(tally.address);
    }
  }

  #refuse(reason: SocketRefusal, address: string): undefined {
    this.#ports.onRefused(reason, address);
    return undefined;
  }
}

function newTally(address: string): Tally {
  return {
    address,
    slots: new RoundCount(),
    lateCloses: new RoundCount(),
    calls: 0,
    sockets: 0,
    silent: 0,
  };
}

const UNCOUNTED: Place = { tally: newTally(""), sinceTick: 0, close: noop };

function noop(): void {}

function isEmpty({ slots, lateCloses, calls, sockets }: Tally): boolean {
  return slots.total + lateCloses.total + calls + sockets === 0;
}
