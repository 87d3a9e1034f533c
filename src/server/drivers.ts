// Creates the store and the cluster of a node: either the embedded store and a cluster of one node,
// or a Redis that several nodes share. Keeps no state.

import { BrokerError } from "../broker/errors.ts";
import type { Clock, Cluster, Store, Throttle } from "../broker/ports.ts";
import type { NodeDetails } from "../cluster/node-description.ts";
import { heartbeatMs } from "../cluster/options.ts";
import { createRedisCluster } from "../cluster/redis/cluster.ts";
import { Agreement } from "../cluster/redis/nodes/agreement.ts";
import { ClockCheck } from "../cluster/redis/nodes/clock-check.ts";
import { createRedisThrottle } from "../cluster/redis/throttle.ts";
import { createRedisTopics } from "../cluster/redis/topics/topics.ts";
import { LocalThrottle, SingleNode } from "../cluster/single.ts";
import type { Config } from "../config/schema.ts";
import { sharedSettings } from "../config/shared-settings.ts";
import { type Logger, roomLogger } from "../observe/logger.ts";
import type { Metrics } from "../observe/metrics.ts";
import { causeOf } from "../redis/errors.ts";
import { RedisLink } from "../redis/link.ts";
import type { OutageReport } from "../redis/outage.ts";
import { setAside } from "../store/embedded/set-aside.ts";
import { createEmbeddedStore } from "../store/embedded/store.ts";
import { COUNTERS_APART_MS } from "../store/redis/steps/channel-names.ts";
import { createRedisStore } from "../store/redis/store.ts";
import { WallClock } from "./wall-clock.ts";

interface DriverPorts {
  readonly config: Config;
  readonly logger: Logger;
  readonly metrics: Metrics;
  readonly about: NodeDetails;
  /** Called when this node was declared dead and continues under a new incarnation. */
  readonly onNewIncarnation: () => void;
  /** Called when another process owns the data. Must exit this process at once. */
  readonly onLost: (error: unknown) => void;
  readonly newStore: boolean;
}

export interface Drivers {
  /** Store, which must be started before the cluster. */
  readonly store: Store;
  readonly cluster: Cluster;
  readonly throttle: Throttle;
  readonly clock: Clock;
  /** Milliseconds by which the time in a message id may be lower than in an earlier id. */
  readonly lookBackMs: number;
  /**
   * Connects to the server of the store. Must be called before the store is started. Rejects with
   * `RedisAway` if a later call may succeed, and with another error if waiting does not help.
   */
  reach(): Promise<void>;
  /** Returns why the last attempt of `reach`, or a part of it, has failed, if one has. */
  reason(): string | undefined;
  /**
   * Returns true if the error is a consequence of an outage of Redis, which the log reports once
   * for all.
   */
  isKnownOutage(error: unknown): boolean;
  /** Must be called after the store and the cluster are closed. Safe to call twice. */
  close(): Promise<void>;
}

export function createDrivers(ports: DriverPorts): Drivers {
  return ports.config.redis.url === "" ? createEmbeddedDrivers(ports) : createRedisDrivers(ports);
}

/** Divisor of `client.maxBufferedBytes`. A stream may not be larger than the quotient. */
const BUFFER_DIVISOR = 4;

/** Returns the maximum size of a stream. A viewer who joins is sent all of it in one piece. */
export function maxStreamBytes({ streams, client }: Config): number {
  const share = client.maxBufferedBytes / BUFFER_DIVISOR;
  return Math.min(streams.maxStreamBytes, share);
}

/** Only WuKongIM's `ban` also bans the account [decisions: A banned account]. */
function judgesBans({ api }: Config): boolean {
  return api.dialect === "wukongim";
}

