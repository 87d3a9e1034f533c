// Nodes of a cluster on a private Redis, within the test's process: the real store, directory and
// registry over plain topics. State: none.

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
import { type RedisServer, redisSettings } from "../../support/redis.ts";
import { type PlainTopics, plainTopics } from "./plain-topics.ts";

export const HEARTBEAT_MS = 100;
/** Far longer than any of them waits for its turn on a full machine. */
export const DEAD_AFTER_MS = 2000;

export interface TestNode {
  readonly cluster: Cluster;
  readonly store: Store;
  readonly directory: SessionDirectory;
  readonly link: RedisLink;
  readonly topics: PlainTopics;
  /** What its listener was told. */
  readonly events: readonly ClusterEvent[];
  /** What no caller was told of. */
  readonly problems: readonly unknown[];
  readonly clockCheck: ClockCheck;
  /** By how much its clock was off each time it complained. */
  readonly offsets: readonly number[];
  /** It says it is draining. */
  isDraining: boolean;
}

export interface NodeOptions
  extends Partial<
    Pick<RedisClusterPorts, "heartbeatMs" | "deadAfterMs"> &
      Pick<SessionDirectoryPorts, "recheckMs">
  > {
  readonly nodeId?: string;
  readonly settings?: Partial<RedisSettings>;
  readonly clock?: () => number;
}

/** A node that is not started yet. */
export async function createNode(
  t: Test,
  redis: RedisServer,
  options: NodeOptions = {},
): Promise<TestNode> {
  const { nodeId = `n-${randomUUID().slice(0, 8)}`, settings = {} } = options;
  const problems: unknown[] = [];
  const onError = (error: unknown) => void problems.push(error);
  const link = new RedisLink(redisSettings(redis.url, settings), {
    name: nodeId,
    onError: () => {}, // the server goes away in many tests
  });
  await link.start();
  const topics = plainTopics(t, { link, subscriber: redis.client() });
  const events: ClusterEvent[] = [];
  const offsets: number[] = [];
  const clockCheck = new ClockCheck({
    clock: options.clock ?? Date.now,
    onLargeOffset: (offsetMs) => void offsets.push(offsetMs),
  });
  const about = { nodeId, clientAddress: `${nodeId}:1`, version: "1.2.3" };
  const cluster = createRedisCluster({
    ...{ link, topics, onError },
    heartbeatMs: options.heartbeatMs ?? HEARTBEAT_MS,
    deadAfterMs: options.deadAfterMs ?? DEAD_AFTER_MS,
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
      ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800 },
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
    ...{ cluster, store, directory, link, topics, events, problems },
    ...{ clockCheck, offsets, isDraining: false },
  };
  return node;
}

/**
 * The sessions of these tests have no token that any device was given: where there is one, a main
 * session may not go on. "": it logged out.
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

/** Its process is gone for all others: it says nothing any more. */
export async function kill(node: TestNode): Promise<void> {
  await node.link.close();
}

/** A main app session of `uid` on the node, unless told otherwise. */
export function sessionOn(
  { cluster }: { readonly cluster: Pick<Cluster, "nodeId"> },
  uid: string,
  more: Partial<SessionRecord> = {},
): SessionRecord {
  return {
    ...{ sessionId: randomUUID(), nodeId: cluster.nodeId, uid, flag: 0 },
    ...{ level: MAIN_DEVICE, deviceId: "", tokenTag: "tag" },
    ...more,
  };
}

/** Waits until it holds; rejects when it never does. */
export async function until(
  holds: () => boolean | Promise<boolean>,
  withinMs = 120_000,
): Promise<void> {
  const deadline = performance.now() + withinMs;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error("it never came true");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** What the node sees: ids of the living, sorted. */
export async function living({ cluster }: TestNode): Promise<string> {
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
  const [one] = await directory.presence([uid]);
  return one?.online === true;
}
