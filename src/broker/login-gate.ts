// Limits attempts to guess managers' passwords. Each client network may make a limited number of
// failed attempts in a time window. Attempts in progress count as failures. A username that reaches
// the same limit is only slowed down, because its owner must still be able to log in from another
// network.

import { type Deferred, deferred } from "../lib/deferred.ts";
import { networkOf } from "../lib/network.ts";
import { BrokerError } from "./errors.ts";
import type { Throttle } from "./ports.ts";
import { pairOf, VerifiedPairs } from "./verified-pairs.ts";

export interface LoginLimits {
  /**
   * Number of failures within `windowS` at which a network is blocked or a username is slowed down.
   */
  readonly attempts: number;
  readonly windowS: number;
}

/** Maximum number of attempts on this node that run or wait to be admitted. */
const MAX_ATTEMPTS = 512;
const MAX_PER_NETWORK = 16;
/**
 * Maximum number of attempts from one network that run or wait to be admitted, for usernames that
 * have logged in from the network before.
 */
const MAX_VERIFIED_PER_NETWORK = 32;
/** Extra attempts beyond `MAX_ATTEMPTS` for usernames that have logged in from the network. */
const RESERVED_FOR_VERIFIED = 64;
const SLOW_MS = 1000;

interface Attempts {
  /** Number of attempts that run or wait to be admitted. */
  active: number;
  /**
   * Number of admitted attempts that have not finished yet. Each of these attempts may still fail.
   */
  pending: number;
}

interface Network {
  readonly key: string;
  /**
   * Attempts for usernames that have logged in from the network and have stayed below the limit of
   * failures since then.
   */
  readonly verified: Attempts;
  readonly others: Attempts;
  /**
   * Settles when the previous decision has been made, so that attempts are decided one at a time.
   */
  admission: Promise<void>;
  settlement: Deferred;
}

interface LoginName {
  readonly username: string;
  readonly address: string;
}

export class LoginGate {
  readonly #throttle: Throttle;
  readonly #limits: LoginLimits;
  readonly #networks = new Map<string, Network>();
  readonly #verified = new VerifiedPairs();
  #attemptCount = 0;

  constructor(throttle: Throttle, limits: LoginLimits) {
    this.#throttle = throttle;
    this.#limits = limits;
  }

  /**
   * Runs `verify` once the attempt is admitted. `rank` is -1 if the user has logged in from this
   * network before and has not reached the limit of failures since then. Otherwise, it is the
   * sum of the network's failures and pending attempts (rank >= 0). Throws `too_many_attempts`
   * with the time to wait, or `overloaded` if the number of attempts on the node has reached its
   * limit.
   */
  async attempt(
    { username, address }: LoginName,
    verify: (rank: number) => Promise<boolean>,
  ): Promise<boolean> {
    const network = networkOf(address);
    const isVerified = this.#ownFailures(network, username) !== undefined;
    const state = this.#enter(network, isVerified);
    const user = `login:u:${username}`;
    try {
      const rank = await this.#admit(state, network, username);
      try {
        if (rank >= 0) await this.#slowDown(user);
        const isRight = await verify(rank);
        const pair = pairOf(network, username);
        if (isRight) this.#verified.recordSuccess(pair);
        else this.#verified.recordFailure(pair);
        await (isRight ? this.#throttle.clear(user) : this.#count([user, state.key]));
        return isRight;
      } finally {
        (rank < 0 ? state.verified : state.others).pending -= 1;
        state.settlement.resolve();
        state.settlement = deferred();
      }
    } finally {
      this.#leave(network, state, isVerified);
    }
  }

  #enter(network: string, isVerified: boolean): Network {
    const state = this.#networks.get(network) ?? newNetwork(network);
    const reserved = isVerified ? RESERVED_FOR_VERIFIED : 0;
    if (this.#attemptCount >= MAX_ATTEMPTS + reserved) throw new BrokerError("overloaded");
    const counters = isVerified ? state.verified : state.others;
    if (counters.active >= this.#maxPerNetwork(isVerified))
      throw new BrokerError("too_many_attempts", { retryAfterMs: 1000 });
    this.#networks.set(network, state);
    this.#attemptCount += 1;
    counters.active += 1;
    return state;
  }

  #maxPerNetwork(isVerified: boolean): number {
    if (isVerified) return MAX_VERIFIED_PER_NETWORK;
    return this.#attemptCount < MAX_ATTEMPTS / 2 ? MAX_PER_NETWORK : 1;
  }

  #leave(network: string, state: Network, isVerified: boolean): void {
    this.#attemptCount -= 1;
    (isVerified ? state.verified : state.others).active -= 1;
    if (state.verified.active + state.others.active === 0) this.#networks.delete(network);
  }

  #ownFailures(network: string, username: string): number | undefined {
    const failures = this.#verified.failures(pairOf(network, username));
    return failures !== undefined && failures < this.#limits.attempts ? failures : undefined;
  }

  async #count(keys: readonly string[]): Promise<void> {
    const windowMs = this.#limits.windowS * 1000;
    await Promise.all(keys.map((key) => this.#throttle.addFailure(key, windowMs)));
  }

  async #slowDown(user: string): Promise<void> {
    const { count } = await this.#throttle.failures(user);
    if (count < this.#limits.attempts) return;
    await new Promise((resolve) => setTimeout(resolve, SLOW_MS));
  }

  /** Waits while the network would reach its limit if all pending attempts failed. */
  async #admit(state: Network, network: string, username: string): Promise<number> {
    for (;;) {
      // This promise is read before the decision, so that an attempt that finishes during the
      // decision wakes this attempt.
      const settled = state.settlement.promise;
      const decision = state.admission.then(() =>
        this.#decide(state, this.#ownFailures(network, username)),
      );
      state.admission = decision.then(ignore, ignore);
      const rank = await decision;
      if (rank !== undefined) return rank;
      await settled;
    }
  }

  /**
   * Returns the rank of an attempt (see `attempt`), or `undefined` if the attempt must wait. Reads
   * the pending attempts before the failures, so that an attempt that fails between the two reads
   * counts twice rather than not at all.
   */
  async #decide(state: Network, ownFailures: number | undefined): Promise<number | undefined> {
    const { attempts } = this.#limits;
    const isVerified = ownFailures !== undefined;
    const counters = isVerified ? state.verified : state.others;
    const { pending } = counters;
    const { count, retryAfterS } = await this.#throttle.failures(state.key);
    if (count >= attempts && !isVerified)
      throw new BrokerError("too_many_attempts", {
        retryAfterMs: Math.max(1, retryAfterS) * 1000,
      });
    const failures = isVerified ? Math.min(count, ownFailures) : count;
    if (failures + pending >= attempts) return undefined;
    counters.pending += 1;
    return isVerified ? -1 : count + pending;
  }
}

function newNetwork(network: string): Network {
  return {
    key: `login:a:${network}`,
    verified: { active: 0, pending: 0 },
    others: { active: 0, pending: 0 },
    admission: Promise.resolve(),
    settlement: deferred(),
  };
}

function ignore(): void {}
