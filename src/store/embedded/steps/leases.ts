// Leases of the embedded store. One process owns the store, so a lease is always granted. State:
// the names of the leases that were acquired.

import type { LeaseStore } from "../../../broker/lease-ports.ts";

/** Token of the only owner. */
const TOKEN = 1;

export class Leases implements LeaseStore {
  readonly #held = new Set<string>();

  async acquireLease(name: string) {
    this.#held.add(name);
    return { name, token: TOKEN };
  }

  /** Keeps the lease, because no other owner can acquire it. */
  async releaseLease(): Promise<void> {}

  isHeld(name: string): boolean {
    return this.#held.has(name);
  }

  /** Invalidates a lease until it is acquired again. */
  forget(name: string): void {
    this.#held.delete(name);
  }
}
