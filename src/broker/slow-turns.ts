// Delays the attempts of a client network that has reached its limit of wrong credentials. The
// network's attempts start in the order of their calls, at most two per second.

import { BoundedMap } from "../lib/bounded-map.ts";
import { BrokerError } from "./errors.ts";

const MAX_NETWORKS = 100_000;
const SLOW_MS = 500;
/**
 * Maximum number of waiting attempts from a network. The last of these attempts waits at most 4 s.
 */
const MAX_WAITING = 8;

interface SlowQueue {
  waiting: number;
  /** Time of the next turn, as a value of `performance.now()`. */
  nextTurnMs: number;
}

export class SlowTurns {
  readonly #queues = new BoundedMap<string, SlowQueue>(MAX_NETWORKS);

  /**
   * Waits for the next turn of the network. Throws `rate_limited` with the time to wait if
   * `MAX_WAITING` attempts from the network are already waiting.
   */
  async wait(network: string): Promise<void> {
    const nowMs = performance.now();
    const queue = this.#queues.get(network) ?? { waiting: 0, nextTurnMs: nowMs };
    if (queue.waiting >= MAX_WAITING)
      throw new BrokerError("rate_limited", {
        message: "Too many wrong tokens or signatures came from this network; try again later",
        retryAfterMs: MAX_WAITING * SLOW_MS,
      });
    this.#queues.set(network, queue);
    const turnMs = Math.max(nowMs, queue.nextTurnMs);
    queue.nextTurnMs = turnMs + SLOW_MS;
    queue.waiting += 1;
    await new Promise((resolve) => setTimeout(resolve, turnMs - nowMs));
    queue.waiting -= 1;
  }

  forget(network: string): void {
    this.#queues.delete(network);
  }
}
