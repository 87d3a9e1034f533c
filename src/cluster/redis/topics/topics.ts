// The topics' side of a node of a cluster on Redis: what it publishes, what it listens to, and that
// the listener gets all of it in order, once. There is no short cut within a node: everything goes
// through Redis. State: the listener; the parts hold theirs.

import { BrokerError } from "../../../broker/errors.ts";
import type { Topic } from "../../../broker/model.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import type { ClusterTopics } from "../cluster.ts";
import { CatchUpQueue } from "./catch-up-queue.ts";
import { Channels } from "./channels.ts";
import { within } from "./deadline.ts";
import { Incoming } from "./incoming.ts";
import { Publishing } from "./publishing.ts";
import type { Sequencer } from "./sequencer.ts";
import { Subscriber } from "./subscriber.ts";
import { groupOf } from "./subscription.ts";
import { Subscriptions } from "./subscriptions.ts";
import {
  NO_RESYNC,
  seldom,
  TOPICS_LIMITS,
  type TopicsMetrics,
  type TopicsParts,
} from "./topics-parts.ts";

/** Where it is not known how far messages were delivered: nobody counts as a later member. */
const NO_LATER = Number.POSITIVE_INFINITY;

export function createRedisTopics(parts: TopicsParts): ClusterTopics {
  const { link, feed, clock, nodeId, lingerMs, metrics } = parts;
  const { isCluster, settings } = link;
  const { timeoutMs } = settings;
  const limits = { ...TOPICS_LIMITS, ...parts.limits };
  const onError = seldom(parts.onError);
  const rejected: TopicsMetrics["rejected"] = (why) => metrics?.rejected(why);
  let listener: (event: ClusterEvent) => void = () => {};
  let resync = NO_RESYNC;

  const publishing = new Publishing(link, onError);
  const catchUpQueue = new CatchUpQueue({
    feed,
    onError,
    onCaughtUp: () => metrics?.repaired(),
    judge,
  });
  link.onChange((isUp) => {
    if (isUp) catchUpQueue.hurry();
  });
  const channels = new Channels({
    catchUpQueue,
    feed,
    clock,
    mayReorder: isCluster,
    maxPersonal: limits.maxPersonal,
    sequencers: {
      deliver,
      onError,
      onGap: (sequencer) => void catchUpQueue.catchUp(sequencer),
      rejected,
      budget: { used: 0, max: limits.maxBufferedBytes },
      clock,
      gaps: new Set(),
      gapMs: limits.gapMs,
    },
  });
  const incoming = new Incoming({
    deliver,
    onError,
    rejected,
    channels,
    topic: (name) => subscriptions.named(name),
  });
  const subscriber: Subscriber = new Subscriber({
    link,
    clock,
    onError,
    name: `jindou-${nodeId}`,
    onFrame(name, frame) {
      holdIfSilent();
      incoming.accept(name, frame);
    },
    onLost: (names, sinceMs) => subscriptions.lost(names, sinceMs),
    onBack: (names) => subscriptions.back(names),
  });
  const subscriptions: Subscriptions = new Subscriptions({
    subscriber,
    channels,
    clock,
    lingerMs,
    onError,
    maxLingering: limits.maxLingering,
    onRestored(topics) {
      restored(topics);
      incoming.tellHeld();
    },
    judgeUsers: (uids) => resync.judgeUsers(uids),
    nameOf: (topic) => link.keys.topic(topic),
    timeoutMs,
  });

  function deliver(event: ClusterEvent): void {
    try {
      listener(event);
    } catch (error) {
      onError(error, "A received event could not be handled");
    }
  }

  /** The listener makes good what no store has of the meantime. */
  function restored(topics: readonly Topic[]): void {
    for (const topic of topics) if (!topic.startsWith("g:")) deliver({ kind: "missed", topic });
    metrics?.resubscribed(topics.length);
  }

  /** Before what was read of a channel is delivered. Rejects `unavailable`. */
  async function judge({ key, delivered }: Sequencer): Promise<void> {
    const group = groupOf(key);
    if (!isCluster) {
      const judged = subscriptions.usersJudged();
      await within(judged, timeoutMs, "users are not judged yet");
      await subscriber.mark(); // a session that ended before the read has ended here by now
    }
    if (group !== undefined) await resync.judgeGroup(group, delivered.headSeq ?? NO_LATER);
  }

  /**
   * Where no heartbeat was confirmed lately, nothing more is delivered before it was judged. Asked
   * when something is about to be delivered: after this process stood still, what came meanwhile is
   * read before any timer runs.
   */
  function holdIfSilent(): void {
    if (isCluster) return; // heartbeats go to one server, which tells nothing about the others
    const sinceMs = resync.silentSinceMs();
    if (sinceMs !== undefined) subscriptions.hold(sinceMs);
  }

  /**
   * Resolves once everything published to the node's topics before the call was delivered. Rejects
   * `unavailable` in time.
   */
  async function arrived(): Promise<void> {
    await subscriber.mark();
    channels.closeGaps();
    await within(
      subscriptions.settled().then(() => catchUpQueue.settled()),
      timeoutMs,
      "what was missed is not read yet",
    );
  }

  return {
    onEvent(given, givenResync) {
      listener = given;
      resync = givenResync;
    },
    /** Connects for subscriptions; the link must be up. Throws when Redis does not let it. */
    start: () => subscriber.start(),
    /** Forgets all topics and delivers nothing any more. Safe to call twice. */
    async close() {
      await publishing.settled();
      subscriptions.close();
      subscriber.close();
    },
    /** Throws `unavailable` while what is published may not come. */
    async ping() {
      if (!subscriber.isWhole) throw new BrokerError("unavailable");
    },
    /** Rejects `unavailable`; a topic that was subscribed to before stays wanted then. */
    listen: (topic) => subscriptions.listen(topic),
    /** Rejects as `listen`. */
    subscribe: (topic) => subscriptions.subscribe(topic),
    unlisten: (topic) => subscriptions.unlisten(topic),
    publish: (event) => publishing.publish(event),
    announce: (events) => publishing.announce(events),
    /** Rejects `unavailable` in time. */
    async barrier() {
      await publishing.settled();
      await arrived();
    },
    recovery(concerns) {
      holdIfSilent();
      return subscriptions.areWhole(concerns) ? undefined : arrived();
    },
    /** Never rejects. */
    delivered: () => (isCluster ? undefined : arrived().catch(() => {})),
  };
}
