// What the parts of the Redis store are made of, and the layout of its keys (names: `redis/keys.ts`). Types only.
//
// Of a channel (slot of its bucket; parts of `keys.channel`):
//   head  HASH   seq (newest), pub (publications so far), red (messages so far that count as unread for as long as they are kept),
//          `@<uid>` (seq of the user's newest stored message), bare (the log was emptied), info (the channel's record as one number,
//          `lua/channel_record.lua`; of a user's rules under the key `1:<uid>`)
//   log   STREAM `<seq>-0`: m messageId and `red` through it (`log-entry.ts`), r record, [s clientMsgNo of the stream it is], [x expiresAtMs]
//   exp   ZSET   seq → expiresAtMs of messages that expire: what the sweep goes by
//   dot   ZSET   `<seq>:<expiresAtMs>` → seq of those of them with a red dot: unread is counted from the newest on. Goes with the entry of exp
//   dd    STRING one per `uid\nclientMsgNo`: `<ms> <messageId> <messageSeq> <pub>[ <more>]`, what a retry is answered (`lua/dedupe.lua`); ends by itself
//   perm, temp  SET  its members of either kind
//   replaced  SET  a group's members of lists that were replaced, of which removed ones may have left join, pos or own; a day at most
//   join  HASH   uid → head seq when it became a member
//   pos   HASH   uid → `<readSeq> <deletedSeq> <head seq at the change> <ms of the change>`
//   act   STRING clientMsgNo of the active stream; s, st, so, sn, se: one stream each (tail clientMsgNo; `lua/snapshot.lua`)
// Of a bucket (`keys.bucket`): id (on a Redis Cluster: counter of message ids), live ZSET (active streams by their last event), due ZSET (channels with a
//   log by when to reclaim; +inf: nothing ever is, unless the limits of history change), commands STREAM `<messageId>-0`: commands that some
//   recipients may not have yet: h head, r record, u recipients (`command-steps.ts`); commandSweep STRING (until when, in Unix ms, a node goes through them)
// Of a user (`keys.user`): dev HASH, groups HASH (index of at least the groups it is in → Unix seconds when each was entered last),
//   peers ZSET (peer → ms of the newest message, about), streams SET (hint: personal channels with an active stream),
//   sess, login, ended HASH (`lua/session_rules.lua`),
//   inboxSeq STRING (of the newest copy), inbox STREAM `<inboxSeq>-0`: x endMs, i messageId, n payload bytes, r record; inboxExpiry ZSET (inboxSeq →
//   endMs of copies that end before others of their time), inboxIds ZSET (messageId → ms: noted commands that it was given in the last hour)
// Of all (`keys.shared`): id (on one server: counter of message ids), format, managers, tokens

import type { Clock } from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import type { UnreadableRecords } from "./unreadable.ts";

/** Plain values of the configuration. */
export interface RedisStoreLimits {
  readonly dedupeWindowS: number;
  readonly retentionS: number;
  /** How many messages each channel keeps; 0 = all. */
  readonly maxChannelMessages: number;
  /** Between two looks for what is past its time. */
  readonly sweepIntervalMs: number;
  /** Data of all events of one stream. */
  readonly maxStreamBytes: number;
  /** Commands a user's inbox holds at most. */
  readonly maxInbox: number;
  /** How long a command waits to be acknowledged. */
  readonly inboxTtlS: number;
}

/** What every part of the store works with. */
export interface RedisStoreParts {
  readonly link: RedisLink;
  readonly clock: Clock;
  readonly limits: RedisStoreLimits;
  /** Hears of failures that no caller is told of. */
  readonly onProblem: (error: unknown, what: string) => void;
  readonly unreadable: UnreadableRecords;
  /**
   * Resolves once `redis.minReplicas` replicas have all that was written and answered before, on the server that holds `key`, or on all;
   * undefined: nothing to wait for. Throws `unavailable`.
   */
  readonly written: (key?: string) => Promise<void> | undefined;
}
