// Layout of the Redis keys, and the ports and limits that all parts of the Redis store use.
// `redis/keys.ts` builds the key names. Keeps no state.
//
// Times are Unix milliseconds. The red-dot count of a seq is the number of messages up to and
// including that seq that have a red dot and do not expire.
//
// Keys of a channel, in the slot of its bucket (`Keys.channel`). A user's rules and contacts are
// kept under the channel key `1:<uid>`.
//
//   key or field    type     content                               present
//   head            HASH                                           if any field is present
//     seq           integer  newest seq                            if a message was ever stored
//     pub           integer  newest publication number             if anything was ever published
//     red           integer  red-dot count of seq                  if a message was ever stored
//     last          ID       ID in log of the newest message,      if a message was ever stored
//                            which may have been removed
//     @<uid>        integer  seq of the uid's newest message       if the uid sent a stored message
//     newest        integer  id of the newest message, stored or   if the channel's users are in
//                            not                                   other slots
//     bare          1                                              if a sweep emptied the log
//     imported      integer  seq of the newest imported message    if messages were imported
//     importedAt    time     of that message                       if messages were imported
//     info          integer  record of the channel, see            if it was created
//                            `lua/channel_record.lua`
//     lists         bits     lists that are not empty, see         if a list is not empty
//                            `lua/channel_record.lua`
//   log             STREAM   one entry per message, with the ID    if it is not empty
//                            <seq>-<messageId>
//     c             integer  red-dot count of the entry's seq      if it differs from the seq, or
//                                                                  if s, x or t is present
//     r             bytes    record of the message                 always
//     s             string   clientMsgNo of the stream             if it is the message of a stream
//     x             time     when the message expires              if it expires
//     t             time     when the message was sent             if it was imported
//   labels          ZSET     source ids of imported messages,      if it is not empty
//                            scored by seq
//   expiry          ZSET     ID in the log, scored by the time     if messages expire
//                            when the message expires
//   redDots         ZSET     <seq>:<expiry time>, scored by seq,   if red-dot messages expire
//                            removed with the entry in expiry
//   dedupe          STRING   one key per (uid, clientMsgNo), see   until the dedupe window ends
//                            `lua/dedupe.lua`
//   permanent       SET      permanent members                     if there are any
//   temporary       SET      temporary members                     if there are any
//   denylist        SET      uids on the denylist                  if there are any
//   allowlist       SET      uids on the allowlist                 if there are any
//   replaced        SET      uids of members that were replaced,   until processed, for at most a
//                            see `lua/members_forget.lua`          day; groups only
//   joinSeqs        HASH     uid: seq of head when the user        for members of a group
//                            joined
//   positions       HASH     uid: `<readSeq> <deletedSeq> <head    if the user changed the
//                            seq at the change> <change time>`     conversation, or if imported
//   acknowledged    SET      one per seq: uids that acknowledged   for `push.afterMs` plus 60 s
//                            the message                           after a uid was added
//   openStreams     ZSET     clientMsgNo of each active stream,    if streams are active
//                            scored 0 if POST /event started it,
//                            else by the seq of its message
//   endedStreams    ZSET     <seq>:<clientMsgNo>, scored by the    if streams have ended, groups
//                            time of the end; the newest 200       only
//   logHead and the other keys of the log of each stream, see `library/logs.lua`
//   topic                    publish/subscribe channel of a group  no key
//
// Keys of a bucket (`Keys.bucket`):
//
//   key or field    type     content                               present
//   messageIds      STRING   newest message id of the bucket       on a Redis Cluster
//   activeStreams   ZSET     <channel key>\n<clientMsgNo>, scored  if streams are active
//                            by a time that is not later than the
//                            last event. A check for silence
//                            updates this time
//                            (`library/streams.lua`)
//   due             ZSET     channel key, scored by the time when  for each channel with a log
//                            its log must be reclaimed next, +inf
//                            if no limit currently requires it
//   commands        STREAM   pending copies of commands, with the  if a recipient may lack its copy
//                            ID <messageId>-0 (`command-steps.ts`)
//     h             bytes    facts about the command (`headOf`)    always
//     r             bytes    record of the command                 always
//     u             bytes    recipients that may lack their copy   always
//   feed            HASH                                           if the event feed was ever
//                                                                  turned on or off
//     number        integer  number of the newest event            if the feed is on
//     stopped       integer  number of the newest event            if the feed is off
//     id            integer  id of the newest event                if there was an event
//     trimmed       integer  number through which all events were  if events other than on-demand
//                            removed                               events were removed
//   events          STREAM   events with consecutive numbers, with if it is not empty
//                            the ID <number>-<id> of the last one
//     t             integer  index of the type in `EVENT_TYPES`    always
//     k             text     channel key, or `u:<uid>`             always
//     s             integer  seq of the first message, 0 for none  always
//     i             text     ids of the events, with spaces        if there are several
//     d             JSON     fields that readers get               if they are not read from the
//                                                                  message
//   push            HASH     cursor of the push decisions          if push decisions were ever made
//     token         integer  token of the lease that claimed the   always
//                            cursor
//     number, id    integer  position of the last event for which  always
//                            push decisions were made
//   onDemandEvents  STREAM   events of the types in                if it is not empty
//                            `ON_DEMAND_TYPES`, with the fields
//                            of `events`. Both streams together
//                            have consecutive numbers
//   inboxDue        ZSET     uid, scored by the time when the next  if a user's inbox got copies
//                            copy in the user's inbox expires, or   while the event feed was on
//                            an earlier time
//   outboxSeen:<uid>         STRING  see `lua/outbox_put.lua`      on a Redis Cluster, for a day
//   online, leaving ZSET     see `lua/user_events.lua`             if a user is announced as online
//   commandSweep    STRING   time until which one node sweeps the  during a sweep, and for a minute
//                            pending copies                        after a failed one
//
// `library/logs.lua` describes the keys of logs.
//
// Keys of a user (`Keys.user`):
//
//   key or field    type     content                               present
//   devices         HASH     flag: device (`users.ts`)             if a device is registered, and
//                                                                  for `logoutMs` after all devices
//                                                                  are logged out
//     ban           1                                              if the account is banned
//   groups          HASH     group id: Unix seconds when it was    for at least all groups of the
//                            last added to this index              user
//   peers           ZSET     peer uid, scored by the approximate   for at least all peers with whom
//                            time of the newest message            messages are stored
//   streams         SET      channel key                           for at least all personal
//                                                                  channels with an active stream
//   endedStreams    ZSET     <seq>:<channel key>\n<clientMsgNo>,   if personal streams have ended
//                            scored by the time of the end; the
//                            newest 200
//   sessions        HASH     see `lua/session_rules.lua`           if the user has sessions
//   logins          HASH     see `lua/session_rules.lua`           if a main device logged in
//   ended           HASH     see `lua/session_rules.lua`           for a day after a session's end
//   announced       STRING   see `lua/user_events.lua`             while announced as online
//   announcing      STRING   see `lua/user_feed.lua`               on a Redis Cluster, for a minute
//   outbox          LIST     see `lua/user_feed.lua`               on a Redis Cluster, until the
//                                                                  events are in the feed
//   outboxSeq       STRING   see `lua/user_feed.lua`               on a Redis Cluster, for two days
//   inboxSeq        STRING   inboxSeq of the newest copy           if the user ever got a copy
//   inbox           STREAM   copies, with the ID <inboxSeq>-0      if it is not empty
//     x             time     when the copy expires                 always
//     i             integer  messageId of the command              always
//     n             integer  payload bytes                         always
//     r             bytes    record of the command                 always
//   inboxExpiry     ZSET     inboxSeq, scored by the time when     for copies that expire earlier
//                            the copy expires                      than older copies
//   inboxSenders    HASH     inboxSeq: user who sent the copy      if users sent copies; backends
//                                                                  are not listed
//   inboxShares     ZSET     uid, scored by the number of the      like inboxSenders; absent after
//                            user's copies                         a migration until the first use
//   inboxOrder      ZSET     <length of the uid>:<uid>:<inboxSeq   if users sent copies; lacks only
//                            with 15 digits>, all scored 0; the    backend copies that are older
//                            uid is empty for a backend            than all copies from users
//   inboxListed     STRING   time: upper bound of the user's       on a Redis Cluster, if the user
//                            score in `inboxDue`                   is in `inboxDue`
//   inboxIds        ZSET     messageId, scored by the time when    for an hour after a copy was put
//                            a pending copy was put into the inbox
//   topic                    publish/subscribe channel of the      no key
//                            user's sessions
//   presence                 publish/subscribe channel of the      no key
//                            user's watchers
//
// Keys of the whole cluster (`Keys.shared`):
//
//   key or field    type     content                               present
//   messageIds      STRING   newest message id                     on a single server
//   format          STRING   see `redis/format.ts`                 always
//   feed            STRING   format, and `on` or `off`             if the event feed was ever
//                                                                  turned on or off
//   eventReaders    HASH     kind: time until which readers want   if a reader ever wanted any
//                            on-demand events of this kind
//   onlineTurn      STRING                                         while a node looks for users who
//                                                                  are offline
//   managers        HASH     see `managers.ts`                     if a password is stored
//   tokens:<hash>   STRING   see `managers.ts`                     until the token expires
//   systemUids      SET      uids of system accounts               if there are any
//   keySet          STRING   keys of the provider (`key-sets.ts`)  if `auth.jwt.jwksUrl` is set
//   signingKeys     HASH     number: key (`signing-keys.ts`)       if a URL was ever signed
//   webhooks        HASH     id: format, version and settings of   if endpoints exist
//                            an endpoint (`webhooks.ts`)
//   lease:<task>             HASH  owner, token and end of a lease if the task was ever leased
//   webhookState:<id>        HASH  name: state of the deliveries   if events were delivered
//   webhookParked:<id>       HASH  event id: a parked event        if events are parked
//   webhookAttempts:<id>     LIST  the newest attempts             if there was an attempt
//   import          HASH                                           if an import was ever opened
//     phase         text     see `ImportPhase`                     always
//     <line kind>   integer  number of stored lines                if lines were stored

