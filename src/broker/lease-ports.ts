// The port for leases. While a node holds the lease of a task, no other node performs the task.

/** The right of one node to perform a task until the lease expires. */
export interface Lease {
  readonly name: string;
  /**
   * Fencing token. It increases each time another owner acquires the lease, even if the store has
   * lost its last writes.
   */
  readonly token: number;
}

export interface LeaseStore {
  /**
   * Acquires or renews the lease of a task for `ttlMs`. Returns `undefined` if another owner holds
   * it. An owner is one run of one node.
   */
  acquireLease(name: string, owner: string, ttlMs: number): Promise<Lease | undefined>;
  /** Ends the lease unless it has already ended. Another node can then acquire it immediately. */
  releaseLease(lease: Lease, owner: string): Promise<void>;
}
