// The Redis store's parts put together: who needs whom. No state of its own but theirs.

import type {
  ConversationStore,
  ManagerStore,
  SessionStore,
  UserStore,
} from "../../broker/ports.ts";
import type { StreamStore } from "../../broker/stream-ports.ts";
import type { ChannelFeed } from "../../redis/channel-feed.ts";
import type { Script } from "../../redis/script.ts";
import { createChannelFeed, feedScripts } from "./feed.ts";
import type { RedisStoreParts } from "./parts.ts";
import {
  channelScripts,
  createRedisChannels,
  type RedisChannels,
} from "./steps/channels.ts";
import {
  conversationScripts,
  createRedisConversations,
} from "./steps/conversations.ts";
import {
  createRedisInbox,
  inboxScripts,
  type RedisInbox,
} from "./steps/inbox.ts";
import { createRedisManagers, managerScripts } from "./steps/managers.ts";
import {
  createRedisMessages,
  messageScripts,
  type RedisMessages,
} from "./steps/messages.ts";
import { retentionScripts, Sweep } from "./steps/retention.ts";
import { createRedisSessions, sessionScripts } from "./steps/sessions.ts";
import { createRedisStreams, streamScripts } from "./steps/streams/streams.ts";
import { createRedisUsers, userScripts } from "./steps/users.ts";

/** Every step the store runs: what its link must know. */
export const redisStoreScripts: readonly Script[] = [
  ...channelScripts,
  ...conversationScripts,
  ...feedScripts,
  ...inboxScripts,
  ...managerScripts,
  ...messageScripts,
  ...retentionScripts,
  ...sessionScripts,
  ...streamScripts,
  ...userScripts,
];

export interface Engine {
  readonly users: UserStore;
  readonly sessions: SessionStore;
  readonly channels: RedisChannels;
  readonly managers: ManagerStore;
  readonly messages: RedisMessages;
  readonly streams: StreamStore;
  readonly inbox: RedisInbox;
  readonly conversations: ConversationStore;
  readonly feed: ChannelFeed;
  readonly sweep: Sweep;
}

export function createEngine(parts: RedisStoreParts): Engine {
  const channels = createRedisChannels(parts);
  const inbox = createRedisInbox(parts);
  const { groupsOf } = channels;
  const conversations = createRedisConversations({ ...parts, groupsOf });
  const { personalChannelsSince } = conversations;
  return {
    users: createRedisUsers(parts),
    sessions: createRedisSessions(parts),
    channels,
    managers: createRedisManagers(parts),
    messages: createRedisMessages({
      ...{ ...parts, settleCommand: inbox.settle },
      personFacts: channels.personFacts,
    }),
    streams: createRedisStreams(parts),
    inbox,
    conversations,
    feed: createChannelFeed({ ...parts, personalChannelsSince }),
    sweep: new Sweep({ ...parts, also: [inbox.sweep, channels.repairIndexes] }),
  };
}
