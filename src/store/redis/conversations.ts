// The port's conversations on Redis: where a user stands in a channel is computed when asked, by one step on the channel's slot. No state but
// that of its parts.

import type { ConversationStore } from "../../broker/ports.ts";
import type { ChannelFeed } from "../../redis/arrivals.ts";
import type { Script } from "../../redis/script.ts";
import { ConversationLists } from "./conversation-lists.ts";
import { ConversationPeers, peerScripts } from "./conversation-peers.ts";
import { ConversationSteps, stepScripts } from "./conversation-steps.ts";
import type { RedisStoreParts } from "./parts.ts";

/** What the link must know. */
export const conversationScripts: readonly Script[] = [
  ...stepScripts,
  ...peerScripts,
];

export interface RedisConversationParts extends RedisStoreParts {
  /** The groups a user is a member of, as the port's `groupsOf`. */
  readonly groupsOf: (uid: string) => Promise<readonly string[]>;
}

/** Every call throws `unavailable` or `overloaded` as the link does. */
export function createRedisConversations(
  parts: RedisConversationParts,
): ConversationStore & Pick<ChannelFeed, "personalChannelsSince"> {
  const steps = new ConversationSteps(parts);
  const peers = new ConversationPeers(parts);
  const lists = new ConversationLists({ ...parts, steps, peers });
  return {
    conversationsOf: (uid) => lists.heads(uid),
    readConversations: (uid, channels, bounds) =>
      lists.read(uid, channels, bounds),
    conversation: (uid, channel) => steps.whole(uid, channel),
    changeConversation: (uid, channel, change) =>
      steps.change(uid, channel, change),
    personalChannelsSince: (uid, sinceMs) => peers.channelsSince(uid, sinceMs),
  };
}
