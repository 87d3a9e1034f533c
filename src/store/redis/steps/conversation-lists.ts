// Lists of conversations on Redis. A cheap first pass reads the newest message of each of the
// user's channels. Then only the conversations near the requested range are read. State: the
// `Turns` that all lists share.

import { bucketOf } from "../../../broker/log-frame.ts";
import {
  type ChannelKey,
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  channelKey,
  clientMsgNoOf,
  GROUP_CHANNEL,
  type MessageHead,
  messageTimeMs,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type { ConversationRange, ConversationStore } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import { idCounterOf } from "../../../redis/id-counters.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { channelOf, type NewestMessage, selectNewest } from "../../newest-channels.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import type { GroupIndex } from "./user-groups.ts";

const RECORD = lua("channel_record");
const POSITIONS = lua("positions");
const ORDER = loadScript(lua("conversation_order"), RECORD, POSITIONS);
const HEADS = loadScript(
  lua("conversation_heads"),
  ...[RECORD, POSITIONS, lua("entry"), lua("conversation_state")],
);
const DROP = loadScript(lua("drop_peer"));

/**
 * Maximum number of channels per script. With this number, a script takes about half a millisecond.
 */
const ORDER_PER_CALL = 400;
/**
 * Maximum number of peers without messages that `readOrder` removes. Each removal takes several
 * calls.
 */
const REMOVED_PEERS = 20;
const HEADS_PER_CALL = 40;
/** Maximum number of scripts in flight for one list, so that other calls are not delayed. */
const IN_FLIGHT = 2;
/**
 * Maximum number of scripts in flight for one list on a Redis Cluster, where most scripts read few
 * channels.
 */
const IN_FLIGHT_OF_CLUSTER = 16;

// Indexes in the reply for a conversation, see `facts_of` in `conversation_state.lua`.
const LOG_LENGTH = 5;
const LOOK_ON = 6;
const IS_LARGE = 7;
export const FACT_COUNT = 8;

export type StateReply = readonly (number | Buffer | readonly unknown[] | null)[];

interface Lists {
  readonly groups: GroupIndex;
  /** Reads a conversation whose newest message `conversation_heads.lua` could not find. */
  readonly readWhole: (uid: string, channel: ChannelRef) => Promise<Conversation | undefined>;
}

/** A conversation in a list. `head` is absent if the user has no visible message. */
interface ListedState {
  readonly head?: ConversationHead | undefined;
  /** True if the user is in the channel and its log is empty. */
  readonly isEmpty: boolean;
  readonly isMember: boolean;
}

export function createConversationLists(
  ports: RedisStorePorts,
  { groups, readWhole }: Lists,
): Pick<ConversationStore, "newestConversations"> {
  const { link, clock, limits, onError } = ports;
  const inFlight = link.isCluster ? IN_FLIGHT_OF_CLUSTER : IN_FLIGHT;
  const turns = new Turns();
  const retentionMs = limits.retentionS === 0 ? Infinity : limits.retentionS * 1000;

  /**
   * Returns the channels of the user's conversations. `newestId` is the newest id that a single
   * server had assigned before the read. It is 0 on a Redis Cluster, where each bucket has its own
   * ids.
   */
  async function channelKeysOf(
    uid: string,
  ): Promise<{ readonly keys: readonly ChannelKey[]; readonly newestId: number }> {
    // A single server executes the calls in this order, so it reads the counter before the lists.
    const [counter, ids, people] = await Promise.all([
      link.isCluster ? null : link.call("get", idCounterOf(link, 0).key),
      groups.indexed(uid),
      link.call("zrange", link.keys.user("peers", uid), 0, -1),
    ]);
    const keys: ChannelKey[] = ids.map((id) => `${GROUP_CHANNEL}:${id}`);
    for (const peer of people as readonly Buffer[])
      keys.push(channelKey({ id: peer.toString(), type: PERSON_CHANNEL }, uid));
    return { keys, newestId: Number(counter) };
  }

  async function byBase(
    keys: readonly ChannelKey[],
    slice: TimeSlice,
  ): Promise<ReadonlyMap<string, readonly ChannelKey[]>> {
    const bases = new Map<string, ChannelKey[]>();
    for (const key of keys) {
      if (slice.shouldYield()) await slice.yield();
      const base = link.keys.ofChannel(key);
      const others = bases.get(base);
      if (others === undefined) bases.set(base, [key]);
      else others.push(key);
    }
    return bases;
  }

  /**
   * Splits channels into pieces, one per call of a script. The channels in one part of a piece
   * share a key prefix. On a Redis Cluster, a piece has a single part.
   */
  async function piecesOf(
    keys: readonly ChannelKey[],
    maxLength: number,
    slice: TimeSlice,
  ): Promise<readonly Piece[]> {
    const pieces: Part[][] = [];
    let room = 0;
    for (const [base, channels] of await byBase(keys, slice)) {
      if (link.isCluster) room = 0;
      for (let at = 0; at < channels.length; ) {
        if (room === 0) {
          pieces.push([]);
          room = maxLength;
        }
        const part = channels.slice(at, at + room);
        pieces.at(-1)?.push({ base, keys: part });
        at += part.length;
        room -= part.length;
      }
    }
    return pieces;
  }

  /**
   * Reads the newest message of each channel, except channels that the filter certainly excludes.
   * Also removes up to `REMOVED_PEERS` peers without messages. `newestId` is the newest id that the
   * channels' counters have assigned.
   */
  async function readOrder(
    uid: string,
    keys: readonly ChannelKey[],
    { sinceMs, onlyUnread }: Pick<Required<ConversationRange>, "sinceMs" | "onlyUnread">,
  ): Promise<{ readonly newestId: number; readonly newest: readonly NewestMessage[] }> {
    const slice = new TimeSlice(undefined, turns);
    const semaphore = new Semaphore(inFlight);
    const isFiltered = sinceMs > 0 || onlyUnread;
    const pieces = await piecesOf(keys, ORDER_PER_CALL / (isFiltered ? 2 : 1), slice);
    const nowMs = clock();
    const newest: NewestMessage[] = [];
    const unused: ChannelKey[] = [];
    const counters: number[] = [];
    const read = async (piece: Piece) => {
      const [first = ""] = piece[0]?.keys ?? [];
      const args: Arg[] = [uid, sinceMs, onlyUnread ? 1 : 0];
      for (const { base, keys } of piece) args.push(base, keys.join("\n"));
      const reply = await link.run(ORDER, [idCounterOf(link, bucketOf(first)).key], args);
      const [counter, order] = reply as readonly [Buffer, Buffer];
      counters.push(Number(counter));
      const ids = order.toString("latin1").split(" ");
      let at = 0;
      for (const { keys } of piece)
        for (const key of keys) {
          const last = ids[at++] ?? "";
          const id = last === "0" ? 0 : Number(last.slice(last.indexOf("-") + 1));
          // Personal channels are read even if all their messages are past retention, so that empty
          // channels are removed from the user's peers.
          const isPast = isGroup(key) && messageTimeMs(id) + retentionMs <= nowMs;
          if (id > 0 && !isPast) newest.push({ key, id });
          if (id === 0 && !isFiltered && !isGroup(key)) unused.push(key);
        }
    };
    await slice.each(pieces, (piece) => semaphore.run(() => read(piece)));
    for (const key of unused.slice(0, REMOVED_PEERS)) await removePeer(uid, channelOf(key, uid).id);
    return { newestId: Math.max(0, ...counters), newest };
  }

  async function readStates(
    uid: string,
    keys: readonly ChannelKey[],
  ): Promise<ReadonlyMap<ChannelKey, ListedState>> {
    const slice = new TimeSlice(undefined, turns);
    const semaphore = new Semaphore(inFlight);
    const states = new Map<ChannelKey, ListedState>();
    const read = async (piece: Piece) => {
      let rest = piece.flatMap(({ base, keys }) => keys.map((key) => ({ base, key })));
      while (rest.length > 0) {
        const args: Arg[] = [uid, clock(), limits.retentionS * 1000];
        for (const { base, key } of rest) args.push(base, key);
        const head = link.keys.channel("head", rest[0]?.key ?? "");
        const replies = (await link.run(HEADS, [head], args)) as readonly (StateReply | null)[];
        for (const [at, reply] of replies.entries()) {
          const { key = "" } = rest[at] ?? {};
          states.set(key, await stateOf(uid, channelOf(key, uid), reply));
        }
        rest = rest.slice(replies.length);
      }
    };
    const pieces = await piecesOf(keys, HEADS_PER_CALL, slice);
    await slice.each(pieces, (piece) => semaphore.run(() => read(piece)));
    return states;
  }

  async function stateOf(
    uid: string,
    channel: ChannelRef,
    reply: StateReply | null,
  ): Promise<ListedState> {
    if (reply === null) return { isEmpty: false, isMember: false };
    const isEmpty = reply[LOG_LENGTH] === 0;
    const last = lastHead(reply.slice(FACT_COUNT));
    if (last !== undefined)
      return { head: { ...factsOf(channel, reply), last }, isEmpty, isMember: true };
    if (reply[LOOK_ON] === 0) return { isEmpty, isMember: true };
    const whole = await readWhole(uid, channel);
    const head = whole?.last && { ...whole, last: headOf(whole.last) };
    return { head, isEmpty, isMember: true };
  }

  /** Reads conversations. Removes wrong entries from the user's group index and from `peers`. */
  async function readHeads(
    uid: string,
    channels: readonly NewestMessage[],
  ): Promise<readonly ConversationHead[]> {
    const heads: ConversationHead[] = [];
    const wrongGroups: string[] = [];
    const emptyPeers: string[] = [];
    const keys = channels.map(({ key }) => key);
    for (const [key, { head, isEmpty, isMember }] of await readStates(uid, keys)) {
      if (head !== undefined) heads.push(head);
      else if (!isMember) wrongGroups.push(channelOf(key, uid).id);
      else if (isEmpty && !isGroup(key)) emptyPeers.push(channelOf(key, uid).id);
    }
    if (wrongGroups.length > 0) await groups.removeWrong(uid, wrongGroups);
    for (const peer of emptyPeers) await removePeer(uid, peer);
    return heads;
  }

  /**
   * Removes a peer whose channel is empty. Errors are only reported, because a peer that remains in
   * the list is harmless.
   */
  async function removePeer(uid: string, peer: string): Promise<void> {
    const index = link.keys.user("peers", uid);
    const key = channelKey({ id: peer, type: PERSON_CHANNEL }, uid);
    const isEmpty = async () => (await readStates(uid, [key])).get(key)?.isEmpty === true;
    try {
      const score = await link.call("zscore", index, peer);
      if (score === null || !(await isEmpty())) return;
      const removed = await link.run(DROP, [index], [peer, String(score)]);
      if (removed === 0) return;
      // A message may have arrived before the removal without raising the score, because a node's
      // estimate of Redis' clock may be too low.
      if (!(await isEmpty())) await link.write("zadd", index, "GT", String(score), peer);
    } catch (error) {
      onError(error, "Could not remove an empty conversation from a user's list");
    }
  }

  return {
    async newestConversations(uid, range) {
      const { sinceMs, onlyUnread = false, excludedTypes = [] } = range;
      const { keys: all, newestId: firstId } = await channelKeysOf(uid);
      const isExcluded = (key: ChannelKey) =>
        excludedTypes.includes(isGroup(key) ? GROUP_CHANNEL : PERSON_CHANNEL);
      const keys = excludedTypes.length === 0 ? all : all.filter((key) => !isExcluded(key));
      const { newestId: lastId, newest } = await readOrder(uid, keys, { sinceMs, onlyUnread });
      // On a single server, the list may lack changes with ids above `firstId`. On a Redis Cluster,
      // the ids of two buckets cannot be compared, and the look-back of the conversation pages
      // (`lookBackMs`) covers the difference.
      const newestId = link.isCluster ? lastId : firstId;
      return {
        ...(await selectNewest(newest, range, (channels) => readHeads(uid, channels))),
        newestChangeMs: newestId === 0 ? 0 : messageTimeMs(newestId),
        channels: () => all.map((key) => channelOf(key, uid)),
      };
    },
  };
}

interface Part {
  readonly base: string;
  readonly keys: readonly ChannelKey[];
}

type Piece = readonly Part[];

const GROUP_PREFIX = `${GROUP_CHANNEL}:`;

function isGroup(key: ChannelKey): boolean {
  return key.startsWith(GROUP_PREFIX);
}

export function factsOf({ id, type }: ChannelRef, reply: StateReply): Omit<Conversation, "last"> {
  const [headSeq, readSeq, unread, deletedSeq, changedAtMs] = reply.map(Number);
  return {
    channel: { id, type },
    headSeq: headSeq ?? 0,
    readSeq: readSeq ?? 0,
    unread: unread ?? 0,
    deletedSeq: deletedSeq ?? 0,
    changedAtMs: changedAtMs ?? 0,
    ...(reply[IS_LARGE] === 1 && { large: true }),
  };
}

function lastHead(last: StateReply): MessageHead | undefined {
  if (last.length === 0) return undefined;
  const [messageId, messageSeq, clientMsgNo, timestampMs] = last;
  return {
    messageId: Number(messageId),
    messageSeq: Number(messageSeq),
    clientMsgNo: String(clientMsgNo) || clientMsgNoOf(Number(messageId)),
    timestampMs: Number(timestampMs),
  };
}

function headOf({ messageId, messageSeq, clientMsgNo, timestampMs }: MessageHead): MessageHead {
  return { messageId, messageSeq, clientMsgNo, timestampMs };
}
