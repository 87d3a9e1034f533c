// The Redis driver of the `Store` port. Any number of nodes share one Redis, and scripts inside
// Redis check and apply most changes.

import { NO_DEMAND } from "../../broker/event-demand-ports.ts";
import type { LogStore } from "../../broker/log-ports.ts";
import type { Store } from "../../broker/ports.ts";
import type { ChannelFeed } from "../../redis/channel-feed.ts";
import { ReplicationBarrier } from "../../redis/replication.ts";
import { createLifecycle } from "../lifecycle.ts";
import { allWhileRunning } from "../while-running.ts";
import { createChannelFeed } from "./feed.ts";
import { createOperations } from "./operations.ts";
import type { RedisStorePorts } from "./ports.ts";
import { createRedisChannels } from "./steps/channels.ts";
import { createRedisConversations } from "./steps/conversations.ts";
import { createRedisEventDemand } from "./steps/event-demand.ts";
import { createRedisEvents } from "./steps/events.ts";
import { createRedisImports } from "./steps/imports.ts";
import { createRedisInbox } from "./steps/inbox.ts";
import { createRedisJoinState } from "./steps/join-state.ts";
import { createRedisKeySets } from "./steps/key-sets.ts";
import { createRedisLeases } from "./steps/leases.ts";
import { createRedisLogs } from "./steps/logs.ts";
import { createRedisManagers } from "./steps/managers.ts";
import { createRedisMessages } from "./steps/messages.ts";
import { createRedisOnlineUsers } from "./steps/online-users.ts";
import { createRedisPush } from "./steps/push.ts";
import { Sweep } from "./steps/retention.ts";
import { createRedisSessions } from "./steps/sessions.ts";
import { createRedisSigningKeys } from "./steps/signing-keys.ts";
import { createRedisStreams } from "./steps/streams.ts";
import { createRedisSystemAccounts } from "./steps/system-accounts.ts";
import { createRedisUsers } from "./steps/users.ts";
import { createRedisWebhooks } from "./steps/webhooks.ts";
import { UnreadableRecords } from "./unreadable.ts";

/** Store options. The store starts the link, and the creator of the link must close it. */
type RedisStoreOptions = Omit<
  RedisStorePorts,
  "waitForReplicas" | "observeReplicas" | "unreadable" | "demand"
>;

interface RedisStoreStats {
  readonly appends: number;
  readonly duplicates: number;
  readonly commands: number;
  /** Number of copies that full inboxes dropped before the copies were acknowledged. */
  readonly inboxDropped: number;
  readonly unreadable: number;
}

export interface RedisStore extends Store, LogStore, ChannelFeed {
  stats(): RedisStoreStats;
  sweep(): Promise<number>;
}

/** Creates the store. It sends nothing to Redis before `start`. */
export function createRedisStore(options: RedisStoreOptions): RedisStore {
  const { link } = options;
  const barrier = new ReplicationBarrier(link);
  const unreadable = new UnreadableRecords(options.onError);
  const ports: RedisStorePorts = {
    ...options,
    unreadable,
    demand: { ...NO_DEMAND },
    waitForReplicas: (key) => barrier.wait(key),
    observeReplicas: () => barrier.observe(),
  };
  const operations = createOperations(ports);
  const { repairIndexes, groupIndex, ...channels } = createRedisChannels(ports);
  const { commands, expireInboxes, ...inbox } = createRedisInbox(ports);
  const { counts, ...messages } = createRedisMessages({
    ...{ ...ports, commands },
    personFacts: channels.personFacts,
  });
  const { sweepLogs, ...logs } = createRedisLogs(ports, operations);
  const sweep = new Sweep(ports, [
    (isStopped) => commands.sweep(isStopped),
    expireInboxes,
    repairIndexes,
    sweepLogs,
  ]);
  const { onEvents, ...events } = createRedisEvents(ports);
  const lifecycle = createLifecycle({
    async open() {
      await link.start();
      sweep.start();
      return link;
    },
    async shut(_, idle) {
      await idle(); // waits for the calls in progress, each of which has a timeout
      await sweep.close();
      barrier.close();
    },
    restarts: false,
  });
  return {
    start: () => lifecycle.start(),
    close: () => lifecycle.close(),
    ...allWhileRunning(lifecycle, {
      ...createRedisUsers(ports),
      ...createRedisSessions(ports),
      joinState: createRedisJoinState({ ...ports, groupIndex, readInbox: inbox.readInbox }),
      ...channels,
      ...createRedisManagers(ports),
      ...createRedisSystemAccounts(ports),
      ...createRedisSigningKeys(ports),
      ...createRedisImports(ports),
      ...createRedisKeySets(ports),
      ...events,
      ...createRedisLeases(ports),
      ...createRedisPush(ports),
      ...createRedisEventDemand(ports),
      ...createRedisOnlineUsers(ports),
      ...createRedisWebhooks(ports),
      ...messages,
      ...createRedisStreams({ ...ports, personFacts: channels.personFacts }, operations),
      ...logs,
      ...inbox,
      ...createRedisConversations(ports, groupIndex),
      ...createChannelFeed(ports),
      ping: () => link.ping(),
      sweep: () => sweep.run(),
    }),
    onEvents,
    stats: () => ({
      appends: counts.appended,
      duplicates: counts.duplicates + commands.counts.duplicates,
      commands: commands.counts.commands,
      inboxDropped: commands.counts.dropped,
      unreadable: unreadable.count,
    }),
  };
}
