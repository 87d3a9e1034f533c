// The port's conversations on Redis: the state of a user in a channel is computed when asked, by
// one step on the channel's slot; a list takes many at once. With whom a user has personal channels
// is the user's `peers`, kept by the steps that store messages: it may name too many, never too
// few. No state. Nothing is awaited before a step is issued: calls for one channel take effect in
// their order.

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
import { type Arg, loadScript } from "../../../redis/script.ts";
import { CONVERSATION_BYTES, contentBytes } from "../../held-bytes.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { messageOf, type Taken } from "./history.ts";

const STATE = loadScript(lua("conversation"), ...["channel_record", "entry", "snapshot"].map(lua));
const DROP = loadScript(lua("drop_peer"));

/** Steps of one list on their way at once: other calls of the node take turns with them. */
const STEPS_AT_ONCE = 64;
/** Whole conversations read at once, each with up to all that a message holds. */
const WHOLE_AT_ONCE = 16;

/** The keys of the step, in their order. */
const PERSON_PARTS = ["head", "log", "redDots", "positions"];
const GROUP_PARTS = [...PERSON_PARTS, "joinSeqs", "permanent", "temporary"];

/**
 * The places in a reply of the head, how much the log has, and of where to look on; behind FACTS
 * comes the newest message.
 */
const HEAD = 0;
const LOGGED = 5;
const LOOK_ON = 6;
const FACTS = 7;

type Reply = readonly (number | Buffer | readonly unknown[] | null)[];

interface Peer {
  readonly uid: string;
  /** About when the newest message came, Unix milliseconds, as Redis writes it. */
  readonly score: string;
}

/**
 * Every call throws `unavailable` or `overloaded` as the link does. How many lists at once is the
 * caller's. `groupsOf`: the groups a user is a member of, as the port's.
 */
