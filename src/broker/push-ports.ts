// The port for deciding which users need a push notification. It provides the facts for the
// decisions, and the cursors that mark the last event for which a decision was made. The comment of
// a method is its contract. Every driver must fulfil it, and `test/contract/` checks that.

import type { EventDraft, EventPosition } from "./event-ports.ts";
import type { Lease } from "./lease-ports.ts";
import type { ChannelKey } from "./model.ts";

/** A message that users have acknowledged. */
interface Acknowledged {
  readonly key: ChannelKey;
  readonly messageSeq: number;
  readonly uids: readonly string[];
}

interface CursorMove {
  readonly lease: Lease;
  /** Position of the cursor before the move. */
  readonly from: EventPosition;
  readonly to: EventPosition;
  readonly events: readonly EventDraft[];
}

export interface PushStore {
  /**
   * Returns, for each user in order, the read position in the channel (see `ConversationStore`).
   * The users must be members. In a large group, the result is meaningless, because the group's
   * read positions are not stored.
   */
  readSeqs(key: ChannelKey, uids: readonly string[]): Promise<readonly number[]>;
  /**
   * Stores for `ttlMs` milliseconds which users acknowledged which messages. A restart of the store
   * may lose this data.
   */
  addAcknowledged(messages: readonly Acknowledged[], ttlMs: number): Promise<void>;
  /** Returns, for each message of the channel in order, the users who acknowledged it. */
  acknowledgedBy(
    key: ChannelKey,
    messageSeqs: readonly number[],
  ): Promise<readonly ReadonlySet<string>[]>;
  /**
   * Claims a partition's cursor for a lease and returns the cursor's position. A new cursor starts
   * after the newest event. Returns `undefined` if a lease with a higher token has claimed the
   * cursor.
   */
  claimPushCursor(partition: number, lease: Lease): Promise<EventPosition | undefined>;
  /**
   * Moves a partition's cursor and writes the events, in one atomic step. All events must belong to
   * the partition. Returns false and changes nothing if another lease has claimed the cursor, or if
   * the cursor is not at `from`. No event is written while the feed is off.
   */
  movePushCursor(partition: number, move: CursorMove): Promise<boolean>;
}
