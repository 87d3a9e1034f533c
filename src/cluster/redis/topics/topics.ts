// Publishes and receives a node's events through Redis. The listener receives the events of each
// channel once and in order. A node receives its own publications through Redis as well.

import { BrokerError } from "../../../broker/errors.ts";
import type { Topic } from "../../../broker/model.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { limitedReports } from "../../../lib/limited-reports.ts";
import { groupOf } from "../../../redis/keys.ts";
import type { ClusterTopics } from "../cluster.ts";
import { CatchUpQueue } from "./catch-up-queue.ts";
import { Channels } from "./channels.ts";
import { within } from "./deadline.ts";
import { Incoming } from "./incoming.ts";
import { Publishing } from "./publishing.ts";
import type { Sequencer } from "./sequencer.ts";
import { StoreTime } from "./store-time.ts";
import { Subscriber } from "./subscriber.ts";
import { Subscriptions } from "./subscriptions.ts";
import { NO_RESYNC, TOPICS_LIMITS, type TopicsMetrics, type TopicsPorts } from "./topics-ports.ts";

/** `lastSeq` for `judgeGroup` if the delivered seq is unknown. No user can have joined after it. */
const END_OF_CHANNEL = Number.POSITIVE_INFINITY;
const REPORT_INTERVAL_MS = 1000;

export function createRedisTopics(ports: TopicsPorts): ClusterTopics {
  const { link, feed, clock, nodeId, unsubscribeDelayMs, metrics } = ports;
  const { isCluster } = link;
  const limits = { ...TOPICS_LIMITS, ...ports.limits };
  const onError = limitedReports(ports.onError, REPORT_INTERVAL_MS);
  const rejected: TopicsMetrics["rejected"] = (why) => metrics?.rejected(why);
  let listener: (event: ClusterEvent) => void = () => {};
  let resync = NO_RESYNC;

  const time = new StoreTime(clock);
  const publishing = new Publishing(link, onError);
  const catchUpQueue = new CatchUpQueue({
    feed,
    isCluster,
    onError,
    onCaughtUp: () => metrics?.repaired(),
    judge,
  });
  link.onChange((isUp) => {
    if (isUp) catchUpQueue.retryNow();
  });
  const channels = new Channels({
    catchUpQueue,
    feed,
    clock: time.now,
    mayReorder: isCluster,
    maxPersonal: limits.maxPersonal,
    sequencers: {
      deliver,
      onError,
      onGap: (sequencer) => void catchUpQueue.catchUp(sequencer),
      rejected,
      budget: { used: 0, max: limits.maxBufferedBytes },
      time,
      gaps: new Set(),
      gapMs: limits.gapMs,
    },
  });
  const incoming = new Incoming({
    deliver,
    onError,
    rejected,
    channels,
    topic: (name) => subscriptions.get(name),
  });
  const subscriber: Subscriber = new Subscriber({
    link,
    clock: time.now,
    onError,
    name: `jindou-${nodeId}`,
    onFrame(name, frame) {
      fenceIfSilent();
      incoming.accept(name, frame);
    },
    onLost: (names, sinceMs) => subscriptions.markLost(names, sinceMs),
    onResubscribed: (names) => subscriptions.markResubscribed(names),
  });
  const subscriptions: Subscriptions = new Subscriptions({
    subscriber,
    channels,
    clock: time.now,
    unsubscribeDelayMs,
    onError,
    maxDelayedUnsubscribes: limits.maxDelayedUnsubscribes,
    onRestored(topics) {
      reportRestored(topics);
      incoming.deliverHeld();
    },
    judgeUsers: (uids) => resync.judgeUsers(uids),
    nameOf: (topic) => link.keys.topic(topic),
    timeoutMs: () => link.settings.timeoutMs,
  });

  function deliver(event: ClusterEvent): void {
    try {
      listener(event);
    } catch (error) {
      onError(error, "Could not handle a received event");
    }
  }

  /**
   * Reports restored topics to the listener, so that it rereads the state whose changes it may have
   * missed, such as memberships. Group topics are left out, because the catch-up reads their missed
   * publications.
   */
  function reportRestored(topics: readonly Topic[]): void {
    for (const topic of topics) if (!topic.startsWith("g:")) deliver({ kind: "missed", topic });
    metrics?.resubscribed(topics.length);
  }

  async function judge({ key, delivered }: Sequencer): Promise<void> {
    const group = groupOf(key);
    if (!isCluster) {
      const judged = subscriptions.usersJudged();
      await within(judged, link.settings.timeoutMs, "users' access was not checked in time");
      // When the mark has arrived, all events that ended sessions before this check have arrived
      // too.
      await subscriber.mark();
    }
    if (group !== undefined) await resync.judgeGroup(group, delivered.headSeq ?? END_OF_CHANNEL);
  }

  /**
   * Suspends all topics if this node may have been declared dead. Not called by a timer, because
   * after a freeze of the process, frames may be read before timers run.
   */
  function fenceIfSilent(): void {
    if (isCluster) return; // heartbeats go to one server and prove nothing about the other servers
    const sinceMs = resync.silentSinceMs();
    if (sinceMs !== undefined) subscriptions.suspendAll(sinceMs);
  }

  async function waitUntilDelivered(): Promise<void> {
    await subscriber.mark();
    channels.closeGaps();
    await within(
      subscriptions.settled().then(() => catchUpQueue.settled()),
      link.settings.timeoutMs,
      "the missed publications were not read in time",
    );
  }

  return {
    onEvent(newListener, handler) {
      listener = newListener;
      resync = handler;
    },
    start: () => subscriber.start(),
    async close() {
      await publishing.settled();
      subscriptions.close();
      subscriber.close();
    },
    async ping() {
      if (!subscriber.isComplete) throw new BrokerError("unavailable");
    },
    listen: (...topics) => subscriptions.listen(...topics),
    subscribe: (...topics) => subscriptions.subscribe(...topics),
    unlisten: (topic) => subscriptions.unlisten(topic),
    publish: (event) => publishing.publish(event),
    announce: (events) => publishing.announce(events),
    async barrier() {
      await publishing.settled();
      await waitUntilDelivered();
    },
    recovery(concerns) {
      fenceIfSilent();
      return subscriptions.areRestored(concerns) ? undefined : waitUntilDelivered();
    },
    delivered: () => (isCluster ? undefined : waitUntilDelivered().catch(() => {})),
  };
}
