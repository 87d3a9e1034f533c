// Limits the work of connections and users [decisions: Limits that hold under attack, Rate]. Work
// is counted in frames. One frame is the work of a PING or a small SEND, about 25 µs of the event loop (a
// table in `docs/protocol/native.md` lists all costs). A token bucket that is not full outlives the
// last session of its user, so that a reconnect does not refill the bucket.

import { BrokerError } from "../broker/errors.ts";
import type { Clock } from "../broker/ports.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import { LinkedMap } from "../lib/linked-map.ts";
import { networkOf } from "../lib/network.ts";
import { type RateLimit, TokenBucket } from "../lib/token-bucket.ts";
import { withoutStack } from "../lib/without-stack.ts";

const ROWS_PER_FRAME = 4;
/**
 * Number of lookups that are charged as one frame. A lookup reads a user, acknowledges an inbox
 * seq, or compares a conversation.
 */
const LOOKUPS_PER_FRAME = 16;
/**
 * Number of started watches, and of ended watches, that are charged as one frame. On Redis, each
 * start needs an SSUBSCRIBE.
 */
const STARTED_WATCHES_PER_FRAME = 1;
const ENDED_WATCHES_PER_FRAME = 2;
const REPLY_BYTES_PER_FRAME = 8192;
/** Number of sessions on this node that receive a message for the charge of one frame. */
const RECEIVERS_PER_FRAME = 100;
/**
 * Number of copies of a message, each encrypted for a single session, that are charged as one
 * frame.
 */
const ENCRYPTED_PER_FRAME = 20;
/**
 * Payload size up to which a copy's bytes are not charged, because sending a frame of this size
 * costs as much as sending a smaller frame.
 */
const FREE_BYTES_PER_COPY = 4096;
/** Number of bytes beyond `FREE_BYTES_PER_COPY`, in unencrypted copies, charged as one frame. */
const DELIVERED_BYTES_PER_FRAME = 65_536;
/** Number of bytes beyond `FREE_BYTES_PER_COPY`, in encrypted copies, charged as one frame. */
const ENCRYPTED_BYTES_PER_FRAME = 4096;
/** Number of values in a JSON document whose parsing is charged as one frame. */
const VALUES_PER_FRAME = 200;
/**
 * Maximum number of rows that are charged in advance for a history read. The charge for rows that
 * are not returned is refunded.
 */
const MAX_ROWS_AHEAD = 500;
/** Work of a login: checking the token and writing to the session directory. */
export const CONNECT_WORK = 10;
export const REFRESH_WORK = 5;
/** Maximum work charged, in addition to the frame, for a request that was refused or failed. */
const REFUSED_WORK = 1;

/**
 * Fraction of the burst that a user may spend before the user's frames wait for their turn
 * (`frame-turns.ts`).
 */
const HEAVY_SHARE = 0.03;

export interface Rate {
  /** Charges one client event. Throws `rate_limited` if the user is over the limit for events. */
  admitEvent(): void;
  /** Throws `rate_limited` if earlier work has left the budget in debt. */
  requirePaid(): void;
  pushedPage(rows: number, bytes: number): void;
  /** Returns the milliseconds to wait before the next page is pushed, or 0 if there is no debt. */
  pageWaitMs(): number;
}

export const lookups = (count: number): number => count / LOOKUPS_PER_FRAME;

export interface WatchChange {
  /** Number of users that the session watches both before and after the request. */
  readonly kept: number;
  readonly started: number;
  readonly ended: number;
}

export const watching = ({ kept, started, ended }: WatchChange): number =>
  lookups(kept) + started / STARTED_WATCHES_PER_FRAME + ended / ENDED_WATCHES_PER_FRAME;

export function delivering(receivers: number, encrypted: number, payloadBytes = 0): number {
  const bytes = Math.max(0, payloadBytes - FREE_BYTES_PER_COPY);
  const shared = receivers * (1 / RECEIVERS_PER_FRAME + bytes / DELIVERED_BYTES_PER_FRAME);
  return shared + encrypted * (1 / ENCRYPTED_PER_FRAME + bytes / ENCRYPTED_BYTES_PER_FRAME);
}

