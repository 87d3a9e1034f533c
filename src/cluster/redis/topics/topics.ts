// The topics' side of a node of a cluster on Redis: what it publishes, what it listens to, and that the listener gets all of it in order, once. There is
// no short cut within a node: everything goes through Redis. State: the listeners; the parts hold theirs.

import { BrokerError } from "../../../broker/errors.ts";
import type { Topic } from "../../../broker/model.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
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
  type OnError,
  seldom,
  TOPICS_LIMITS,
  type TopicsMetrics,
  type TopicsParts,
  type TopicsResync,
} from "./topics-parts.ts";

/** Where it is not known how far messages were delivered: nobody counts as a later member. */
const NO_LATER = Number.POSITIVE_INFINITY;

/** The `ClusterTopics` of cluster.ts. */
export class RedisTopics {
  readonly #parts: TopicsParts;
  readonly #onError: OnError;
  readonly #publishing: Publishing;
  readonly #topics: Subscriptions;
  readonly #channels: Channels;
  readonly #catchUpQueue: CatchUpQueue;
  readonly #subscriber: Subscriber;
  #listener: (event: ClusterEvent) => void = () => {};
  #resync = NO_RESYNC;

  constructor(parts: TopicsParts) {
    const { link, feed, clock, nodeId, lingerMs, metrics } = parts;
    const limits = { ...TOPICS_LIMITS, ...parts.limits };
    const onError = seldom(parts.onError);
    const deliver = (event: ClusterEvent) => this.#deliver(event);
    const rejected: TopicsMetrics["rejected"] = (why) => metrics?.rejected(why);
    this.#parts = parts;
    this.#onError = onError;
    this.#publishing = new Publishing(link, onError);
    const catchUpQueue = new CatchUpQueue({
      ...{ feed, onError },
      onCaughtUp: () => metrics?.repaired(),
      judge: (sequencer) => this.#judge(sequencer),
    });
    this.#catchUpQueue = catchUpQueue;
    link.onChange((isUp) => {
      if (isUp) catchUpQueue.hurry();
    });
    const budget = { used: 0, max: limits.maxBufferedBytes };
    const onGap = (sequencer: Sequencer) =>
      void catchUpQueue.catchUp(sequencer);
    this.#channels = new Channels({
      ...{ catchUpQueue, feed, clock, mayReorder: link.isCluster },
      maxPersonal: limits.maxPersonal,
      sequencers: {
        ...{ deliver, onError, onGap, rejected, budget, clock },
        gaps: new Set(),
        gapMs: limits.gapMs,
      },
    });
    const incoming = new Incoming({
      ...{ deliver, onError, rejected, channels: this.#channels },
      topic: (name) => this.#topics.named(name),
    });
    this.#subscriber = new Subscriber({
      ...{ link, clock, onError, name: `jindou-${nodeId}` },
      onFrame: (name, frame) => {
        this.#holdIfSilent();
        incoming.accept(name, frame);
      },
      onLost: (names, sinceMs) => this.#topics.lost(names, sinceMs),
      onBack: (names) => this.#topics.back(names),
    });
    this.#topics = new Subscriptions({
      ...{
        subscriber: this.#subscriber,
        channels: this.#channels,
        clock,
        lingerMs,
      },
      ...{ onError, maxLingering: limits.maxLingering },
      onRestored: (topics) => {
        this.#restored(topics);
        incoming.tellHeld();
      },
      judgeUsers: (uids) => this.#resync.judgeUsers(uids),
      nameOf: (topic) => link.keys.topic(topic),
      timeoutMs: link.settings.timeoutMs,
    });
  }

  onEvent(
    listener: (event: ClusterEvent) => void,
    resync: TopicsResync = NO_RESYNC,
  ): void {
    this.#listener = listener;
    this.#resync = resync;
  }

  /** Connects for subscriptions; the link must be up. Throws when Redis does not let it. */
  async start(): Promise<void> {
    await this.#subscriber.start();
  }

  /** Forgets all topics and delivers nothing any more. Safe to call twice. */
  async close(): Promise<void> {
    await this.#publishing.settled();
    this.#topics.close();
    this.#subscriber.close();
  }

  /** Throws `unavailable` while what is published may not come. */
  async ping(): Promise<void> {
    if (!this.#subscriber.isWhole) throw new BrokerError("unavailable");
  }

  /** See `Cluster`. Rejects `unavailable`; a topic that was subscribed to before stays wanted then. */
  listen(topic: Topic): Promise<void> {
    return this.#topics.listen(topic);
  }

  /** See `Cluster`. Rejects as `listen`. */
  subscribe(topic: Topic): Promise<void> {
    return this.#topics.subscribe(topic);
  }

  unlisten(topic: Topic): void {
    this.#topics.unlisten(topic);
  }

  /** See `Publisher`. */
  publish(event: ClusterEvent): void {
    this.#publishing.publish(event);
  }

  /** See `Announcer`. */
  announce(events: readonly ClusterEvent[]): Promise<void> {
    return this.#publishing.announce(events);
  }

  /** See `Cluster`. Rejects `unavailable` in time. */
  async barrier(): Promise<void> {
    await this.#publishing.settled();
    await this.#arrived();
  }

  /** See `Cluster`. */
  recovery(concerns: (topic: Topic) => boolean): Promise<void> | undefined {
    this.#holdIfSilent();
    return this.#topics.areWhole(concerns) ? undefined : this.#arrived();
  }

  /** See `Cluster`. Never rejects. */
  delivered(): Promise<void> | undefined {
    if (this.#parts.link.isCluster) return undefined;
    return this.#arrived().catch(() => {});
  }

  /** Resolves once everything published to the node's topics before the call was delivered. Rejects `unavailable` in time. */
  async #arrived(): Promise<void> {
    await this.#subscriber.mark();
    this.#channels.closeGaps();
    await within(
      this.#topics.settled().then(() => this.#catchUpQueue.settled()),
      this.#parts.link.settings.timeoutMs,
      "what was missed is not read yet",
    );
  }

  /**
   * Where no heartbeat was confirmed lately, nothing more is delivered before it was judged. Asked when something is about to be delivered: after this
   * process stood still, what came meanwhile is read before any timer runs.
   */
  #holdIfSilent(): void {
    if (this.#parts.link.isCluster) return; // heartbeats go to one of its servers: that it is away says nothing about the others
    const sinceMs = this.#resync.silentSinceMs();
    if (sinceMs !== undefined) this.#topics.hold(sinceMs);
  }

  /** Before what was read of a channel is delivered. Rejects `unavailable`. */
  async #judge({ key, delivered }: Sequencer): Promise<void> {
    const { link } = this.#parts;
    const group = groupOf(key);
    if (!link.isCluster) {
      const judged = this.#topics.usersJudged();
      await within(judged, link.settings.timeoutMs, "users are not judged yet");
      await this.#subscriber.mark(); // a session that was ended before the read is ended here by now
    }
    if (group !== undefined)
      await this.#resync.judgeGroup(group, delivered.headSeq ?? NO_LATER);
  }

  #deliver(event: ClusterEvent): void {
    try {
      this.#listener(event);
    } catch (error) {
      this.#onError(error, "A received event could not be handled");
    }
  }

  /** Who listens makes good what no store has of the meantime. */
  #restored(topics: readonly Topic[]): void {
    for (const topic of topics)
      if (!topic.startsWith("g:")) this.#deliver({ kind: "missed", topic });
    this.#parts.metrics?.resubscribed(topics.length);
  }
}
