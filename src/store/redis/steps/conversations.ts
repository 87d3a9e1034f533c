// The port's conversations on Redis: where a user stands in a channel is computed when asked, by one step on the channel's slot; a list takes many at
// once. With whom a user has personal channels is the user's `peers`, kept by the steps that store messages: it may name too many, never too few.
// No state.

import {
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  channelKey,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type {
  ConversationSlice,
  ConversationStore,
} from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import { loadScript, type Script } from "../../../redis/script.ts";
import { CONVERSATION_BYTES, contentBytes } from "../../held-bytes.ts";
import type { RedisStoreParts } from "../parts.ts";
import { ConversationSteps, stepScripts } from "./conversation-steps.ts";

const DROP = loadScript(new URL("../lua/drop_peer.lua", import.meta.url));

/** What the link must know. */
export const conversationScripts: readonly Script[] = [...stepScripts, DROP];

/** Steps of one list on their way at once: other calls of the node take turns with them. */
const STEPS_AT_ONCE = 64;
/** Whole conversations read at once, each with up to all that a message holds. */
const WHOLE_AT_ONCE = 16;

export interface RedisConversationParts extends RedisStoreParts {
  /** The groups a user is a member of, as the port's `groupsOf`. */
  readonly groupsOf: (uid: string) => Promise<readonly string[]>;
}

interface Peer {
  readonly uid: string;
  /** About when the newest message came, Unix milliseconds, as Redis writes it. */
  readonly score: string;
}

/** Every call throws `unavailable` or `overloaded` as the link does. How many lists at once is the caller's. */
export function createRedisConversations(
  parts: RedisConversationParts,
): ConversationStore & Pick<ChannelFeed, "personalChannelsSince"> {
  const { link, groupsOf, onProblem } = parts;
  const steps = new ConversationSteps(parts);

  const peers = async (uid: string, ...range: readonly string[]) =>
    (await link.call(
      ...(["zrange", link.keys.user("peers", uid), ...range] as const),
    )) as readonly Buffer[]; // members, with scores if asked

  async function heads(uid: string): Promise<readonly ConversationHead[]> {
    const [groups, people] = await Promise.all([
      groupsOf(uid),
      peers(uid, "0", "-1", "WITHSCORES"),
    ]);
    const found: ConversationHead[] = [];
    const line = new Semaphore(STEPS_AT_ONCE);
    const look = (channel: ChannelRef, peer?: Peer) =>
      line.run(async () => {
        const { head, isEmpty } = await steps.glance(uid, channel);
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
  }

  /** Takes out a peer whose channel was found empty, unless a message came since the list was read. A list is none the worse for a peer too many. */
  async function drop(uid: string, peer: Peer): Promise<void> {
    const key = link.keys.user("peers", uid);
    try {
      const taken = await link.run(DROP, [key], [peer.uid, peer.score]);
      if (taken === 0) return;
      // One of the same time may have come: a clock may be behind.
      const { isEmpty } = await steps.glance(uid, channelWith(peer));
      if (!isEmpty) await link.call("zadd", key, "GT", peer.score, peer.uid);
    } catch (error) {
      onProblem(
        error,
        "An empty conversation could not be taken out of a list",
      );
    }
  }

  async function read(
    uid: string,
    channels: readonly ChannelRef[],
    { limit, maxBytes }: { readonly limit: number; readonly maxBytes: number },
  ): Promise<ConversationSlice> {
    const conversations: Conversation[] = [];
    let bytes = 0;
    let at = 0;
    while (at < channels.length) {
      if (conversations.length >= limit) return { conversations, more: true };
      const count = Math.min(WHOLE_AT_ONCE, limit - conversations.length);
      const asked = channels.slice(at, at + count);
      at += count;
      const whole = asked.map((channel) => steps.whole(uid, channel));
      for (const one of await Promise.all(whole)) {
        if (one?.last === undefined) continue;
        bytes += CONVERSATION_BYTES + contentBytes(one.last);
        if (bytes > maxBytes && conversations.length > 0)
          return { conversations, more: true };
        conversations.push(one);
      }
    }
    return { conversations, more: false };
  }

  return {
    conversationsOf: heads,
    readConversations: read,
    conversation: (uid, channel) => steps.whole(uid, channel),
    changeConversation: (uid, channel, change) =>
      steps.change(uid, channel, change),
    async personalChannelsSince(uid, sinceMs) {
      const found = await peers(uid, `${sinceMs}`, "+inf", "BYSCORE");
      return found.map((peer) =>
        channelKey({ id: String(peer), type: PERSON_CHANNEL }, uid),
      );
    },
  };
}

const channelWith = ({ uid }: Peer): ChannelRef => ({
  id: uid,
  type: PERSON_CHANNEL,
});
