// Limits the work of connections and users [decisions: Limits that hold under attack, Rate]. Each
// connection has a token bucket of its own and shares the bucket of its user. Work is counted in
// frames: 1 is the work of a PING or a small SEND, about 25 µs of the event loop.
// `docs/protocol/native.md` has the same table. State: the buckets of the users. A bucket that is
// not full outlives the user's last session, so that a reconnect does not refill it. The number of
// users without a session is limited; the users who left first are dropped.

import { BrokerError } from "../broker/errors.ts";
import type { Clock } from "../broker/ports.ts";
import { type RateLimit, TokenBucket } from "../lib/token-bucket.ts";

/** Number of rows that can be read and encoded with the work of one frame. */
const ROWS_PER_FRAME = 4;
/**
 * Number of copies of a command that can be stored with the work of one frame. Each copy is written
 * and delivered separately.
 */
const COPIES_PER_FRAME = 2;
/**
 * Number of look-ups that can be done with the work of one frame: users whose state is read, inbox
 * seqs that are acknowledged, or conversations that are compared to find the newest ones.
 */
const LOOKUPS_PER_FRAME = 16;
/** Number of reply bytes that can be written with the work of one frame. */
const REPLY_BYTES_PER_FRAME = 8192;
/**
 * Maximum number of rows that are charged in advance for a history. Rows that turn out not to exist
 * are refunded.
 */
const MAX_ROWS_AHEAD = 500;
/** Work of a login: checking the token and writing to the session directory. */
const CONNECT_WORK = 10;
/**
 * Work charged for a request that was refused or failed. Anything charged beyond it is refunded.
 */
export const REFUSED_WORK = 1;

/** Remaining work budget of a session. */
export interface Rate {
  /** Charges the work of storing this number of copies of a command. Throws like `requirePaid`. */
  admit(copies: number): void;
  /** Throws `rate_limited` if earlier work has left the budget in debt. */
  requirePaid(): void;
}

export const lookups = (count: number): number => count / LOOKUPS_PER_FRAME;

export const rowsAhead = (limit: number): number =>
  Math.min(limit, MAX_ROWS_AHEAD) / ROWS_PER_FRAME;

/** Returns the work of a reply with this number of rows and bytes. */
export const reading = (rows: number, bytes: number): number =>
  rows / ROWS_PER_FRAME + bytes / REPLY_BYTES_PER_FRAME;

/** Returns the work of storing copies of a command, each in the inbox of one recipient. */
const copying = (copies: number): number => copies / COPIES_PER_FRAME;

/** Returns the work of a CONNECT with this number of channels to resume. */
export const connecting = (channels: number): number => CONNECT_WORK + channels / ROWS_PER_FRAME;

/** Returns the work of joining this number of groups. */
export const joining = (groups: number): number => groups / ROWS_PER_FRAME;

export interface WorkLimits {
  /** Limit on the work of one connection, in frames. 0 per second means no limit. */
  readonly connection: RateLimit;
  /** Limit on the work of all connections of a user on this node, in frames. */
  readonly user: RateLimit;
  /** Limit on the bytes that a user stores. */
  readonly stored: RateLimit;
}

/** Number of bytes of an incoming frame that count as the work of one more frame. */
const BYTES_PER_FRAME = 4096;
/**
 * Maximum number of users without a session whose budget is remembered. One user needs about 500
 * bytes.
 */
const MAX_ABSENT_USERS = 10_000;
/**
 * Number of remembered users that are checked for a full bucket each time a user leaves. It is
 * greater than 1, so that users with full buckets do not accumulate.
 */
const SWEPT_AT_ONCE = 4;

/** Rate limits of one user on this node, shared by its sessions: work, and stored bytes. */
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

/** Work budget of one connection. Also charges the user's budget once the user is known. */
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
   * Charges a frame of this size. Returns 0, or the milliseconds to wait if the frame must be
   * refused.
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

  /** Charges work in addition to the work of the frame. A negative cost is a refund. */
  charge(cost: number): void {
    this.#own.charge(cost);
    this.#user?.work.charge(cost);
  }

  /**
   * Charges the work of storing this number of copies of a command. Throws `rate_limited` if
   * earlier work has left the budget in debt.
   */
  admit(copies: number): void {
    this.requirePaid();
    this.charge(copying(copies));
  }

  /** Throws `rate_limited` if earlier work has left the connection or its user in debt. */
  requirePaid(): void {
    const nowMs = this.#clock();
    const ownMs = this.#own.waitMs(nowMs, 0);
    const waitMs = Math.max(ownMs, this.#user?.work.waitMs(nowMs, 0) ?? 0);
    if (waitMs > 0) throw new BrokerError("rate_limited", { retryAfterMs: waitMs });
  }

  /**
   * Charges bytes that are to be stored for the user. Returns 0, or the milliseconds to wait if
   * nothing may be stored now.
   */
  store(bytes: number, nowMs: number): number {
    const { stored } = this.#limits;
    if (stored.perSecond === 0 || this.#user === undefined) return 0;
    const bucket = this.#user.stored(stored, nowMs);
    const waitMs = bucket.waitMs(nowMs);
    if (waitMs === 0) bucket.charge(bytes);
    return waitMs;
  }

  /** True if the client keeps sending although it has been refused repeatedly. */
  get isExhausted(): boolean {
    return this.#own.exhausted;
  }

  /** Charges later work of this connection to the user's budget as well. */
  join(user: UserRate): void {
    this.#user = user;
  }

  /**
   * Charges the work of a connect only to the user. The connection itself is not slowed down by it.
   */
  chargeUser(cost: number): void {
    this.#user?.work.charge(cost);
  }
}

export class UserRates {
  readonly limits: WorkLimits;
  readonly #users = new Map<string, UserRate>();
  /** Users without a session. The user who left first is the first entry. */
  readonly #absent = new Map<string, UserRate>();

  constructor(limits: WorkLimits) {
    this.limits = limits;
  }

  /**
   * Returns the milliseconds until the user may do more work, 0 if that is now or the user is
   * unknown.
   */
  waitMs(uid: string, nowMs: number): number {
    const rate = this.#users.get(uid) ?? this.#absent.get(uid);
    return rate?.work.waitMs(nowMs) ?? 0;
  }

  /** Registers a session of the user. Must be followed by one call of `leave`. */
  enter(uid: string, nowMs: number): UserRate {
    const existing = this.#users.get(uid) ?? this.#absent.get(uid);
    const rate = existing ?? new UserRate(this.limits, nowMs);
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

  /** Number of users that are remembered, with or without a session. */
  get size(): number {
    return this.#users.size + this.#absent.size;
  }

  #sweep(nowMs: number): void {
    let remaining = SWEPT_AT_ONCE;
    for (const [uid, rate] of this.#absent) {
      if (remaining-- === 0) return;
      const isOver = this.#absent.size > MAX_ABSENT_USERS;
      if (isOver || rate.isFull(nowMs)) this.#absent.delete(uid);
    }
  }
}

/** Returns the work of a frame: 1, plus 1 for each whole 4 KiB. */
export function frameCost(bytes: number): number {
  return 1 + Math.floor(bytes / BYTES_PER_FRAME);
}
