// A user's state in a channel is computed when it is read, by one script in the channel's slot.
// Nothing is awaited before a script is sent, so that calls for one channel take effect in the
// order in which they were made.

import { bucketOf } from "../../../broker/log-frame.ts";
import {
  type ChannelRef,
  type Conversation,
  channelKey,
  GROUP_CHANNEL,
  type Message,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type {
  ConversationChange,
  ConversationSlice,
  ConversationStore,
} from "../../../broker/ports.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import { idCounterOf } from "../../../redis/id-counters.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { CONVERSATION_BYTES, contentBytes } from "../../held-bytes.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import {
  createConversationLists,
  FACT_COUNT,
  factsOf,
  type StateReply,
} from "./conversation-lists.ts";
import { type MessageRow, messageOf } from "./history.ts";
import type { GroupIndex } from "./user-groups.ts";

const STATE = loadScript(
  lua("conversation"),
  ...["channel_record", "positions", "entry", "snapshot", "conversation_state"].map(lua),
);

/** Maximum number of conversations read at once with their newest messages, which may be large. */
const WHOLE_IN_FLIGHT = 16;

/**
 * Keys of a channel, and additional keys of a group, in the order of `conversation.lua`. The
 * message id counter comes between the two lists.
 */
const CHANNEL_KEYS = ["head", "log", "redDots", "positions"];
const GROUP_KEYS = ["joinSeqs", "permanent", "temporary"];

// Indexes in the reply of `conversation.lua`.
const HEAD_SEQ = 0;
const LOOK_ON = 6;

/**
 * Creates the conversation store. The caller must limit the number of lists that are read at once.
 */
export function createRedisConversations(
  ports: RedisStorePorts,
  groups: GroupIndex,
): ConversationStore & Pick<ChannelFeed, "personalChannelsSince"> {
  const { link, clock, limits, unreadable, waitForReplicas } = ports;

  /**
   * Runs `conversation.lua` repeatedly, until it returns a message that can be decoded, or the
   * channel has no further message to show. Returns `undefined` if the script returns null.
   */
  async function readState(
    uid: string,
    channel: ChannelRef,
    change: readonly Arg[],
  ): Promise<{ readonly reply: StateReply; readonly last?: Message } | undefined> {
    const key = channelKey(channel, uid);
    const keyOf = (part: string) => link.keys.channel(part, key);
    const ids = idCounterOf(link, bucketOf(key));
    const groupKeys = channel.type === GROUP_CHANNEL ? GROUP_KEYS.map(keyOf) : [];
    const keys = [...CHANNEL_KEYS.map(keyOf), ids.key, ...groupKeys];
    let request = change;
    for (;;) {
      const [kind = "", value = 0, headSeq = 0] = request;
      const args = [uid, clock(), limits.retentionS * 1000, kind, value, headSeq, ids.bucket];
      const rawReply = await link.run(STATE, keys, args);
      if (rawReply === null) return undefined;
      const reply = rawReply as StateReply; // see the header of `conversation.lua`
      const row = reply.slice(FACT_COUNT);
      const rows = row.length > 0 ? [row as unknown as MessageRow] : [];
      const [last] = unreadable.decodeReadable(rows, messageOf);
      if (last !== undefined) return { reply, last };
      const through = row.length > 0 ? Number(row[1]) - 1 : Number(reply[LOOK_ON]);
      if (through === 0) return { reply };
      request = ["look_on", through, Number(reply[HEAD_SEQ])];
    }
  }

  async function readWhole(
    uid: string,
    channel: ChannelRef,
    change: readonly Arg[] = [""],
  ): Promise<Conversation | undefined> {
    const state = await readState(uid, channel, change);
    if (state === undefined) return undefined;
    return { ...factsOf(channel, state.reply), last: state.last };
  }

  return {
    ...createConversationLists(ports, { groups, readWhole }),

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
      const peers = link.keys.user("peers", uid);
      const uids = await link.call("zrange", peers, `${sinceMs}`, "+inf", "BYSCORE");
      return (uids as readonly Buffer[]).map((peerUid) =>
        channelKey({ id: String(peerUid), type: PERSON_CHANNEL }, uid),
      );
    },
  };
}

function amountOf(change: ConversationChange): number {
  const value = change.kind === "unread" ? change.unread : (change.seq ?? Infinity);
  return Math.min(Math.max(Math.trunc(value), 0), Number.MAX_SAFE_INTEGER);
}