export const rowsAhead = (limit: number): number =>
  Math.min(limit, MAX_ROWS_AHEAD) / ROWS_PER_FRAME;

export const reading = (rows: number, bytes: number): number =>
  rows / ROWS_PER_FRAME + bytes / REPLY_BYTES_PER_FRAME;

export const joiningCost = (channels: number): number => channels / ROWS_PER_FRAME;

export interface WorkLimits {
  /** Limit on one connection's work, in frames. 0 per second means no limit. */
  readonly connection: RateLimit;
  readonly user: RateLimit;
  readonly stored: RateLimit;
  readonly events: RateLimit;
}

/** Every full block of this many bytes in an incoming frame is charged as one more frame. */
const BYTES_PER_FRAME = 4096;
/** Maximum number of remembered users without a session. Each of them takes about 500 bytes. */
const MAX_ABSENT_USERS = 10_000;
/**
 * Number of absent users that are checked when a user is added. More than 1, so that users with
 * full buckets are removed faster than users are added.
 */
const SWEPT_AT_ONCE = 4;

class UserRate {
  readonly work: TokenBucket;
  readonly #limit: RateLimit;
  /** Budget for refused work on all of the user's connections. Created by the first refusal. */
  #refused: TokenBucket | undefined;
  #stored: TokenBucket | undefined;
  #events: TokenBucket | undefined;
  #pages: TokenBucket | undefined;
  sessions = 0;

  constructor(limits: WorkLimits, nowMs: number) {
    this.#limit = limits.user;
    this.work = new TokenBucket(limits.user, nowMs);
  }

  refuse(nowMs: number, cost: number): void {
    this.#refused ??= new TokenBucket(this.#limit, nowMs);
    this.#refused.take(nowMs, cost);
  }

  /** Returns true if the user's connections together have used up the budget for refused work. */
  isRefusedTooOften(nowMs: number): boolean {
    return this.#refused !== undefined && this.#refused.waitMs(nowMs) > 0;
  }

  stored(limit: RateLimit, nowMs: number): TokenBucket {
    this.#stored ??= new TokenBucket(limit, nowMs);
    return this.#stored;
  }

  events(limit: RateLimit, nowMs: number): TokenBucket {
    this.#events ??= new TokenBucket(limit, nowMs);
    return this.#events;
  }

  /** Returns a separate budget for missed messages, so that a user can send while catching up. */
  pages(limits: WorkLimits, nowMs: number): TokenBucket {
    this.#pages ??= new TokenBucket(limits.user, nowMs);
    return this.#pages;
  }

  isFull(nowMs: number): boolean {
    const buckets = [this.work, this.#refused, this.#stored, this.#events, this.#pages];
    return buckets.every((bucket) => bucket?.isFull(nowMs) ?? true);
  }
}

/** Tokens that a charge has removed: fewer than its cost if the maximum debt was reached. */
interface Charge {
  readonly own: number;
  readonly user: number;
}

const NOTHING: Charge = { own: 0, user: 0 };

/**
 * Tokens that are taken for a request before it runs. Fewer tokens are taken than the request costs
 * if the connection's or its user's debt has reached the maximum.
 */
export class Reservation {
  readonly #rate: ConnectionRate;
  #copies: Charge = NOTHING;
  /** Charge for the request's frame. */
  readonly frame: number;
  readonly own: number;
  readonly user: number;
  readonly deliveries: number;

  constructor(
    rate: ConnectionRate,
    tokens: Pick<Reservation, "frame" | "own" | "user" | "deliveries">,
  ) {
    this.#rate = rate;
    this.frame = tokens.frame;
    this.own = tokens.own;
    this.user = tokens.user;
    this.deliveries = tokens.deliveries;
  }

  /** Throws `rate_limited` if other requests have left the budget in debt. */
  requirePaid(): void {
    const { frame, own, user, deliveries } = this;
    this.#rate.requirePaid(frame + own, frame + user + deliveries);
  }

