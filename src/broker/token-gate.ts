// Limits attempts to guess clients' tokens. Once a client network has `attempts` failures in a time
// window, its attempts are delayed, so that at most two checks start per second (see `SlowTurns`).
// Only a failed attempt costs a round trip to the cluster.

import { BoundedMap } from "../lib/bounded-map.ts";
import { networkOf } from "../lib/network.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { BrokerError } from "./errors.ts";
import type { Clock, Throttle } from "./ports.ts";
import { SlowTurns } from "./slow-turns.ts";
import { pairOf, VerifiedPairs } from "./verified-pairs.ts";

interface TokenLimits {
  /** Number of failures within `windowS` after which a network is slowed down. */
  readonly attempts: number;
  readonly windowS: number;
}

interface TokenGatePorts {
  readonly throttle: Throttle;
  readonly limits: TokenLimits;
  readonly clock: Clock;
  /**
   * Maximum number of stored pairs of a network and a user. The same limit applies to pairs of a
   * network and a signature.
   */
  readonly maxPairs?: number;
}

interface TokenBearer {
  readonly address: string;
  /** User, or the name of a signature. No user has such a name. */
  readonly uid: string;
  readonly isSignature?: boolean;
}

/** The network of an attempt, and the user or signature that the attempt must verify. */
interface Bearer {
  readonly network: string;
  readonly pair: string;
  readonly verified: VerifiedPairs;
}

const MAX_NETWORKS = 100_000;
/**
 * Maximum number of concurrent checks for one key of `#checks`. All of these checks may fail before
 * the network is slowed down.
 */
const MAX_CHECKS = 32;

interface FailureWindow {
  readonly count: number;
  readonly endsAtMs: number;
}

interface Checks {
  readonly semaphore: Semaphore;
  count: number;
}

export class TokenGate {
  readonly #ports: TokenGatePorts;
  readonly #failuresByNetwork = new BoundedMap<string, FailureWindow>(MAX_NETWORKS);
  readonly #slowTurns = new SlowTurns();
  readonly #verifiedUsers: VerifiedPairs;
  /** Many signatures from one client must not displace users, so signatures are kept separately. */
  readonly #verifiedSignatures: VerifiedPairs;
  /**
   * Checks that are running or waiting, except slowed-down checks. The key is the pair if
   * `#mayFail` returns true for the bearer, otherwise the network.
   */
  readonly #checks = new Map<string, Checks>();

  constructor(ports: TokenGatePorts) {
    this.#ports = ports;
    this.#verifiedUsers = new VerifiedPairs(ports.maxPairs);
    this.#verifiedSignatures = new VerifiedPairs(ports.maxPairs);
  }

  /**
   * Runs `check`, and counts a failure if it throws `unauthorized`. A user who has connected from
   * the network before is slowed down only by the user's own failures. All nodes share a
   * network's failure count. A node reads that count when it counts a failure. Throws
   * `rate_limited` with the time to wait if the queue of the network's waiting attempts is full.
   */
  async attempt<T>(
    { address, uid, isSignature = false }: TokenBearer,
    check: () => Promise<T>,
  ): Promise<T> {
    const network = networkOf(address);
    const pair = pairOf(network, uid);
    const verified = isSignature ? this.#verifiedSignatures : this.#verifiedUsers;
    const bearer = { network, pair, verified };
    const key = this.#mayFail(bearer) ? pair : network;
    const checks = this.#checks.get(key) ?? { semaphore: new Semaphore(MAX_CHECKS), count: 0 };
    this.#checks.set(key, checks);
    checks.count += 1;
    await checks.semaphore.enter();
    try {
      if (!this.#isSlowedDown(bearer)) return await this.#check(bearer, check);
    } finally {
      checks.semaphore.leave();
      checks.count -= 1;
      if (checks.count === 0) this.#checks.delete(key);
    }
    await this.#slowTurns.wait(network);
    return this.#check(bearer, check);
  }

  async #check<T>(bearer: Bearer, check: () => Promise<T>): Promise<T> {
    try {
      const checked = await check();
      bearer.verified.recordSuccess(bearer.pair);
      return checked;
    } catch (error) {
      if (error instanceof BrokerError && error.code === "unauthorized")
        await this.#countFailure(bearer);
      throw error;
    }
  }

  #isSlowedDown(bearer: Bearer): boolean {
    const { count } = this.#failures(bearer.network);
    return count >= this.#ports.limits.attempts && !this.#mayFail(bearer);
  }

  #mayFail({ verified, pair }: Bearer): boolean {
    const failures = verified.failures(pair);
    return failures !== undefined && failures < this.#ports.limits.attempts;
  }

  #failures(network: string): FailureWindow {
    const failures = this.#failuresByNetwork.get(network);
    if (failures === undefined) return NONE;
    if (this.#ports.clock() < failures.endsAtMs) return failures;
    this.#failuresByNetwork.delete(network);
    this.#slowTurns.forget(network);
    return NONE;
  }

  async #countFailure({ network, pair, verified }: Bearer): Promise<void> {
    verified.recordFailure(pair);
    const { throttle, limits, clock } = this.#ports;
    const windowMs = limits.windowS * 1000;
    const previous = this.#failures(network);
    const local = {
      count: previous.count + 1,
      endsAtMs: previous === NONE ? clock() + windowMs : previous.endsAtMs,
    };
    this.#failuresByNetwork.set(network, local); // takes effect before the cluster replies
    const shared = await throttle.addFailure(`token:${network}`, windowMs).catch(ignoreOutage);
    if (shared === undefined || shared.count <= this.#failures(network).count) return;
    const endsAtMs = clock() + shared.retryAfterS * 1000;
    this.#failuresByNetwork.set(network, { count: shared.count, endsAtMs });
  }
}

const NONE: FailureWindow = { count: 0, endsAtMs: 0 };

/** Ignores a cluster outage. The node then uses only its own counts. */
function ignoreOutage(error: unknown): undefined {
  if (!(error instanceof BrokerError)) throw error;
  return undefined;
}
