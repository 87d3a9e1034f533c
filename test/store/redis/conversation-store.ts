// Channels, messages, streams and conversations on a real Redis, put together so that tests of
// conversations have hold of what they wait for.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type {
  ChannelStore,
  Clock,
  ConversationStore,
  MessageStore,
  StreamStore,
} from "../../../src/broker/ports.ts";
import type { ChannelFeed } from "../../../src/redis/channel-feed.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import type { RedisStorePorts } from "../../../src/store/redis/ports.ts";
import { createRedisChannels } from "../../../src/store/redis/steps/channels.ts";
import { createRedisConversations } from "../../../src/store/redis/steps/conversations.ts";
import { createRedisMessages } from "../../../src/store/redis/steps/messages.ts";
import { Sweep } from "../../../src/store/redis/steps/retention.ts";
import { createRedisStreams } from "../../../src/store/redis/steps/streams.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { redisSettings } from "../../support/redis.ts";

export interface ConversationOptions {
  readonly clock: Clock;
  readonly retentionS?: number;
  readonly maxChannelMessages?: number;
  readonly waitForReplicas?: RedisStorePorts["waitForReplicas"];
}

export type TestStore = ChannelStore &
  ConversationStore &
  Pick<MessageStore, "append"> &
  StreamStore &
  Pick<ChannelFeed, "personalChannelsSince">;

/** Each has keys of its own on the server at `url`; ends with the test. */
export async function openConversations(t: Test, url: string, options: ConversationOptions) {
  const { retentionS = 0, maxChannelMessages = 0, clock } = options;
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const link = new RedisLink(redisSettings(url, { prefix }), {
    name: "test",
    onError: () => {}, // the callers are told
  });
  const problems: unknown[] = [];
  const parts: RedisStorePorts = {
    ...{ link, clock },
    limits: {
      ...{ dedupeWindowS: 3600, retentionS, sweepIntervalMs: 60_000 },
      ...{ maxStreamBytes: 100_000, maxInbox: 10, inboxTtlS: 3600 },
      maxChannelMessages,
    },
    onError: (error) => problems.push(error),
    unreadable: new UnreadableRecords((error) => problems.push(error)),
    waitForReplicas: options.waitForReplicas ?? (() => undefined),
  };
  const channels = createRedisChannels(parts);
  const { groupsOf } = channels;
  const store: TestStore = {
    ...channels,
    ...createRedisConversations(parts, groupsOf),
    ...createRedisMessages({
      ...{ ...parts, commands: { settle: async () => {} } },
      personFacts: channels.personFacts,
    }),
    ...createRedisStreams(parts),
  };
  const sweep = new Sweep(parts, []);
  await link.start();
  t.teardown(() => link.close());
  return { store, link, keys: link.keys, sweep, problems };
}
