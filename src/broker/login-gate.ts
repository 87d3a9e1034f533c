// Limits guessing of managers' passwords: a client network has a number of failures in the window,
// concurrent attempts included; a username with too many failures is only slowed down, because the
// right password from another network must be served. State: attempts under way per network, and
// the pairs of network and username that logged in. The Throttle has the counts.

import { type Deferred, deferred } from "../lib/deferred.ts";
import { networkOf } from "../lib/network.ts";
import { BrokerError } from "./errors.ts";
import type { Throttle } from "./ports.ts";
import { VerifiedPairs } from "./verified-pairs.ts";

export interface LoginLimits {
  /**
   * Failures within the window after which a network's further attempts are refused, and a
   * username's wait.
   */
  readonly attempts: number;
  readonly windowS: number;
}

/** Attempts of this node, running or waiting; further ones are refused as overloaded. */
const MAX_UNDER_WAY = 512;
/** Of one network; one while half of all places are taken. Excludes pairs that logged in before. */
const MAX_OF_NETWORK = 16;
/** Of one network's pairs that logged in before. */
const MAX_KNOWN_OF_NETWORK = 32;
/** Places beyond `MAX_UNDER_WAY`, for such pairs only. */
const RESERVED_FOR_KNOWN = 64;
/** The wait of an attempt at a username with too many failures. */
const SLOW_MS = 1000;

interface Attempts {
  /** Running or waiting. */
  underWay: number;
  /** Admitted and not settled. */
  pending: number;
}

interface Network {
  readonly key: string;
  /** Of pairs that logged in before and have failures left. */
  readonly known: Attempts;
  readonly others: Attempts;
  /** Serializes decisions about it. */
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
  readonly #known = new VerifiedPairs();
  #underWay = 0;

  constructor(throttle: Throttle, limits: LoginLimits) {
    this.#throttle = throttle;
    this.#limits = limits;
  }

  /**
   * Runs `verify` if the network may try and counts the result: a failure against network and
   * username, a success clears the username's count. `rank` orders waiting checks, lower first:
   * users that logged in from their network before, then networks by their failures. Throws
   * `too_many_attempts` with the seconds left, `overloaded`. An error of `verify` is not counted.
   */
  async attempt(
    { username, address }: LoginName,
    verify: (rank: number) => Promise<boolean>,
  ): Promise<boolean> {
    const network = networkOf(address);
    const isKnown = this.#ownFailures(network, username) !== undefined;
    const state = this.#enter(network, isKnown);
    const user = `login:u:${username}`;
    try {
      const rank = await this.#admit(state, network, username);
      try {
        if (rank >= 0) await this.#slowDown(user);
        const isRight = await verify(rank);
        if (isRight) this.#known.right(network, username);
        else this.#known.wrong(network, username);
        await (isRight ? this.#throttle.clear(user) : this.#count([user, state.key]));
        return isRight;
      } finally {
        (rank < 0 ? state.known : state.others).pending -= 1;
        state.settlement.resolve();
        state.settlement = deferred();
      }
    } finally {
      this.#leave(network, state, isKnown);
    }
  }

  #enter(network: string, isKnown: boolean): Network {
    const state = this.#networks.get(network) ?? newNetwork(network);
    const reserved = isKnown ? RESERVED_FOR_KNOWN : 0;
    if (this.#underWay >= MAX_UNDER_WAY + reserved) throw new BrokerError("overloaded");
    const own = isKnown ? state.known : state.others;
    if (own.underWay >= this.#mostOfNetwork(isKnown))
      throw new BrokerError("too_many_attempts", { retryAfterMs: 1000 });
    this.#networks.set(network, state);
    this.#underWay += 1;
    own.underWay += 1;
    return state;
  }

  #mostOfNetwork(isKnown: boolean): number {
    if (isKnown) return MAX_KNOWN_OF_NETWORK;
    return this.#underWay < MAX_UNDER_WAY / 2 ? MAX_OF_NETWORK : 1;
  }

  #leave(network: string, state: Network, isKnown: boolean): void {
    this.#underWay -= 1;
    (isKnown ? state.known : state.others).underWay -= 1;
    if (state.known.underWay + state.others.underWay === 0) this.#networks.delete(network);
  }

  /** Of a pair that logged in before and has failures left; else undefined. */
  #ownFailures(network: string, username: string): number | undefined {
    const failures = this.#known.failures(network, username);
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

  /**
   * Waits while the attempts under way could use up the network's failures. Resolves with the
   * rank.
   */
  async #admit(state: Network, network: string, username: string): Promise<number> {
    for (;;) {
      // Before the count is read, so that an attempt settling meanwhile wakes this one.
      const settled = state.settlement.promise;
      const decided = state.admission.then(() =>
        this.#decide(state, this.#ownFailures(network, username)),
      );
      state.admission = decided.then(ignore, ignore);
      const rank = await decided;
      if (rank !== undefined) return rank;
      await settled;
    }
  }

  /**
   * Pending is read before the count: an attempt that fails in between is counted twice for a
   * moment, never missed.
   */
  async #decide(state: Network, ownFailures: number | undefined): Promise<number | undefined> {
    const { attempts } = this.#limits;
    const isKnown = ownFailures !== undefined;
    const own = isKnown ? state.known : state.others;
    const { pending } = own;
    const { count, retryAfterS } = await this.#throttle.failures(state.key);
    if (count >= attempts && !isKnown)
      throw new BrokerError("too_many_attempts", {
        retryAfterMs: Math.max(1, retryAfterS) * 1000,
      });
    const failures = isKnown ? Math.min(count, ownFailures) : count;
    if (failures + pending >= attempts) return undefined;
    own.pending += 1;
    return isKnown ? -1 : count + pending;
  }
}

function newNetwork(network: string): Network {
  return {
    key: `login:a:${network}`,
    known: { underWay: 0, pending: 0 },
    others: { underWay: 0, pending: 0 },
    admission: Promise.resolve(),
    settlement: deferred(),
  };
}

function ignore(): void {}
