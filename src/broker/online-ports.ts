// The port of the users who were announced as online. The store keeps a durable row for each user
// whose `user.online` is in the event feed, until `user.offline` follows. The comment of a method
// is its contract. Every driver must fulfil it, and `test/contract/` checks that.

/** Options of `takeOnline`: which users it returns, and the turn that it begins. */
export interface OnlineTerms {
  /** Maximum number of users. */
  readonly limit: number;
  /**
   * Duration in milliseconds of the turn that the call begins. During the turn, `takeOnline`
   * returns no users to other nodes.
   */
  readonly turnMs: number;
  /** Users whose last session ended at this time or earlier are returned first. */
  readonly leftMs: number;
  /** Other users are also returned if they have not been returned since this time. */
  readonly checkedMs: number;
  /** Called if some users could not be read, or if the reply with some users was lost. */
  readonly onFailure?: (error: unknown) => void;
}

/** A session stored under a dead incarnation of its node. */
export interface DeadSession {
  readonly sessionId: string;
  readonly incarnation: string;
}

export interface OnlineStore {
  /**
   * Returns users who have a row and whose sessions must be checked. Returns no users while another
   * node's turn has not ended. Times are Unix milliseconds on the store's clock.
   */
  takeOnline(terms: OnlineTerms): Promise<readonly string[]>;
  /**
   * Removes `deadSessions` from the user, except sessions that a node has confirmed under a
   * different incarnation. If the user then has no session left, the same atomic step does one of
   * the following:
   *
   * - If the last session ended at `leftMs` or earlier, and this call removed no session, removes
   *   the row, writes `user.offline` and returns true.
   * - Otherwise, stores the current time as the time at which the last session ended, unless such a
   *   time is already stored.
   *
   * Has no effect on a user without a row, or while the feed is off.
   */
  endOnline(uid: string, deadSessions: readonly DeadSession[], leftMs: number): Promise<boolean>;
}
