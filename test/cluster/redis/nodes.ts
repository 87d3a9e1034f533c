// Nodes of a cluster in the test's process, on a private Redis: with the real store, session
// directory and registry, and with simplified topics.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import { MAIN_DEVICE, type SessionRecord } from "../../../src/broker/model.ts";
import type { Cluster, ClusterEvent, Store } from "../../../src/broker/ports.ts";
import {
  SessionDirectory,
  type SessionDirectoryPorts,
} from "../../../src/broker/session-directory.ts";
import { hashToken } from "../../../src/broker/tokens.ts";
import { createRedisCluster, type RedisClusterPorts } from "../../../src/cluster/redis/cluster.ts";
import { ClockCheck } from "../../../src/cluster/redis/nodes/clock-check.ts";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { createRedisStore } from "../../../src/store/redis/store.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { type RedisServer, redisSettings } from "../../support/redis.ts";
import { agreementOf } from "./agreement.ts";
import { type PlainTopics, plainTopics } from "./plain-topics.ts";

export const HEARTBEAT_MS = 100;
/** `deadAfterMs` of the nodes. Even on a busy machine, no node waits 2 s for the processor. */
export const DEAD_AFTER_MS = 2000;

export interface TestNode {
  readonly cluster: Cluster;
  readonly store: Store;
  readonly directory: SessionDirectory;
  readonly link: RedisLink;
  readonly topics: PlainTopics;
  /** Events that the listener has received. */
  readonly events: readonly ClusterEvent[];
  /** Errors that no caller received. */
  readonly errors: readonly unknown[];
  readonly clockCheck: ClockCheck;
  /** Clock difference of each report, in milliseconds. */
  readonly offsets: readonly number[];
  /** True if the node reports that it is draining. */
  isDraining: boolean;
}

export interface NodeOptions
  extends Partial<
    Pick<RedisClusterPorts, "heartbeatMs"> & Pick<SessionDirectoryPorts, "recheckMs">
  > {
  readonly nodeId?: string;
  readonly library?: string;
  readonly deadAfterMs?: number;
  readonly settings?: Partial<RedisSettings>;
  readonly clock?: () => number;
}

/** Creates a node without starting its cluster. */
export async function createNode(
  t: Test,
  redis: RedisServer,
  options: NodeOptions = {},
): Promise<TestNode> {
  const { nodeId = `n-${randomUUID().slice(0, 8)}`, settings = {} } = options;
  const errors: unknown[] = [];
  const onError = (error: unknown) => void errors.push(error);
  const link = new RedisLink(redisSettings(redis.url, settings), {
    name: nodeId,
    onError: () => {}, // many tests stop the server
  });
  await link.start();
  const topics = plainTopics(t, { link, subscriber: redis.client() });
  const events: ClusterEvent[] = [];
  const offsets: number[] = [];
  const clockCheck = new ClockCheck({
    clock: options.clock ?? Date.now,
    onLargeOffset: (offsetMs) => void offsets.push(offsetMs),
  });
  const about = {
    nodeId,
    clientAddress: `${nodeId}:1`,
    tcpAddress: `${nodeId}:2`,
    version: "1.2.3",
  };
  const cluster = createRedisCluster({
    ...{ link, topics, onError, library: options.library ?? "jindou_00000000" },
    heartbeatMs: options.heartbeatMs ?? HEARTBEAT_MS,
    agreement: agreementOf(options.deadAfterMs ?? DEAD_AFTER_MS),
    about: {
      ...{ ...about, startedAtMs: 7 },
      isDraining: () => node.isDraining,
      sessions: () => directory.size,
    },
    startClockComparison: () => clockCheck.startComparison(),
  });
  const store = createRedisStore({
    ...{ link, onError, clock: Date.now },
    limits: {
      ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1_000_000 },
      ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800, logs: LOG_LIMITS },
      maxChannelMessages: 0,
    },
  });
  await store.start();
  const { recheckMs } = options;
  const directory = new SessionDirectory({
    ...{ store, cluster, onError },
    ...(recheckMs === undefined ? {} : { recheckMs }),
  });
  directory.onEvent(
    (event) => events.push(event),
    async () => {},
  );
  t.teardown(async () => {
    await store.close();
    await cluster.close();
    await link.close();
  });
  const node: TestNode = {
    ...{ cluster, store, directory, link, topics, events, errors: errors },
    ...{ clockCheck, offsets, isDraining: false },
  };
  return node;
}

/**
 * Stores a token for both device flags of the user. An empty `token` logs the devices out. The
 * sessions of these tests have a different token, so a main session must end when it is checked.
 */
export async function putToken(
  { store }: Pick<TestNode, "store">,
  uid: string,
  token: string,
): Promise<void> {
  const tokenHash = token === "" ? new Uint8Array() : hashToken(token);
  for (const flag of [0, 1] as const)
    await store.putDevice({ uid, flag, level: MAIN_DEVICE, tokenHash });
}

export async function startNode(
  t: Test,
  redis: RedisServer,
  options: NodeOptions = {},
): Promise<TestNode> {
  const node = await createNode(t, redis, options);
  await node.cluster.start();
  return node;
}

/** Closes the node's link, so that it looks like a killed process to the other nodes. */
export async function disconnect(node: TestNode): Promise<void> {
  await node.link.close();
}

/** Returns a session of `uid` on the node: a main session of an app, unless overridden. */
export function sessionOn(
  { cluster }: { readonly cluster: Pick<Cluster, "nodeId"> },
  uid: string,
  overrides: Partial<SessionRecord> = {},
): SessionRecord {
  return {
    ...{ sessionId: randomUUID(), nodeId: cluster.nodeId, uid, flag: 0 },
    ...{ level: MAIN_DEVICE, deviceId: "", tokenTag: "tag" },
    ...overrides,
  };
}

/** Waits until the condition is true. Rejects after the timeout. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  timeoutMs = 120_000,
): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!(await condition())) {
    if (performance.now() > deadline)
      throw new Error(`the condition did not become true within ${timeoutMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Returns the ids of the nodes that this node considers live, sorted and joined with commas. */
export async function liveNodes({ cluster }: TestNode): Promise<string> {
  const nodes = await cluster.nodes();
  return nodes
    .map(({ nodeId }) => nodeId)
    .sort()
    .join();
}

export async function isOnline(
  { directory }: Pick<TestNode, "directory">,
  uid: string,
): Promise<boolean> {
  const [status] = await directory.presence([uid]);
  return status?.online === true;
}
