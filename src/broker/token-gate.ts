// Limits guessing of clients' tokens: the attempts of a network with too many failures are checked
// slowly, one after the other. Networks without failures pay no round trip. State: per network the
// failures this node knows of and the attempts under way or waiting; the pairs of network and user
// that connected. All bounded, attempts by their connections.

import { BoundedMap } from "../lib/bounded-map.ts";
import { networkOf } from "../lib/network.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { BrokerError } from "./errors.ts";
import type { Clock, Throttle } from "./ports.ts";
import { VerifiedPairs } from "./verified-pairs.ts";

interface TokenLimits {
  /** Failures of a network within the window after which it is slowed down. */
  readonly attempts: number;
  readonly windowS: number;
}

interface TokenGateParts {
  readonly throttle: Throttle;
  readonly limits: TokenLimits;
  readonly clock: Clock;
}

interface TokenBearer {
  readonly address: string;
  readonly uid: string;
}

const MAX_NETWORKS = 100_000;
/** Between two checks of a slowed-down network. */
const SLOW_MS = 500;
/**
 * Attempts of one such network that wait; the last one's turn comes before `client.authTimeoutMs`.
 */
const MAX_WAITING = 8;
/**
 * Checks of one network at once, or of one pair that connected before: so many more than the limit
 * can fail.
 */
const MAX_CHECKS = 32;

interface Held {
  readonly count: number;
  readonly endsAtMs: number;
}

interface Checks {
  readonly line: Semaphore;
  /** Attempts that run in it or wait for it. */
  underWay: number;
}

interface SlowLane {
  waiting: number;
  /** Of `performance.now`. */
  nextMs: number;
}

export class TokenGate {
  readonly #parts: TokenGateParts;
  readonly #failing = new BoundedMap<string, Held>(MAX_NETWORKS);
  readonly #lanes = new BoundedMap<string, SlowLane>(MAX_NETWORKS);
  readonly #known = new VerifiedPairs();
  /** By network; of known pairs with room of their own by pair. */
  readonly #checks = new Map<string, Checks>();

  constructor(parts: TokenGateParts) {
    this.#parts = parts;
  }

  /**
   * Runs `check`, in turn if the network is slowed down, and counts a failure if it throws
   * `unauthorized`. Whether the network is slowed down is decided when the attempt's turn comes.
   * The cluster shares the count; a node learns others' failures with its own next one. Throws
   * `rate_limited` with the seconds to wait, and what `check` throws.
   */
  async attempt<T>({ address, uid }: TokenBearer, check: () => Promise<T>): Promise<T> {
    const network = networkOf(address);
    const isKnown = this.#hasOwnRoom(network, uid);
    const key = isKnown ? `${network} ${uid}` : network; // addresses contain no space
    const outcome = await this.#inTurn(key, async () =>
      this.#isHeldOff(network, uid)
        ? undefined
        : { checked: await this.#judge(network, uid, check) },
    );
    if (outcome !== undefined) return outcome.checked;
    await this.#slowTurn(network);
    return this.#judge(network, uid, check);
  }

  async #judge<T>(network: string, uid: string, check: () => Promise<T>): Promise<T> {
    try {
      const checked = await check();
      this.#known.right(network, uid);
      return checked;
    } catch (error) {
      if (error instanceof BrokerError && error.code === "unauthorized")
        await this.#failed(network, uid);
      throw error;
    }
  }

  async #inTurn<T>(key: string, step: () => Promise<T>): Promise<T> {
    const checks = this.#checks.get(key) ?? {
      line: new Semaphore(MAX_CHECKS),
      underWay: 0,
    };
    this.#checks.set(key, checks);
    checks.underWay += 1;
    try {
      return await checks.line.run(step);
    } finally {
      checks.underWay -= 1;
      if (checks.underWay === 0) this.#checks.delete(key);
    }
  }

  #isHeldOff(network: string, uid: string): boolean {
    const { count } = this.#failures(network);
    return count >= this.#parts.limits.attempts && !this.#hasOwnRoom(network, uid);
  }

  #hasOwnRoom(network: string, uid: string): boolean {
    const own = this.#known.failures(network, uid);
    return own !== undefined && own < this.#parts.limits.attempts;
  }

  #failures(network: string): Held {
    const found = this.#failing.get(network);
    if (found === undefined) return NONE;
    if (this.#parts.clock() < found.endsAtMs) return found;
    this.#failing.delete(network);
    this.#lanes.delete(network);
    return NONE;
  }

  async #slowTurn(network: string): Promise<void> {
    const nowMs = performance.now();
    const lane = this.#lanes.get(network) ?? { waiting: 0, nextMs: nowMs };
    if (lane.waiting >= MAX_WAITING)
      throw new BrokerError("rate_limited", {
        message: "Too many wrong tokens came from this network; try again later",
        retryAfterMs: MAX_WAITING * SLOW_MS,
      });
    this.#lanes.set(network, lane);
    const turnMs = Math.max(nowMs, lane.nextMs);
    lane.nextMs = turnMs + SLOW_MS;
    lane.waiting += 1;
    await new Promise((resolve) => setTimeout(resolve, turnMs - nowMs));
    lane.waiting -= 1;
  }

  async #failed(network: string, uid: string): Promise<void> {
    this.#known.wrong(network, uid);
    const { throttle, limits, clock } = this.#parts;
    const windowMs = limits.windowS * 1000;
    const before = this.#failures(network);
    const own = {
      count: before.count + 1,
      endsAtMs: before === NONE ? clock() + windowMs : before.endsAtMs,
    };
    this.#failing.set(network, own); // counts at once, before the cluster answers
    const shared = await throttle.addFailure(`token:${network}`, windowMs).catch(ignoreOutage);
    if (shared === undefined || shared.count <= this.#failures(network).count) return;
    const endsAtMs = clock() + shared.retryAfterS * 1000;
    this.#failing.set(network, { count: shared.count, endsAtMs });
  }
}

const NONE: Held = { count: 0, endsAtMs: 0 };

/** Without the cluster the node counts alone. */
function ignoreOutage(error: unknown): undefined {
  if (!(error instanceof BrokerError)) throw error;
  return undefined;
}
