// Creates the store and the cluster of a node that uses Redis, which several nodes share. Keeps no
// state.

import { BrokerError } from "../broker/errors.ts";
import { heartbeatMs } from "../cluster/options.ts";
import { createRedisCluster } from "../cluster/redis/cluster.ts";
import { Agreement } from "../cluster/redis/nodes/agreement.ts";
import { ClockCheck } from "../cluster/redis/nodes/clock-check.ts";
import { createRedisThrottle } from "../cluster/redis/throttle.ts";
import { createRedisTopics } from "../cluster/redis/topics/topics.ts";
import { sharedSettings } from "../config/shared-settings.ts";
import { type Logger, roomLogger } from "../observe/logger.ts";
import { causeOf } from "../redis/errors.ts";
import { RedisLink } from "../redis/link.ts";
import type { OutageReport } from "../redis/outage.ts";
import { LIBRARY } from "../store/redis/operations.ts";
import { COUNTERS_APART_MS } from "../store/redis/steps/channel-names.ts";
import { createRedisStore } from "../store/redis/store.ts";
import { type DriverPorts, type Drivers, judgesBans, logoutMs, maxStreamBytes } from "./drivers.ts";

/**
 * Time by which the node's clock must be ahead of Redis' clock before the node logs that message
 * ids follow Redis' clock.
 */
const FAR_AHEAD_MS = 60_000;
/** Delay before a topic is unsubscribed. A user who reconnects sooner needs no new subscription. */
const UNSUBSCRIBE_DELAY_MS = 10_000;

export function outageLog(log: Logger): (report: OutageReport) => void {
  return ({ message, isOver, fields }) => {
    if (isOver) log.info(fields, message);
    else log.warn(fields, message);
  };
}

export function createRedisDrivers(ports: DriverPorts): Drivers {
  const { config, logger, about } = ports;
  const { families } = ports.metrics;
  const { nodeId } = about;
  const log = roomLogger(logger, "redis");
  // An unreachable Redis is logged as a warning, because this node is not at fault.
  const onError = (error: unknown, message: string) => {
    if (causeOf(error) !== undefined) link.outage.record(error);
    if (link.outage.covers(error)) return;
    if (error instanceof BrokerError && error.code === "unavailable")
      log.warn({ err: error }, message);
    else log.error({ err: error }, message);
  };
  const name = `jindou-${nodeId}`;
  const dataLost = families.redisDataLost.of();
  const link = new RedisLink(config.redis, {
    ...{ name, onError },
    onWarning: (reason) => log.warn({ reason }, "The configuration of Redis should be changed"),
    onOutage: outageLog(log),
    checkUsable: () => cluster.ping(),
    onDataLoss: () => dataLost.add(),
    maxClockAgeMs: config.cluster.deadAfterMs,
    subscribes: true,
  });
  const common = { link, clock: link.now, onError };
  const clusterLog = roomLogger(logger, "cluster");
  const agreement = new Agreement({
    timings: {
      "cluster.deadAfterMs": config.cluster.deadAfterMs,
      "redis.timeoutMs": config.redis.timeoutMs,
      "store.dedupeWindowS": config.store.dedupeWindowS,
    },
    settings: sharedSettings(config),
    acceptsNewTimings: config.cluster.acceptNewTimings,
    onChange(timings, areEqual) {
      link.setTimeoutMs(timings["redis.timeoutMs"]);
      if (areEqual) clusterLog.info({ timings }, "All nodes have the same timings now");
      else
        clusterLog.warn(
          { timings },
          "The nodes have different timings, so each node uses the largest values until all nodes have the same",
        );
    },
    onDifferences: (differences) =>
      clusterLog.warn({ differences }, "Other nodes have different settings"),
  });
  const { retentionS, maxChannelMessages } = config.store;
  const store = createRedisStore({
    ...common,
    steadyClock: () => performance.now(),
    judgesBans: judgesBans(config),
    logoutMs: logoutMs(config),
    limits: {
      get dedupeWindowS() {
        return agreement.timings["store.dedupeWindowS"];
      },
      retentionS,
      maxChannelMessages,
      sweepIntervalMs: config.store.sweepIntervalMs,
      maxStreamBytes: maxStreamBytes(config),
      maxStreamDataBytes: config.streams.maxDataBytes,
      maxInbox: config.commands.maxInbox,
      inboxTtlS: config.commands.expireS,
      logs: config.logs,
    },
  });
  const resubscribed = families.clusterResubscribed.of();
  const repairs = families.clusterRepairs.of();
  const topics = createRedisTopics({
    ...common,
    feed: store,
    nodeId,
    unsubscribeDelayMs: UNSUBSCRIBE_DELAY_MS,
    metrics: {
      repaired: () => repairs.add(),
      rejected: (reason) => families.clusterRejected.of(reason).add(),
      resubscribed: (topics) => resubscribed.add(topics),
    },
  });
  const clockCheck = new ClockCheck({
    clock: Date.now,
    onLargeOffset(offsetMs) {
      if (offsetMs > FAR_AHEAD_MS)
        clusterLog.warn(
          { offsetMs },
          "The clock of this node is more than 60 s ahead of Redis' clock. Message ids and times use Redis' clock. Check NTP on both machines",
        );
      else
        clusterLog.warn(
          { offsetMs },
          "The clocks of this node and of Redis differ; synchronize both, for example with NTP",
        );
    },
  });
  const { deadAfterMs } = config.cluster;
  const cluster = createRedisCluster({
    ...common,
    topics,
    about,
    library: LIBRARY.name,
    heartbeatMs: heartbeatMs(deadAfterMs),
    agreement,
    onNewIncarnation: ports.onNewIncarnation,
    startClockComparison: () => clockCheck.startComparison(),
  });
  families.redisUp.of().from(() => (link.isUp ? 1 : 0));
  families.redisInFlight.of().from(() => link.inFlight);
  families.clockInvalid.of().from(() => (link.isClockInvalid ? 1 : 0));
  families.clusterClockOffset.of().from(() => clockCheck.offsetMs / 1000);
  families.storeAppends.of().from(() => store.stats().appends);
  families.messagesDuplicate.of().from(() => store.stats().duplicates);
  families.commandsDropped.of().from(() => store.stats().inboxDropped);
  families.storeUnreadable.of().from(() => store.stats().unreadable);
  return {
    store,
    cluster,
    throttle: createRedisThrottle(link, link.now),
    clock: link.now,
    lookBackMs: link.isCluster ? COUNTERS_APART_MS : 0,
    reach: () => link.start(),
    reason: () => link.startFailure?.message,
    isKnownOutage: (error) => link.outage.covers(error),
    close: () => link.close(),
  };
}
