// Pairs of a client network and a name that presented the right credential. Such a pair has
// failures of its own, so that a guesser in the same network does not lock it out. State: the pairs
// with their failures since; bounded, the pair whose success is oldest is dropped first.

import { BoundedMap } from "../lib/bounded-map.ts";

const MAX_PAIRS = 100_000;

export class VerifiedPairs {
  readonly #failures = new BoundedMap<string, number>(MAX_PAIRS);

  /** Failures since the last right credential; undefined: the pair is not known. */
  failures(network: string, name: string): number | undefined {
    return this.#failures.get(pairOf(network, name));
  }

  right(network: string, name: string): void {
    const pair = pairOf(network, name);
    this.#failures.delete(pair); // to the end of the order
    this.#failures.set(pair, 0);
  }

  wrong(network: string, name: string): void {
    const pair = pairOf(network, name);
    const failures = this.#failures.get(pair);
    if (failures !== undefined) this.#failures.set(pair, failures + 1);
  }
}

/** Addresses contain no space. */
function pairOf(network: string, name: string): string {
  return `${network} ${name}`;
}
