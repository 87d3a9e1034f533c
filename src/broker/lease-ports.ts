// The port of leases. While a node holds the lease of a task, no other node does the task.

/** The right of one node to do a task, until it expires. */
export interface Lease {
  readonly name: string;
  /**
   * Increases each time that another owner acquires the lease, also after the store has lost its
   * last writes (a fencing token).
   */
  readonly token: number;
}

export interface LeaseStore {
  /**
   * Acquires or renews the lease of a task for `ttlMs`. Returns `undefined` if another owner holds
   * it. An owner is one run of one node.
   */
  acquireLease(name: string, owner: string, ttlMs: number): Promise<Lease | undefined>;
  /** Ends the lease, unless it has ended already. Another node can then acquire it at once. */
  releaseLease(lease: Lease, owner: string): Promise<void>;
}