export function createRedisConversations(
  parts: RedisStorePorts,
  groupsOf: (uid: string) => Promise<readonly string[]>,
): ConversationStore & Pick<ChannelFeed, "personalChannelsSince"> {
  const { link, clock, limits, onError, unreadable, written } = parts;

  /**
   * Steps until one shows the newest message that can be read, or the channel has no such message.
   * Undefined: a group the user is no member of.
   */
  async function readState(
    uid: string,
    channel: ChannelRef,
    [isWhole, ...asked]: readonly [isWhole: 0 | 1, ...Arg[]],
  ): Promise<{ readonly reply: Reply; readonly last?: Message } | undefined> {
    const { type } = channel;
    const key = channelKey(channel, uid);
    const names = type === GROUP_CHANNEL ? GROUP_PARTS : PERSON_PARTS;
    const keys = names.map((part) => link.keys.channel(part, key));
    let more: readonly Arg[] = asked;
    for (;;) {
      const facts = [uid, clock(), limits.retentionS * 1000, type, isWhole];
      const found = await link.run(STATE, keys, [...facts, ...more]);
      if (found === null) return undefined;
      const reply = found as Reply; // as its header says
      const shown = reply.slice(FACTS);
      const isShown = isWhole === 1 && shown.length > 0;
      const taken = isShown ? [shown as unknown as Taken] : []; // as its header says
      const [last] = unreadable.leaveOut(taken, messageOf);
      if (last !== undefined) return { reply, last };
      const through = isShown ? Number(shown[1]) - 1 : Number(reply[LOOK_ON]);
      if (through === 0) return { reply };
      more = ["look_on", through, Number(reply[HEAD])];
    }
  }

  /**
   * As a list needs it, without what the message holds; `isEmpty`: the channel has no message any
   * more, for nobody.
   */
  async function glance(
    uid: string,
    channel: ChannelRef,
  ): Promise<{ readonly head?: ConversationHead; readonly isEmpty: boolean }> {
    const found = await readState(uid, channel, [0, ""]);
    if (found === undefined) return { isEmpty: false };
    const { reply } = found;
    const isEmpty = reply[LOGGED] === 0;
    const last = lastHead(reply.slice(FACTS));
    if (last === undefined) return { isEmpty };
    return { head: { ...factsOf(channel, reply), last }, isEmpty };
  }

  /** Behind a change if there is one: its kind, and its seq or count. */
  async function whole(
    uid: string,
    channel: ChannelRef,
    asked: readonly Arg[] = [""],
  ): Promise<Conversation | undefined> {
    const found = await readState(uid, channel, [1, ...asked]);
    if (found === undefined) return undefined;
    return { ...factsOf(channel, found.reply), last: found.last };
  }

  const peers = async (uid: string, ...range: readonly string[]) =>
    (await link.call(
      ...(["zrange", link.keys.user("peers", uid), ...range] as const),
    )) as readonly Buffer[]; // members, with scores if asked

  /**
   * Takes out a peer whose channel was found empty, unless a message came since the list was read.
   * A peer too many does a list no harm.
   */
  async function drop(uid: string, peer: Peer): Promise<void> {
    const key = link.keys.user("peers", uid);
    try {
      const taken = await link.run(DROP, [key], [peer.uid, peer.score]);
      if (taken === 0) return;
      // One of the same time may have come: a clock may be behind.
      const { isEmpty } = await glance(uid, channelWith(peer));
      if (!isEmpty) await link.call("zadd", key, "GT", peer.score, peer.uid);
    } catch (error) {
      onError(error, "An empty conversation could not be taken out of a list");
    }
  }

  return {
    async conversationsOf(uid) {
      const [groups, people] = await Promise.all([
        groupsOf(uid),
        peers(uid, "0", "-1", "WITHSCORES"),
      ]);
      const found: ConversationHead[] = [];
      const semaphore = new Semaphore(STEPS_AT_ONCE);
      const look = (channel: ChannelRef, peer?: Peer) =>
        semaphore.run(async () => {
          const { head, isEmpty } = await glance(uid, channel);
          if (head !== undefined) found.push(head);
          else if (isEmpty && peer !== undefined) await drop(uid, peer);
        });
      const looks = groups.map((id) => look({ id, type: GROUP_CHANNEL }));
      for (let at = 0; at + 1 < people.length; at += 2) {
        const peer = { uid: String(people[at]), score: String(people[at + 1]) };
        looks.push(look(channelWith(peer), peer));
      }
      await Promise.all(looks);
      return found;
    },

    async readConversations(uid, channels, { limit, maxBytes }): Promise<ConversationSlice> {
      const conversations: Conversation[] = [];
      let bytes = 0;
      let at = 0;
      while (at < channels.length) {
        if (conversations.length >= limit) return { conversations, more: true };
        const count = Math.min(WHOLE_AT_ONCE, limit - conversations.length);
        const asked = channels.slice(at, at + count);
        at += count;
        const reads = asked.map((channel) => whole(uid, channel));
        for (const one of await Promise.all(reads)) {
          if (one?.last === undefined) continue;
          bytes += CONVERSATION_BYTES + contentBytes(one.last);
          if (bytes > maxBytes && conversations.length > 0) return { conversations, more: true };
          conversations.push(one);
        }
      }
      return { conversations, more: false };
    },

    conversation: (uid, channel) => whole(uid, channel),

    async changeConversation(uid, channel, change) {
      const asked = [change.kind, amountOf(change)];
      const changed = await whole(uid, channel, asked);
      if (changed !== undefined) await written(link.keys.channel("head", channelKey(channel, uid)));
      return changed;
    },

    async personalChannelsSince(uid, sinceMs) {
      const found = await peers(uid, `${sinceMs}`, "+inf", "BYSCORE");
      return found.map((peer) => channelKey({ id: String(peer), type: PERSON_CHANNEL }, uid));
    },
  };
}

const channelWith = ({ uid }: Peer): ChannelRef => ({
  id: uid,
  type: PERSON_CHANNEL,
});

/** The number of a change as the step reads it: an integer from 0 on. */
function amountOf(change: ConversationChange): number {
  if (change.kind === "delete") return 0;
  const value = change.kind === "read" ? change.seq : change.unread;
  return Math.min(Math.max(Math.trunc(value), 0), Number.MAX_SAFE_INTEGER);
}

function factsOf({ id, type }: ChannelRef, reply: Reply): Omit<Conversation, "last"> {
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

function lastHead(last: Reply): MessageHead | undefined {
  if (last.length === 0) return undefined;
  const [messageId, messageSeq, clientMsgNo, timestampMs] = last;
  return {
    messageId: Number(messageId),
    messageSeq: Number(messageSeq),
    clientMsgNo: String(clientMsgNo) || clientMsgNoOf(Number(messageId)),
    timestampMs: Number(timestampMs),
  };
}
