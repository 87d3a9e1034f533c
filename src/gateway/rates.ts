// How much work connections and users may ask for [decisions: Limits that hold under attack, Rate].
// A connection has a bucket of its own and shares that of its user. State: a map of the users'
// buckets; one that is not full outlives the user's last session, so that a reconnect refills
// nothing. That map is bounded: of users without a session the earliest are forgotten. Work is
// counted in frames: one is the work of a PING or a small SEND, about 25 µs of the event loop.
// docs/protocol/native.md has the same table.

import { BrokerError } from "../broker/errors.ts";
import type { Clock } from "../broker/ports.ts";
import { type RateLimit, TokenBucket } from "../lib/token-bucket.ts";

/** Rows read and encoded for one frame of work. */
const ROWS_PER_FRAME = 4;
/** Copies of a command stored: each is decided, written and delivered by itself. */
const COPIES_PER_FRAME = 2;
/**
 * Users whose state is looked up, inbox seqs that are acknowledged, conversations looked at to find
 * the newest.
 */
const LOOKUPS_PER_FRAME = 16;
const REPLY_BYTES_PER_FRAME = 8192;
/**
 * Histories are charged for the rows they ask for, before they are read, no more than these; what
 * is not there is given back.
 */
const MAX_ROWS_AHEAD = 500;
/** The token and the directory. */
const CONNECT_WORK = 10;
/** A request that is refused or fails: what it was charged beyond this is given back. */
export const REFUSED_WORK = 1;

/** What is left of the work that a session may ask for. */
export interface Rate {
  /** Takes the work of so many copies of a command. Throws `rate_limited`. */
  admit(copies: number): void;
  /** Throws `rate_limited` until what was done is paid for. */
  requirePaid(): void;
}

export const lookups = (count: number): number => count / LOOKUPS_PER_FRAME;

export const rowsAhead = (limit: number): number =>
  Math.min(limit, MAX_ROWS_AHEAD) / ROWS_PER_FRAME;

/** A reply with so many rows in so many bytes. */
export const reading = (rows: number, bytes: number): number =>
  rows / ROWS_PER_FRAME + bytes / REPLY_BYTES_PER_FRAME;

/** Copies of a command, each in the inbox of a recipient. */
const copying = (copies: number): number => copies / COPIES_PER_FRAME;

/** A CONNECT with so many channels to resume. */
export const connecting = (channels: number): number => CONNECT_WORK + channels / ROWS_PER_FRAME;

/** The session joins so many groups. */
export const joining = (groups: number): number => groups / ROWS_PER_FRAME;

export interface WorkLimits {
  /** Work of one connection, in frames; 0 per second = no limit. */
  readonly connection: RateLimit;
  /** Work of all connections of a user on this node. */
  readonly user: RateLimit;
  /** Bytes that a user stores. */
  readonly stored: RateLimit;
}

/** Bytes of an incoming frame that count as one more frame. */
const BYTES_PER_FRAME = 4096;
/** A user costs about 500 bytes. */
const MAX_ABSENT_USERS = 10_000;
/**
 * Users looked at when one leaves: more than come, so those whose buckets are full again do not
 * pile up.
 */
const SWEPT_AT_ONCE = 4;

/** Of all sessions of one user. */
class UserRate {
  readonly work: TokenBucket;
  #stored: TokenBucket | undefined;
  sessions = 0;

  constructor(limits: WorkLimits, nowMs: number) {
    this.work = new TokenBucket(limits.user, nowMs);
  }

  stored(limit: RateLimit, nowMs: number): TokenBucket {
    this.#stored ??= new TokenBucket(limit, nowMs);
    return this.#stored;
  }

  isFull(nowMs: number): boolean {
    return this.work.isFull(nowMs) && (this.#stored?.isFull(nowMs) ?? true);
  }
}

/** One connection's share; of a user once it is known. */
export class ConnectionRate implements Rate {
  readonly #limits: WorkLimits;
  readonly #clock: Clock;
  readonly #own: TokenBucket;
  #user: UserRate | undefined;

  constructor(limits: WorkLimits, clock: Clock) {
    this.#limits = limits;
    this.#clock = clock;
    this.#own = new TokenBucket(limits.connection, clock());
  }

