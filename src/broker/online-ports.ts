// The port of the users who were announced as online: the store keeps a durable row for each user
// whose `user.online` is in the event feed, until `user.offline` follows. The comment of a method
// is its contract. Every driver must fulfil it, and `test/contract/` checks that.

/** Options of `takeOnline`, which select the returned users. */
export interface OnlineTerms {
  /** Maximum number of users. */
  readonly limit: number;
  /** Time in milliseconds during which `takeOnline` returns no users to other nodes. */
  readonly turnMs: number;
  /** Users whose last session left at this time or earlier are returned first. */
  readonly leftMs: number;
  /** Other users are returned too if they were not returned since this time. */
  readonly checkedMs: number;
}

export interface OnlineStore {
  /**
   * Returns users with a row whose sessions must be checked. Returns no users while the turn of
   * another node has not ended. Times are Unix milliseconds by the clock of the store.
   */
  takeOnline(terms: OnlineTerms): Promise<readonly string[]>;
  /**
   * Removes `deadSessions`, which belong to dead nodes, from the user. Then, if the user has no
   * other session, in the same atomic step:
   *
   * - if the last session left at `leftMs` or earlier, and none was removed now, removes the row and
   *   writes `user.offline`. Returns true.
   * - otherwise stores the current time as the time at which the last session left, unless such a
   *   time is stored already.
   *
   * Has no effect on a user without a row, or while the feed is off.
   */
  endOnline(uid: string, deadSessions: readonly string[], leftMs: number): Promise<boolean>;
}
