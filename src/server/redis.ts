// One of many nodes on a Redis that they share: link, topics, store and cluster, and who of them knows whom. State: none of its own.

import { BrokerError } from "../broker/errors.ts";
import { heartbeatMs } from "../cluster/options.ts";
import { createRedisCluster } from "../cluster/redis/cluster.ts";
import { ClockCheck } from "../cluster/redis/nodes/clock-check.ts";
import { createRedisThrottle } from "../cluster/redis/throttle.ts";
import { RedisTopics } from "../cluster/redis/topics/topics.ts";
import { roomLogger } from "../observe/logger.ts";
import type { Metrics } from "../observe/metrics.ts";
import { RedisLink } from "../redis/link.ts";
import { createRedisStore, type RedisStore } from "../store/redis/store.ts";
import { type DriverParts, type Drivers, maxStreamBytes } from "./drivers.ts";
import { reasonOf, StartError } from "./start-error.ts";

/** A user who reconnects in this time costs no new subscription. */
const UNSUBSCRIBE_DELAY_MS = 10_000;

type OnProblem = (error: unknown, what: string) => void;

export function createRedisDrivers(parts: DriverParts): Drivers {
  const { config, about } = parts;
  const { nodeId } = about;
  const onProblem = problemLog(parts);
  const link = new RedisLink(config.redis, {
    name: `jindou-${nodeId}`,
    onProblem,
  });
  const common = { link, clock: Date.now, onProblem };
  const store = createRedisStore({ ...common, limits: storeLimits(parts) });
  const { deadAfterMs } = config.cluster;
  const topics = new RedisTopics({
    ...common,
    feed: store,
    nodeId,
    lingerMs: UNSUBSCRIBE_DELAY_MS,
    metrics: topicsMetrics(parts.metrics),
  });
  const clockCheck = createClockCheck(parts);
  const cluster = createRedisCluster({
    ...common,
    topics,
    about,
    heartbeatMs: heartbeatMs(deadAfterMs),
    deadAfterMs,
    onNewIncarnation: parts.onNewIncarnation,
    asksTime: () => clockCheck.asks(),
  });
  exposeStats({ store, link, clockCheck }, parts.metrics);
  return {
    store: { ...store, start: () => orStartError(store.start()) },
    cluster,
    throttle: createRedisThrottle(link, Date.now),
    close: () => link.close(),
  };
}

function storeLimits({ config }: DriverParts) {
  const { store, commands } = config;
  const { dedupeWindowS, retentionS, maxChannelMessages } = store;
  return {
    ...{ dedupeWindowS, retentionS, maxChannelMessages },
    sweepIntervalMs: store.sweepIntervalMs,
    maxStreamBytes: maxStreamBytes(config),
    maxInbox: commands.maxInbox,
    inboxTtlS: commands.expireS,
  };
}

/** Redis away is told while it lasts, and is no fault of this node. */
function problemLog({ logger }: DriverParts): OnProblem {
  const log = roomLogger(logger, "redis");
  return (error, what) => {
    if (error instanceof BrokerError && error.code === "unavailable")
      log.warn({ err: error }, what);
    else log.error({ err: error }, what);
  };
}

/** Warns the operator of a clock that is wrong: this one, or Redis'. */
function createClockCheck({ logger }: DriverParts): ClockCheck {
  const log = roomLogger(logger, "cluster");
  return new ClockCheck({
    clock: Date.now,
    onApart: (offsetMs) =>
      log.warn({ offsetMs }, "The clocks of this node and of Redis differ"),
  });
}

/** Throws StartError with what keeps the node from its Redis. */
async function orStartError(starting: Promise<void>): Promise<void> {
  try {
    await starting;
  } catch (error) {
    throw new StartError(
      `Redis cannot be used: ${reasonOf(error)}; check redis.url (JINDOU_REDIS_URL)`,
    );
  }
}

function topicsMetrics({ families }: Metrics) {
  const repairs = families.clusterRepairs.of();
  const resubscribed = families.clusterResubscribed.of();
  return {
    repaired: () => repairs.add(),
    rejected: (reason: string) => families.clusterRejected.of(reason).add(),
    resubscribed: (topics: number) => resubscribed.add(topics),
  };
}

function exposeStats(
  parts: {
    readonly store: RedisStore;
    readonly link: RedisLink;
    readonly clockCheck: ClockCheck;
  },
  { families }: Metrics,
): void {
  const { store, link, clockCheck } = parts;
  families.redisUp.of().from(() => (link.isUp ? 1 : 0));
  families.redisInFlight.of().from(() => link.inFlight);
  families.clusterClockOffset.of().from(() => clockCheck.offsetMs / 1000);
  families.storeAppends.of().from(() => store.stats().appends);
  families.messagesDuplicate.of().from(() => store.stats().duplicates);
  families.commandsDropped.of().from(() => store.stats().inboxDropped);
  families.storeUnreadable.of().from(() => store.stats().unreadable);
}
