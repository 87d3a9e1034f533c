// A user's state in a channel is computed when it is read, by one script in the channel's slot.
// Nothing is awaited before a script is sent, so that calls for one channel take effect in the
// order in which they were made.

import {
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  channelKey,
  clientMsgNoOf,
  GROUP_CHANNEL,
  type Message,
  type MessageHead,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type {
  ConversationChange,
  ConversationSlice,
  ConversationStore,
} from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import { bucketOf } from "../../../redis/keys.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { CONVERSATION_BYTES, contentBytes } from "../../held-bytes.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { idCounterOf } from "./channel-names.ts";
import { type MessageRow, messageOf } from "./history.ts";

const STATE = loadScript(lua("conversation"), ...["channel_record", "entry", "snapshot"].map(lua));
const DROP = loadScript(lua("drop_peer"));

/** Maximum number of scripts in flight for one list, so that other calls are not delayed. */
const STATES_IN_FLIGHT = 64;
/** Maximum number of whole conversations read at once, because their messages may be large. */
const WHOLE_IN_FLIGHT = 16;

/** Keys of `conversation.lua` before and after the counter of message ids, in their order. */
const CHANNEL_KEYS = ["head", "log", "redDots", "positions"];
const GROUP_KEYS = ["joinSeqs", "permanent", "temporary"];

// Indexes in the reply of `conversation.lua`. FACT_COUNT is the index of the newest message.
const HEAD_SEQ = 0;
const LOG_LENGTH = 5;
const LOOK_ON = 6;
const FACT_COUNT = 7;

type StateReply = readonly (number | Buffer | readonly unknown[] | null)[];

interface Peer {
  readonly uid: string;
  /** Approximate time of the newest message, Unix milliseconds, in the format of Redis scores. */
  readonly score: string;
}

/** The caller limits the number of lists that are read at once. */
export function createRedisConversations(
  ports: RedisStorePorts,
  groupsOf: (uid: string) => Promise<readonly string[]>,
): ConversationStore & Pick<ChannelFeed, "personalChannelsSince"> {
  const { link, clock, limits, onError, unreadable, waitForReplicas } = ports;

  /** Runs the script until it has found the newest shown message or there is none. */
  async function readState(
    uid: string,
    channel: ChannelRef,
    [isWhole, ...change]: readonly [isWhole: 0 | 1, ...Arg[]],
  ): Promise<{ readonly reply: StateReply; readonly last?: Message } | undefined> {
    const { type } = channel;
    const key = channelKey(channel, uid);
    const keyOf = (part: string) => link.keys.channel(part, key);
    const ids = idCounterOf(link, bucketOf(key));
    const groupKeys = type === GROUP_CHANNEL ? GROUP_KEYS.map(keyOf) : [];
    const keys = [...CHANNEL_KEYS.map(keyOf), ids.key, ...groupKeys];
    let request: readonly Arg[] = change;
    for (;;) {
      const args: Arg[] = [uid, clock(), limits.retentionS * 1000, type, isWhole];
      const [kind = "", value = 0, headSeq = 0] = request;
      args.push(kind, value, headSeq, ids.bucket);
      const rawReply = await link.run(STATE, keys, args);
      if (rawReply === null) return undefined;
      const reply = rawReply as StateReply; // see the header of `conversation.lua`
      const row = reply.slice(FACT_COUNT);
      const hasRow = isWhole === 1 && row.length > 0;
      // See the header of `conversation.lua`.
      const rows = hasRow ? [row as unknown as MessageRow] : [];
      const [last] = unreadable.decodeReadable(rows, messageOf);
      if (last !== undefined) return { reply, last };
      const through = hasRow ? Number(row[1]) - 1 : Number(reply[LOOK_ON]);
      if (through === 0) return { reply };
      request = ["look_on", through, Number(reply[HEAD_SEQ])];
    }
  }

  /** `head` is absent if the user has no shown message. `isEmpty`: the channel's log is empty. */
  async function readHead(
    uid: string,
    channel: ChannelRef,
  ): Promise<{ readonly head?: ConversationHead; readonly isEmpty: boolean }> {
    const state = await readState(uid, channel, [0, ""]);
    if (state === undefined) return { isEmpty: false };
    const { reply } = state;
    const isEmpty = reply[LOG_LENGTH] === 0;
    const last = lastHead(reply.slice(FACT_COUNT));
    if (last === undefined) return { isEmpty };
    return { head: { ...factsOf(channel, reply), last }, isEmpty };
  }

  async function readWhole(
    uid: string,
    channel: ChannelRef,
    change: readonly Arg[] = [""],
  ): Promise<Conversation | undefined> {
    const state = await readState(uid, channel, [1, ...change]);
    if (state === undefined) return undefined;
    return { ...factsOf(channel, state.reply), last: state.last };
  }

  const peers = async (uid: string, ...range: readonly string[]) =>
    (await link.call(
      ...(["zrange", link.keys.user("peers", uid), ...range] as const),
    )) as readonly Buffer[]; // members, with scores if `range` ends with WITHSCORES

  /** Removes a peer whose channel is empty. Only reports errors: an unnecessary peer may remain. */
  async function removePeer(uid: string, peer: Peer): Promise<void> {
    const key = link.keys.user("peers", uid);
    try {
      const removed = await link.run(DROP, [key], [peer.uid, peer.score]);
      if (removed === 0) return;
      // A message may have arrived meanwhile without raising the score, because a node's estimate
      // of Redis' clock may be behind.
      const { isEmpty } = await readHead(uid, channelWith(peer));
      if (!isEmpty) await link.write("zadd", key, "GT", peer.score, peer.uid);
    } catch (error) {
      onError(error, "Could not remove an empty conversation from a user's list");
    }
  }

  async function conversationsOf(uid: string): Promise<readonly ConversationHead[]> {
    const [groups, people] = await Promise.all([
      groupsOf(uid),
      peers(uid, "0", "-1", "WITHSCORES"),
    ]);
    const heads: ConversationHead[] = [];
    const semaphore = new Semaphore(STATES_IN_FLIGHT);
    const read = (channel: ChannelRef, peer?: Peer) =>
      semaphore.run(async () => {
        const { head, isEmpty } = await readHead(uid, channel);
        if (head !== undefined) heads.push(head);
        else if (isEmpty && peer !== undefined) await removePeer(uid, peer);
      });
    const reads = groups.map((id) => read({ id, type: GROUP_CHANNEL }));
    for (let at = 0; at + 1 < people.length; at += 2) {
      const peer = { uid: String(people[at]), score: String(people[at + 1]) };
      reads.push(read(channelWith(peer), peer));
    }
    await Promise.all(reads);
    return heads;
  }

  return {
    async newestConversations(uid, { sinceMs }) {
      const heads = (await conversationsOf(uid)).toSorted(
        (a, b) => b.last.messageId - a.last.messageId,
      );
      const newestChangeMs = heads.reduce(
        (latest, { changedAtMs }) => Math.max(latest, changedAtMs),
        0,
      );
      return {
        heads: heads.filter(({ changedAtMs }) => changedAtMs >= sinceMs),
        isComplete: true,
        newestChangeMs,
        channels: () => heads.map(({ channel }) => channel),
      };
    },

    async readConversations(uid, channels, { limit, maxBytes }): Promise<ConversationSlice> {
      const conversations: Conversation[] = [];
      let bytes = 0;
      let at = 0;
      while (at < channels.length) {
        if (conversations.length >= limit) return { conversations, more: true };
        const count = Math.min(WHOLE_IN_FLIGHT, limit - conversations.length);
        const batch = channels.slice(at, at + count);
        at += count;
        const reads = batch.map((channel) => readWhole(uid, channel));
        for (const conversation of await Promise.all(reads)) {
          if (conversation?.last === undefined) continue;
          bytes += CONVERSATION_BYTES + contentBytes(conversation.last);
          if (bytes > maxBytes && conversations.length > 0) return { conversations, more: true };
          conversations.push(conversation);
        }
      }
      return { conversations, more: false };
    },

    conversation: (uid, channel) => readWhole(uid, channel),

    async changeConversation(uid, channel, change) {
      const args = [change.kind, amountOf(change)];
      const changed = await readWhole(uid, channel, args);
      if (changed !== undefined)
        await waitForReplicas(link.keys.channel("head", channelKey(channel, uid)));
      return changed;
    },

    async personalChannelsSince(uid, sinceMs) {
      const uids = await peers(uid, `${sinceMs}`, "+inf", "BYSCORE");
      return uids.map((peerUid) => channelKey({ id: String(peerUid), type: PERSON_CHANNEL }, uid));
    },
  };
}

const channelWith = ({ uid }: Peer): ChannelRef => ({
  id: uid,
  type: PERSON_CHANNEL,
});

function amountOf(change: ConversationChange): number {
  if (change.kind === "delete") return 0;
  const value = change.kind === "read" ? change.seq : change.unread;
  return Math.min(Math.max(Math.trunc(value), 0), Number.MAX_SAFE_INTEGER);
}

function factsOf({ id, type }: ChannelRef, reply: StateReply): Omit<Conversation, "last"> {
  const [headSeq, readSeq, unread, deletedSeq, changedAtMs] = reply.map(Number);
  return {
    channel: { id, type },
    headSeq: headSeq ?? 0,
    readSeq: readSeq ?? 0,
    unread: unread ?? 0,
    deletedSeq: deletedSeq ?? 0,
    changedAtMs: changedAtMs ?? 0,
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
