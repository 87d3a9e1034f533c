// The Redis driver of the Store port: any number of nodes on one Redis, which decides. Its parts
// put together, and each call of theirs passed through the store's lifecycle. No state but theirs.

import type { Store } from "../../broker/ports.ts";
import type { ChannelFeed } from "../../redis/channel-feed.ts";
import { ReplicationBarrier } from "../../redis/replication.ts";
import { guardedAll } from "../guarded.ts";
import { createLifecycle } from "../lifecycle.ts";
import { createChannelFeed } from "./feed.ts";
import type { RedisStorePorts } from "./ports.ts";
import { createRedisChannels } from "./steps/channels.ts";
import { createRedisConversations } from "./steps/conversations.ts";
import { createRedisInbox } from "./steps/inbox.ts";
import { createRedisManagers } from "./steps/managers.ts";
import { createRedisMessages } from "./steps/messages.ts";
import { Sweep } from "./steps/retention.ts";
import { createRedisSessions } from "./steps/sessions.ts";
import { createRedisStreams } from "./steps/streams.ts";
import { createRedisSystemAccounts } from "./steps/system-accounts.ts";
import { createRedisUsers } from "./steps/users.ts";
import { UnreadableRecords } from "./unreadable.ts";

/** `link`: shared with the cluster; the store starts it, its creator closes it. */
type RedisStoreOptions = Omit<RedisStorePorts, "written" | "unreadable">;

/** Figures for metrics, of this node. Counters start at 0 with the store. */
interface RedisStoreStats {
  /** Messages accepted, stored or not. */
  readonly appends: number;
  /** Retries answered with the first message. */
  readonly duplicates: number;
  /** Commands accepted. */
  readonly commands: number;
  /** Copies of commands that left a full inbox before they were acknowledged. */
  readonly inboxDropped: number;
  /** Records that were left out of what was read, because they cannot be decoded. */
  readonly unreadable: number;
}

export interface RedisStore extends Store, ChannelFeed {
  stats(): RedisStoreStats;
  /**
   * Removes everything expired now; resolves to the number of messages. The store does it by itself
   * every `sweepIntervalMs`.
   */
  sweep(): Promise<number>;
}

/**
 * Nothing is asked of Redis before `start`, which throws an Error for the operator when it cannot
 * be used.
 */
export function createRedisStore(options: RedisStoreOptions): RedisStore {
  const { link } = options;
  const barrier = new ReplicationBarrier(link);
  const unreadable = new UnreadableRecords(options.onError);
  const parts: RedisStorePorts = {
    ...options,
    unreadable,
    written: (key) => barrier.wait(key),
  };
  const { repairIndexes, ...channels } = createRedisChannels(parts);
  const { commands, ...inbox } = createRedisInbox(parts);
  const { counts, ...messages } = createRedisMessages({
    ...{ ...parts, commands },
    personFacts: channels.personFacts,
  });
  const sweep = new Sweep(parts, [(isStopped) => commands.sweep(isStopped), repairIndexes]);
  const lifecycle = createLifecycle({
    async open() {
      await link.start();
      sweep.start();
      return link;
    },
    async shut(_, idle) {
      await idle(); // every call ends by Redis' time-out at the latest
      await sweep.close();
      barrier.close();
    },
    restarts: false,
  });
  return {
    start: () => lifecycle.start(),
    close: () => lifecycle.close(),
    ...guardedAll(lifecycle, {
      ...createRedisUsers(parts),
      ...createRedisSessions(parts),
      ...channels,
      ...createRedisManagers(parts),
      ...createRedisSystemAccounts(parts),
      ...messages,
      ...createRedisStreams(parts),
      ...inbox,
      ...createRedisConversations(parts, channels.groupsOf),
      ...createChannelFeed(parts),
      ping: () => link.ping(),
      sweep: () => sweep.run(),
    }),
    stats: () => ({
      appends: counts.appended,
      duplicates: counts.duplicates + commands.counts.duplicates,
      commands: commands.counts.commands,
      inboxDropped: commands.counts.dropped,
      unreadable: unreadable.count,
    }),
  };
}
