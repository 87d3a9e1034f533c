// The lease of one task as this node holds it. State: when the lease was renewed last.

import type { Lease, LeaseStore } from "./lease-ports.ts";

/** Interval at which a lease is renewed. */
export const LEASE_TICK_MS = 1000;
/** A lease that is not renewed ends after this time, and another node acquires it. */
const LEASE_MS = 6000;
/** Safety margin: the node stops using a lease this long before the lease expires. */
const LEASE_MARGIN_MS = 1500;

export class HeldLease {
  readonly #store: LeaseStore;
  readonly #name: string;
  /** Identifies one run of this node. */
  readonly #owner: string;
  /** Time by the monotonic clock. */
  #renewedMs = Number.NEGATIVE_INFINITY;

  constructor(store: LeaseStore, name: string, owner: string) {
    this.#store = store;
    this.#name = name;
    this.#owner = owner;
  }

  /** False while the lease may have expired, for example because the process was frozen. */
  get isValid(): boolean {
    return performance.now() - this.#renewedMs < LEASE_MS - LEASE_MARGIN_MS;
  }

  /** Acquires or renews the lease. Returns `undefined` if another node holds it. */
  async renew(): Promise<Lease | undefined> {
    const startedMs = performance.now();
    const lease = await this.#store.acquireLease(this.#name, this.#owner, LEASE_MS);
    if (lease !== undefined) this.#renewedMs = startedMs;
    return lease;
  }

  async release(lease: Lease): Promise<void> {
    await this.#store.releaseLease(lease, this.#owner);
  }
}
