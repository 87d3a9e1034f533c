// What the parts of the Redis store are made of, and the layout of its keys (names:
// `redis/keys.ts`). No state.
//
// Of a channel (slot of its bucket; parts of `keys.channel`):
//   head       HASH   seq (newest), pub (publications so far: `publicationSeq`), red (messages so
//     far that count as unread for as long as they are kept),
//              `@<uid>` (seq of the user's newest stored message), bare (the log was emptied), info
//                (the channel's record as one number,
//              `lua/channel_record.lua`; of a user's rules under the key `1:<uid>`), lists (which
//              of its lists are not empty)
//   log        STREAM `<seq>-<messageId>`: [c `red` through it, where that is not the seq], r
//     record, [s clientMsgNo of the stream it is], [x expiresAtMs]
//   expiry     ZSET   place in the log → expiresAtMs of messages that expire: what the sweep goes
//     by
//   redDots    ZSET   `<seq>:<expiresAtMs>` → seq of those of them with a red dot: unread is
//     counted from the newest on. Goes with the entry of expiry
//   dedupe     STRING one per `uid\nclientMsgNo`: `<ms> <seq>-<messageId>[ <publicationSeq>]`, what
//     a retry is answered (`lua/dedupe.lua`); ends by itself
//   permanent, temporary  SET  its members of either kind
//   denylist, allowlist  SET  its lists
//   replaced   SET    a group's members of lists that were replaced, of which removed ones may have
//     left something in joinSeqs, positions or head; a day at most
//   joinSeqs   HASH   uid → head seq when it became a member
//   positions  HASH   uid → `<readSeq> <deletedSeq> <head seq at the change> <ms of the change>`
//   activeStream  STRING  clientMsgNo of the active stream
//   stream, streamText, streamOffsets, streamNotes, streamEventIds  one stream each (tail
//     clientMsgNo; `lua/snapshot.lua`)
//   topic      no key: the publish/subscribe channel of a group
// Of a bucket (`keys.bucket`): messageIds (on a Redis Cluster: counter of message ids),
// activeStreams ZSET (by their last event), due ZSET (channels with
//   a log by when to reclaim; +inf: nothing ever is, unless the limits of history change), commands
//     STREAM `<messageId>-0`: commands that some
//   recipients may not have yet: h head, r record, u recipients (`command-steps.ts`); commandSweep
//     STRING (until when, in Unix ms, a node goes through them)
// Of a user (`keys.user`): devices HASH, groups HASH (index of at least the groups it is in → Unix
// seconds when each was entered last),
//   peers ZSET (peer → ms of the newest message, about), streams SET (index of at least the
//     personal channels with an active stream),
//   sessions, logins, ended HASH (`lua/session_rules.lua`),
//   inboxSeq STRING (of the newest copy), inbox STREAM `<inboxSeq>-0`: x endMs, i messageId, n
//     payload bytes, r record; inboxExpiry ZSET (inboxSeq →
//   endMs of copies that end before others of their time), inboxIds ZSET (messageId → ms: noted
//     commands that it was given in the last hour);
//   topic and presence, no keys: the publish/subscribe channels of the user and of those who watch
//     it
// Of all (`keys.shared`): messageIds (on one server: counter of message ids), format, managers,
// tokens, systemUids SET

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
export interface RedisStorePorts {
  readonly link: RedisLink;
  readonly clock: Clock;
  readonly limits: RedisStoreLimits;
  /** Receives failures that no caller gets. */
  readonly onError: (error: unknown, what: string) => void;
  readonly unreadable: UnreadableRecords;
  /**
   * Resolves once `redis.minReplicas` replicas have all that was written and answered before, on
   * the server that holds `key`, or on all; undefined: nothing to wait for. Throws `unavailable`.
   */
  readonly written: (key?: string) => Promise<void> | undefined;
}

/** A Lua file of the store. */
export function lua(name: string): URL {
  return new URL(`./lua/${name}.lua`, import.meta.url);
}
