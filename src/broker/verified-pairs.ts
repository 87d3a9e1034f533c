// Pairs of a client network and a user, manager or signature that was accepted from that network.
// The failures of such a pair are counted separately, so that attackers in the same network cannot
// lock the user out.

import { BoundedMap } from "../lib/bounded-map.ts";

const MAX_PAIRS = 100_000;

export class VerifiedPairs {
  readonly #failures: BoundedMap<string, number>;

  constructor(maxPairs = MAX_PAIRS) {
    this.#failures = new BoundedMap(maxPairs);
  }

  /**
   * Returns the number of the pair's failures since its last success, or `undefined` if no success
   * is stored.
   */
  failures(pair: string): number | undefined {
    return this.#failures.get(pair);
  }

  recordSuccess(pair: string): void {
    this.#failures.delete(pair); // moves the pair to the end, to be dropped last
    this.#failures.set(pair, 0);
  }

  recordFailure(pair: string): void {
    const failures = this.#failures.get(pair);
    if (failures !== undefined) this.#failures.set(pair, failures + 1);
  }
}

/** Returns the name of a pair. It is unambiguous because addresses contain no space. */
export function pairOf(network: string, name: string): string {
  return `${network} ${name}`;
}
