// A whole node's storage and cluster on Redis, as the wiring of a server puts them together,
// without a server. State: none.

import type { Cluster, ClusterEvent, GroupJudge } from "../../../src/broker/ports.ts";
import { SessionDirectory } from "../../../src/broker/session-directory.ts";
import { createRedisCluster } from "../../../src/cluster/redis/cluster.ts";
import { createRedisTopics } from "../../../src/cluster/redis/topics/topics.ts";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { createRedisStore, type RedisStore } from "../../../src/store/redis/store.ts";

export interface WholeNode {
  readonly cluster: Cluster;
  readonly store: RedisStore;
  readonly directory: SessionDirectory;
  readonly link: RedisLink;
  /** What its listener was told. */
  readonly events: readonly ClusterEvent[];
  close(): Promise<void>;
}

export interface WholeNodeOptions {
  readonly nodeId: string;
  readonly settings: RedisSettings;
  readonly heartbeatMs: number;
  readonly deadAfterMs: number;
  /** Unix milliseconds. */
  readonly clock?: () => number;
}

/** Starts it; by default all may see everything. */
export async function startWholeNode(
  options: WholeNodeOptions,
  judge: GroupJudge = async () => {},
): Promise<WholeNode> {
  const { nodeId, settings, heartbeatMs, deadAfterMs } = options;
  const { clock = Date.now } = options;
  const onError = () => {}; // servers go away in these tests
  const link = new RedisLink(settings, { name: nodeId, onError });
  const store = createRedisStore({
    ...{ link, clock, onError },
    limits: {
      ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1_000_000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800 },
    },
  });
  const topics = createRedisTopics({
    ...{ link, nodeId, clock, onError, unsubscribeDelayMs: 1000, feed: store },
  });
  const cluster = createRedisCluster({
    ...{ link, topics, heartbeatMs, deadAfterMs, onError },
    startClockComparison: () => () => {}, // clocks are no matter of these tests
    about: {
      ...{ nodeId, clientAddress: "", version: "1.2.3" },
      ...{ startedAtMs: Date.now(), isDraining: () => false },
      sessions: () => directory.size,
    },
  });
  const directory = new SessionDirectory({ store, cluster, onError });
  const events: ClusterEvent[] = [];
  directory.onEvent((event) => events.push(event), judge);
  const close = async () => {
    await store.close();
    await cluster.close();
    await link.close();
  };
  try {
    await store.start();
    await cluster.start();
  } catch (error) {
    await close();
    throw error;
  }
  return { cluster, store, directory, link, events, close };
}