  /**
   * Takes what a frame of so many bytes costs by itself. 0, or the milliseconds to wait: then it
   * must be refused.
   */
  frame(bytes: number, nowMs: number): number {
    const cost = frameCost(bytes);
    const waitMs = this.#own.take(nowMs, cost);
    if (waitMs > 0 || this.#user === undefined) return waitMs;
    const userWaitMs = this.#user.work.waitMs(nowMs);
    if (userWaitMs > 0) this.#own.refuse(cost);
    else this.#user.work.charge(cost);
    return userWaitMs;
  }

  /** Work beside the frame itself, in frames. Negative: less was done than charged before. */
  charge(cost: number): void {
    this.#own.charge(cost);
    this.#user?.work.charge(cost);
  }

  /**
   * Takes the work of so many copies of a command, unless earlier work is not paid for. Throws
   * `rate_limited`.
   */
  admit(copies: number): void {
    this.requirePaid();
    this.charge(copying(copies));
  }

  /** Throws `rate_limited` until the connection and its user have paid for what was done. */
  requirePaid(): void {
    const nowMs = this.#clock();
    const ownMs = this.#own.waitMs(nowMs, 0);
    const waitMs = Math.max(ownMs, this.#user?.work.waitMs(nowMs, 0) ?? 0);
    if (waitMs > 0) throw new BrokerError("rate_limited", { retryAfterMs: waitMs });
  }

  /**
   * Takes bytes that are to be stored for the user; 0, or the milliseconds to wait: then nothing
   * may be stored.
   */
  store(bytes: number, nowMs: number): number {
    const { stored } = this.#limits;
    if (stored.perSecond === 0 || this.#user === undefined) return 0;
    const bucket = this.#user.stored(stored, nowMs);
    const waitMs = bucket.waitMs(nowMs);
    if (waitMs === 0) bucket.charge(bytes);
    return waitMs;
  }

  /** The client goes on although it was refused again and again. */
  get isExhausted(): boolean {
    return this.#own.exhausted;
  }

  /** Its frames count for the user too from now on. */
  join(user: UserRate): void {
    this.#user = user;
  }

  /** Work of a connect, which the connection is not slowed down for. */
  chargeUser(cost: number): void {
    this.#user?.work.charge(cost);
  }
}

export class UserRates {
  readonly limits: WorkLimits;
  readonly #users = new Map<string, UserRate>();
  /** Without a session; the one that left first comes first. */
  readonly #absent = new Map<string, UserRate>();

  constructor(limits: WorkLimits) {
    this.limits = limits;
  }

  /** Milliseconds until the user has paid for what was done; 0 for one that is not known here. */
  waitMs(uid: string, nowMs: number): number {
    const rate = this.#users.get(uid) ?? this.#absent.get(uid);
    return rate?.work.waitMs(nowMs) ?? 0;
  }

  /** A session of `uid` begins. To be followed by one `leave`. */
  enter(uid: string, nowMs: number): UserRate {
    const known = this.#users.get(uid) ?? this.#absent.get(uid);
    const rate = known ?? new UserRate(this.limits, nowMs);
    this.#absent.delete(uid);
    this.#users.set(uid, rate);
    rate.sessions += 1;
    return rate;
  }

  leave(uid: string, nowMs: number): void {
    const rate = this.#users.get(uid);
    if (rate === undefined) return;
    rate.sessions -= 1;
    if (rate.sessions > 0) return;
    this.#users.delete(uid);
    this.#absent.set(uid, rate);
    this.#sweep(nowMs);
  }

  /** Users that are remembered, with and without a session. */
  get size(): number {
    return this.#users.size + this.#absent.size;
  }

  #sweep(nowMs: number): void {
    let left = SWEPT_AT_ONCE;
    for (const [uid, rate] of this.#absent) {
      if (left-- === 0) return;
      const isOver = this.#absent.size > MAX_ABSENT_USERS;
      if (isOver || rate.isFull(nowMs)) this.#absent.delete(uid);
    }
  }
}

/** One for the frame, one for each whole 4 KiB. */
export function frameCost(bytes: number): number {
  return 1 + Math.floor(bytes / BYTES_PER_FRAME);
}