import type { EventDemand } from "../../broker/event-demand-ports.ts";
import type { LogLimits } from "../../broker/log-ports.ts";
import type { Clock } from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import type { UnreadableRecords } from "./unreadable.ts";

export interface RedisStoreLimits {
  readonly dedupeWindowS: number;
  /** Age at which messages are removed. 0 means no limit. */
  readonly retentionS: number;
  /** Maximum number of messages each channel keeps. 0 means no limit. */
  readonly maxChannelMessages: number;
  readonly sweepIntervalMs: number;
  readonly maxStreamBytes: number;
  /**
   * Maximum number of bytes of one event that viewers are shown, in streams created through the
   * Durable Streams protocol. The default is the default of `streams.maxDataBytes`.
   */
  readonly maxStreamDataBytes?: number;
  readonly maxInbox: number;
  readonly inboxTtlS: number;
  readonly logs: Omit<LogLimits, "maxOpen">;
}

export interface RedisStorePorts {
  readonly link: RedisLink;
  readonly clock: Clock;
  /** Clock for idle limits, in milliseconds from an arbitrary origin. The default is `clock`. */
  readonly steadyClock?: Clock;
  readonly limits: RedisStoreLimits;
  /** True if banned accounts cannot log in. The default is false. */
  readonly judgesBans?: boolean;
  /** Time for which logged-out devices are kept. The default is `LOGOUT_TTL_MS`. */
  readonly logoutMs?: number;
  readonly onError: (error: unknown, what: string) => void;
  readonly unreadable: UnreadableRecords;
  /**
   * Optional events that this node writes. `setDemand` and `switchFeed` change this object. If the
   * object is absent, the node writes no optional events.
   */
  readonly demand?: { -readonly [Name in keyof EventDemand]: EventDemand[Name] } | undefined;
  /** See `ReplicationBarrier.wait`. Returns `undefined` if no replicas are required. */
  readonly waitForReplicas: (key: string) => Promise<void> | undefined;
  readonly observeReplicas: () => () => Promise<void>;
}

export function lua(name: string): URL {
  return new URL(`./lua/${name}.lua`, import.meta.url);
}