  /**
   * Charges the work of storing this many copies of a command: one frame per copy. Throws the same
   * errors as `requirePaid`.
   */
  admit(copies: number): void {
    this.requirePaid();
    this.#copies = this.#rate.charge(copies);
  }

  /** Refunds what `admit` has charged. */
  refund(): void {
    this.#rate.undo(this.#copies);
    this.#copies = NOTHING;
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
   * Charges a frame like `take`. Returns 0, or the milliseconds to wait if the frame is refused.
   */
  frame(bytes: number, nowMs: number): number {
    return this.take(frameCost(bytes), nowMs);
  }

  /**
   * Charges work to the connection, even if the work is refused, and accepted work to the user.
   * Returns 0, or the milliseconds to wait if the work is refused.
   */
  take(cost: number, nowMs: number): number {
    const user = this.#user;
    let waitMs = this.#own.take(nowMs, cost);
    if (waitMs === 0 && user !== undefined) {
      waitMs = user.work.waitMs(nowMs);
      if (waitMs === 0) user.work.charge(cost);
      else this.#own.countRefused(cost); // `take` has charged it
    }
    if (waitMs > 0) user?.refuse(nowMs, cost);
    return waitMs;
  }

  /**
   * Rechecks a frame that was charged before it had to wait. If other requests have left a debt
   * since then, the frame must be refused, and the milliseconds to wait are returned. Otherwise,
   * returns 0.
   */
  recheck(bytes: number, nowMs: number): number {
    if (this.#debtMs(nowMs) === 0) return 0;
    const cost = frameCost(bytes);
    this.#own.countRefused(cost);
    this.#user?.refuse(nowMs, cost);
    return Math.max(this.#own.waitMs(nowMs), this.#user?.work.waitMs(nowMs) ?? 0);
  }

  charge(cost: number): Charge {
    return { own: this.#own.charge(cost), user: this.#user?.work.charge(cost) ?? 0 };
  }

  undo({ own, user }: Charge): void {
    this.#own.charge(-own);
    this.#user?.work.charge(-user);
  }

  /**
   * Charges the work of a request before the request runs. `frame` is the charge that was already
   * made for the request's frame. Only the user is charged for deliveries.
   */
  reserve(frame: number, cost: number, deliveries: number): Reservation {
    return new Reservation(this, {
      frame,
      own: this.#own.charge(cost),
      user: this.#user?.work.charge(cost) ?? 0,
      deliveries: this.#user?.work.charge(deliveries) ?? 0,
    });
  }

  settle({ own, user }: Reservation, cost: number): void {
    this.#own.charge(cost - own);
    this.#user?.work.charge(cost - user);
  }

  /** Refunds the work charged for a request that was refused or failed, except `REFUSED_WORK`. */
  refund(reservation: Reservation): void {
    this.settle(reservation, Math.min(REFUSED_WORK, reservation.own));
    this.#user?.work.charge(-reservation.deliveries);
  }

  admitEvent(): void {
    const { events } = this.#limits;
    if (events.perSecond === 0 || this.#user === undefined) return;
    const nowMs = this.#clock();
    const bucket = this.#user.events(events, nowMs);
    const waitMs = bucket.waitMs(nowMs);
    if (waitMs > 0) throw refusal(waitMs);
    bucket.charge(1);
  }

  /**
   * Throws `rate_limited` if the connection's debt exceeds `ownExcluded` tokens, or its user's debt
   * exceeds `userExcluded` tokens.
   */
  requirePaid(ownExcluded = 0, userExcluded = 0): void {
    const waitMs = this.#debtMs(this.#clock(), ownExcluded, userExcluded);
    if (waitMs > 0) throw refusal(waitMs);
  }

  /** Returns the milliseconds until neither the connection nor its user is in debt. */
  #debtMs(nowMs: number, ownExcluded = 0, userExcluded = 0): number {
    const ownMs = this.#own.debtMs(nowMs, ownExcluded);
    return Math.max(ownMs, this.#user?.work.debtMs(nowMs, userExcluded) ?? 0);
  }

  pushedPage(rows: number, bytes: number): void {
    this.#user?.pages(this.#limits, this.#clock()).charge(reading(rows, bytes));
  }

  pageWaitMs(): number {
    const nowMs = this.#clock();
    return this.#user?.pages(this.#limits, nowMs).waitMs(nowMs, 0) ?? 0;
  }

  /**
   * Charges stored bytes and returns 0. If the user may not store now, charges nothing and returns
   * the milliseconds to wait.
   */
  store(bytes: number, nowMs: number): number {
    const { stored } = this.#limits;
    if (stored.perSecond === 0 || this.#user === undefined) return 0;
    const bucket = this.#user.stored(stored, nowMs);
    const waitMs = bucket.waitMs(nowMs);
    if (waitMs === 0) bucket.charge(bytes);
    return waitMs;
  }

  /**
   * Returns true if the budget for refused requests is used up, either the connection's own budget
   * or the budget that its user's connections share.
   */
  isExhausted(nowMs: number): boolean {
    return this.#own.exhausted || (this.#user?.isRefusedTooOften(nowMs) ?? false);
  }

  /**
   * Returns true if the user has recently spent more than `HEAVY_SHARE` of the burst. The frames of
   * other users then come first.
   */
  isHeavy(nowMs: number): boolean {
    return this.#user?.work.hasSpent(HEAVY_SHARE, nowMs) ?? false;
  }

  /** Charges the user as well as the connection from now on. */
  chargeAlso(user: UserRate): void {
    this.#user = user;
  }

  /** Charges only the user's budget, so that a connect does not delay its own connection. */
  chargeUser(cost: number): void {
    this.#user?.work.charge(cost);
  }
}

/**
 * Charges a connection for each request in a frame. The charge for the frame itself covers the
 * first request.
 */
export class Admission {
  readonly #rate: ConnectionRate;
  #nowMs = 0;
  #isPaid = false;
  /** Milliseconds to wait if the last request was refused, otherwise 0. */
  waitMs = 0;
  bytes = 0;

  constructor(rate: ConnectionRate) {
    this.#rate = rate;
  }

  begin(waitMs: number, nowMs: number): void {
    this.waitMs = waitMs;
    this.#nowMs = nowMs;
    this.#isPaid = true;
  }

  readonly admit = (bytes: number, values: number): boolean => {
    this.bytes = bytes;
    const cost = Math.floor(values / VALUES_PER_FRAME);
    if (!this.#isPaid) this.waitMs = this.#rate.take(1 + cost, this.#nowMs);
    else if (this.waitMs === 0 && cost > 0) this.#rate.charge(cost);
    this.#isPaid = false;
    return this.waitMs === 0;
  };
}

export class UserRates {
  readonly limits: WorkLimits;
  readonly #users = new Map<string, UserRate>();
  /** Users without a session, in the order in which they were added or last checked. */
  readonly #absent = new LinkedMap<string, UserRate>();

  constructor(limits: WorkLimits) {
    this.limits = limits;
  }

  /** Returns the milliseconds until the user's budget allows more work. Charges nothing. */
  waitMs(uid: string, nowMs: number): number {
    const rate = this.#users.get(uid) ?? this.#absent.get(uid);
    return rate?.work.waitMs(nowMs) ?? 0;
  }

  /**
   * Charges a user, who may have no session on this node. Returns the number of tokens that were
   * removed.
   */
  charge(uid: string, cost: number, nowMs: number): number {
    const existing = this.#users.get(uid) ?? this.#absent.get(uid);
    const rate = existing ?? new UserRate(this.limits, nowMs);
    const charged = rate.work.charge(cost);
    if (existing === undefined) {
      this.#absent.set(uid, rate);
      this.#sweep(nowMs);
    }
    return charged;
  }

  /** Charges a user. Has no effect if this node has no budget for the user. */
  chargeKnown(uid: string, cost: number): void {
    const rate = this.#users.get(uid) ?? this.#absent.get(uid);
    rate?.work.charge(cost);
  }

  /** Counts one of the user's sessions. Must be followed by one call to `removeSession`. */
  addSession(uid: string, nowMs: number): UserRate {
    const existing = this.#users.get(uid) ?? this.#absent.get(uid);
    const rate = existing ?? new UserRate(this.limits, nowMs);
    this.#absent.delete(uid);
    this.#users.set(uid, rate);
    rate.sessions += 1;
    return rate;
  }

  removeSession(uid: string, nowMs: number): void {
    const rate = this.#users.get(uid);
    if (rate === undefined) return;
    rate.sessions -= 1;
    if (rate.sessions > 0) return;
    this.#users.delete(uid);
    this.#absent.set(uid, rate);
    this.#sweep(nowMs);
  }

  get size(): number {
    return this.#users.size + this.#absent.size;
  }

  #sweep(nowMs: number): void {
    for (let remaining = SWEPT_AT_ONCE; remaining > 0; remaining--) {
      const { oldest, size } = this.#absent;
      if (oldest === undefined) return;
      const { key: uid, value: rate } = oldest;
      if (size > MAX_ABSENT_USERS || rate.isFull(nowMs)) this.#absent.delete(uid);
      else this.#absent.renew(uid, rate); // the next call checks other users
    }
  }
}

/**
 * Creates the budget for users who read over HTTP. A user's reads and frames share one budget. A
 * read in progress is charged as if it returned `maxBytes` bytes.
 */
export function createReadBudget(rates: UserRates, maxBytes: number, clock: Clock) {
  const workOf = (bytes: number) => 1 + reading(1, bytes);
  function requirePaid(uid: string): void {
    const retryAfterMs = rates.waitMs(uid, clock());
    if (retryAfterMs > 0) throw refusal(retryAfterMs);
  }
  return {
    requirePaid,
    begin(uid: string) {
      requirePaid(uid);
      const charged = rates.charge(uid, workOf(maxBytes), clock());
      return (bytes: number) => rates.charge(uid, workOf(bytes) - charged, clock());
    },
  };
}

/**
 * Size up to which a frame before the login is not charged, because opening the connection costs
 * more than such a frame.
 */
export const SMALL_GREETING_BYTES = 8192;
/**
 * Limit on the bytes that one network sends before logins. It lets a hundred clients, each with a
 * thousand resume points, log in at once.
 */
const GREETING_LIMIT: RateLimit = { perSecond: 2 * 1024 * 1024, burst: 16 * 1024 * 1024 };
const MAX_NETWORKS = 10_000;

/**
 * Limits the bytes that a client network sends before a login [decisions: Limits that hold under
 * attack, Before a credential is known]. Bytes of accepted logins do not count.
 */
export class GreetingBytes {
  readonly #budgets = new BoundedMap<string, TokenBucket>(MAX_NETWORKS);

  /**
   * Returns 0 without a charge for at most `SMALL_GREETING_BYTES` bytes. Otherwise, charges the
   * bytes and returns 0, or, if the network is over its limit, charges nothing and returns the
   * milliseconds to wait.
   */
  take(address: string, bytes: number, nowMs: number): number {
    if (bytes <= SMALL_GREETING_BYTES) return 0;
    const network = networkOf(address);
    const budget = this.#budgets.get(network) ?? new TokenBucket(GREETING_LIMIT, nowMs);
    const waitMs = budget.waitMs(nowMs, Math.min(bytes, GREETING_LIMIT.burst));
    if (waitMs === 0) budget.charge(bytes);
    this.#budgets.renew(network, budget);
    return waitMs;
  }

  refund(address: string, bytes: number): void {
    if (bytes > SMALL_GREETING_BYTES) this.#budgets.get(networkOf(address))?.charge(-bytes);
  }
}

function refusal(retryAfterMs: number): BrokerError {
  return withoutStack(() => new BrokerError("rate_limited", { retryAfterMs }));
}

export function frameCost(bytes: number): number {
  return 1 + Math.floor(bytes / BYTES_PER_FRAME);
}