function createEmbeddedDrivers(ports: DriverPorts): Drivers {
  const { config, logger, about, onLost, newStore } = ports;
  const { families } = ports.metrics;
  const { store: settings, streams, commands } = config;
  const cluster = new SingleNode(about.nodeId, about);
  const log = roomLogger(logger, "store");
  const clock = new WallClock({
    onInvalid: (timeMs) =>
      log.error(
        { clock: new Date(timeMs).toISOString() },
        "The clock of this machine shows a time after 2080. Until it is set, the broker continues from the last valid time. Set the clock",
      ),
    onValid: () => log.info("The clock of this machine shows a valid time again"),
  });
  const store = createEmbeddedStore({
    ...settings,
    maxStreamBytes: maxStreamBytes(config),
    maxActiveStreamBytes: streams.maxActiveBytes,
    maxInbox: commands.maxInbox,
    inboxTtlS: commands.expireS,
    judgesBans: judgesBans(config),
    publisher: cluster,
    clock: clock.now,
    steadyClock: () => performance.now(),
    onError: (error, message) => log.error({ err: error }, message),
    onLost,
    onNotice: (facts, message) => log.info(facts, message),
    onDiskChange(isFull, freeBytes) {
      if (isFull)
        log.error(
          { freeBytes },
          "The disk of the store is full, so new data is rejected. Free some space on it",
        );
      else log.info({ freeBytes }, "The disk of the store has space again: new data is accepted");
    },
  });
  families.clockInvalid.of().from(() => (clock.isInvalid ? 1 : 0));
  families.storeFreeBytes.of().from(() => store.stats().freeBytes);
  families.messagesDuplicate.of().from(() => store.stats().duplicates);
  families.storeAppends.of().from(() => store.stats().appends);
  families.storeCheckpoints.of().from(() => store.stats().checkpoints);
  families.storeMemtableRecords.of().from(() => store.stats().memtableRecords);
  families.storeMemtableBytes.of().from(() => store.stats().memtableBytes);
  families.storeWalBytes.of().from(() => store.stats().walBytes);
  families.streamsActive.of().from(() => store.stats().activeStreams);
  families.streamsActiveBytes.of().from(() => store.stats().activeStreamBytes);
  families.commandsDropped.of().from(() => store.stats().inboxDropped);
  const throttle = new LocalThrottle(() => performance.now());
  const start = async (signal?: AbortSignal) => {
    const former = newStore ? await setAside(settings.path, Date.now(), signal) : undefined;
    if (former !== undefined) log.warn({ former }, "The former store was moved. A new one begins");
    await store.start(signal);
  };
  return {
    store: { ...store, start },
    cluster,
    throttle,
    clock: clock.now,
    lookBackMs: 0,
    async reach() {},
    reason: () => undefined,
    isKnownOutage: () => false,
    async close() {},
  };
}

/** Difference of the clocks above which the log says that message ids use Redis' clock. */
const FAR_AHEAD_MS = 60_000;
/** Delay before a topic is unsubscribed. A user who reconnects sooner needs no new subscription. */
const UNSUBSCRIBE_DELAY_MS = 10_000;

/** Returns a function that logs the reports about an outage of Redis. */
export function outageLog(log: Logger): (report: OutageReport) => void {
  return ({ message, isOver, fields }) => {
    if (isOver) log.info(fields, message);
    else log.warn(fields, message);
  };
}

function createRedisDrivers(ports: DriverPorts): Drivers {
  const { config, logger, about } = ports;
  const { families } = ports.metrics;
  const { nodeId } = about;
  const log = roomLogger(logger, "redis");
  // An unreachable Redis is logged as a warning, because it is not an error of this node.
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
          "Nodes have different timings, so each uses the larger value until all have the same",
        );
    },
    onDifferences: (differences) =>
      clusterLog.warn({ differences }, "Other nodes have other settings"),
  });
  const { retentionS, maxChannelMessages } = config.store;
  const store = createRedisStore({
    ...common,
    steadyClock: () => performance.now(),
    judgesBans: judgesBans(config),
    limits: {
      get dedupeWindowS() {
        return agreement.timings["store.dedupeWindowS"];
      },
      retentionS,
      maxChannelMessages,
      sweepIntervalMs: config.store.sweepIntervalMs,
      maxStreamBytes: maxStreamBytes(config),
      maxInbox: config.commands.maxInbox,
      inboxTtlS: config.commands.expireS,
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
    heartbeatMs: heartbeatMs(deadAfterMs),
    agreement,
    onNewIncarnation: ports.onNewIncarnation,
    startClockComparison: () => clockCheck.startComparison(),
  });
  families.redisUp.of().from(() => (link.isUp ? 1 : 0));
  families.redisInFlight.of().from(() => link.inFlight);
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
