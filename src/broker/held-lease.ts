// The leases that this node holds. State: the time at which each lease was last renewed.

import type { Lease, LeaseStore } from "./lease-ports.ts";

/** Interval at which a lease is renewed. */
export const LEASE_TICK_MS = 1000;
/** Time after which a lease that is not renewed expires. Another node can then acquire it. */
export const LEASE_MS = 6000;
/**
 * Time before the expiry of a lease at which the node stops using the lease, as a safety margin.
 */
const LEASE_MARGIN_MS = 1500;

/** Validity period of a lease. Each renewal of the lease starts the period again. */
export class LeaseTerm {
  /** Time of the last renewal on the monotonic clock. */
  #renewedMs = Number.NEGATIVE_INFINITY;

  /** False if the lease may have expired, for example because the process was frozen. */
  get isValid(): boolean {
    return performance.now() - this.#renewedMs < LEASE_MS - LEASE_MARGIN_MS;
  }

  /** Records that a call that began at `startedMs` renewed the lease. */
  renew(startedMs: number): void {
    this.#renewedMs = startedMs;
  }
}

/** The lease of one task. */
export class HeldLease {
  readonly #store: LeaseStore;
  readonly #name: string;
  /** Identifies one run of this node. */
  readonly #owner: string;
  readonly #term = new LeaseTerm();

  constructor(store: LeaseStore, name: string, owner: string) {
    this.#store = store;
    this.#name = name;
    this.#owner = owner;
  }

  /** See `LeaseTerm`. */
  get isValid(): boolean {
    return this.#term.isValid;
  }

  /** Acquires or renews the lease. Returns `undefined` if another node holds it. */
  async renew(): Promise<Lease | undefined> {
    const startedMs = performance.now();
    const lease = await this.#store.acquireLease(this.#name, this.#owner, LEASE_MS);
    if (lease !== undefined) this.#term.renew(startedMs);
    return lease;
  }

  async release(lease: Lease): Promise<void> {
    await this.#store.releaseLease(lease, this.#owner);
  }
}
