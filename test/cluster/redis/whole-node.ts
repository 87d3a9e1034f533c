// The store, cluster and session directory of a node on Redis, connected as in the server, but
// without the server's listeners.

import type { Cluster, ClusterEvent, GroupJudge } from "../../../src/broker/ports.ts";
import { SessionDirectory } from "../../../src/broker/session-directory.ts";
import { createRedisCluster } from "../../../src/cluster/redis/cluster.ts";
import { createRedisTopics } from "../../../src/cluster/redis/topics/topics.ts";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { LIBRARY } from "../../../src/store/redis/operations.ts";
import { createRedisStore, type RedisStore } from "../../../src/store/redis/store.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { agreementOf } from "./agreement.ts";

export interface WholeNode {
  readonly cluster: Cluster;
  readonly store: RedisStore;
  readonly directory: SessionDirectory;
  readonly link: RedisLink;
  /** Events that the listener has received. */
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

/** Starts a node. By default every user keeps access to every group. */
export async function startWholeNode(
  options: WholeNodeOptions,
  checkGroup: GroupJudge = async () => {},
): Promise<WholeNode> {
  const { nodeId, settings, heartbeatMs, deadAfterMs } = options;
  const { clock = Date.now } = options;
  const onError = () => {}; // these tests stop servers
  const link = new RedisLink(settings, { name: nodeId, onError });
  const store = createRedisStore({
    judgesBans: true,
    ...{ link, clock, onError },
    limits: {
      ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1_000_000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800, logs: LOG_LIMITS },
    },
  });
  const topics = createRedisTopics({
    ...{ link, nodeId, clock, onError, unsubscribeDelayMs: 1000, feed: store },
  });
  const cluster = createRedisCluster({
    ...{ link, topics, library: LIBRARY.name, heartbeatMs, onError },
    agreement: agreementOf(deadAfterMs),
    startClockComparison: () => () => {}, // these tests do not compare clocks
    about: {
      ...{ nodeId, clientAddress: "", tcpAddress: "", version: "1.2.3" },
      ...{ startedAtMs: Date.now(), isDraining: () => false },
      sessions: () => directory.size,
    },
  });
  const directory = new SessionDirectory({ store, cluster, onError });
  const events: ClusterEvent[] = [];
  directory.onEvent((event) => events.push(event), checkGroup);
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
