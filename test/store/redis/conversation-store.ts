// Stores with channels, messages, streams and conversations on a real Redis, whose ports the tests
// of conversations can replace.

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
import { createOperations } from "../../../src/store/redis/operations.ts";
import type { RedisStorePorts } from "../../../src/store/redis/ports.ts";
import { createRedisChannels } from "../../../src/store/redis/steps/channels.ts";
import { createRedisConversations } from "../../../src/store/redis/steps/conversations.ts";
import { createRedisMessages } from "../../../src/store/redis/steps/messages.ts";
import { Sweep } from "../../../src/store/redis/steps/retention.ts";
import { createRedisStreams } from "../../../src/store/redis/steps/streams.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { redisSettings } from "../../support/redis.ts";

/** Options of a store. */
export interface ConversationOptions {
  readonly clock: Clock;
  readonly retentionS?: number;
  readonly maxChannelMessages?: number;
  readonly waitForReplicas?: RedisStorePorts["waitForReplicas"];
}

/** The parts of the store that these tests use. */
export type TestStore = ChannelStore &
  ConversationStore &
  Pick<MessageStore, "append"> &
  StreamStore &
  Pick<ChannelFeed, "personalChannelsSince">;

/** Opens a store with keys of its own on the server at `url`. It is closed when the test ends. */
export async function openConversations(t: Test, url: string, options: ConversationOptions) {
  const { retentionS = 0, maxChannelMessages = 0, clock } = options;
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const link = new RedisLink(redisSettings(url, { prefix }), {
    name: "test",
    onError: () => {}, // the callers get the errors
  });
  const problems: unknown[] = [];
  const ports: RedisStorePorts = {
    ...{ link, clock },
    limits: {
      ...{ dedupeWindowS: 3600, retentionS, sweepIntervalMs: 60_000 },
      ...{ maxStreamBytes: 100_000, maxInbox: 10, inboxTtlS: 3600, logs: LOG_LIMITS },
      maxChannelMessages,
    },
    onError: (error) => problems.push(error),
    unreadable: new UnreadableRecords((error) => problems.push(error)),
    waitForReplicas: options.waitForReplicas ?? (() => undefined),
    observeReplicas: () => async () => {},
  };
  const { groupIndex, ...channels } = createRedisChannels(ports);
  const store: TestStore = {
    ...channels,
    ...createRedisConversations(ports, groupIndex),
    ...createRedisMessages({
      ...{ ...ports, commands: { settle: async () => {} } },
      personFacts: channels.personFacts,
    }),
    ...createRedisStreams({ ...ports, personFacts: channels.personFacts }, createOperations(ports)),
  };
  const sweep = new Sweep(ports, []);
  await link.start();
  t.teardown(() => link.close());
  return { store, link, keys: link.keys, sweep, problems };
}
