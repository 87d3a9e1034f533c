// What a node receives of a cluster's topics, put together: subscriptions, the topics listened to, the lines that keep the order, repairs. State: the
// parts hold it.

import { within } from "./deadline.ts";
import { Incoming } from "./incoming.ts";
import { groupOf } from "./listened.ts";
import { ListenedTopics } from "./listened-topics.ts";
import { NodeLines } from "./node-lines.ts";
import { Repairs } from "./repairs.ts";
import { Subscriber } from "./subscriber.ts";
import {
  type OnProblem,
  type Tell,
  TOPICS_LIMITS,
  type TopicsMetrics,
  type TopicsParts,
  type TopicsResync,
} from "./topics-parts.ts";

export interface Heard {
  /** Takes an event to the node's listener; never throws. */
  readonly tell: Tell;
  /** These topics were lost for a while; what the store has of the meantime was told. */
  readonly onRestored: (topics: readonly string[]) => void;
  readonly onProblem: OnProblem;
  readonly resync: TopicsResync;
}

/** Where it is not known how far messages were told: nobody counts as a later member. */
const NO_LATER = Number.POSITIVE_INFINITY;

export class Receiver {
  readonly topics: ListenedTopics;
  readonly lines: NodeLines;
  readonly #subscriber: Subscriber;
  readonly #repairs: Repairs;
  readonly #timeoutMs: number;
  readonly #isCluster: boolean;
  readonly #resync: TopicsResync;

  constructor(parts: TopicsParts, heard: Heard) {
    const { link, feed, clock, nodeId, lingerMs } = parts;
    const { tell, onProblem, onRestored, resync } = heard;
    const limits = { ...TOPICS_LIMITS, ...parts.limits };
    this.#timeoutMs = link.settings.timeoutMs;
    this.#isCluster = link.isCluster;
    this.#resync = resync;
    const repairs = new Repairs({
      ...{ feed, onProblem, mayReorder: link.isCluster },
      onRepaired: () => parts.metrics?.repaired(),
      judge: async ({ key, told }) => {
        const group = groupOf(key);
        if (!link.isCluster) {
          await within(
            this.topics.usersJudged(),
            this.#timeoutMs,
            "users are not judged yet",
          );
          await this.#subscriber.mark(); // whoever was ended before the read is told now
        }
        if (group !== undefined)
          await resync.judgeGroup(group, told.headSeq ?? NO_LATER);
      },
    });
    this.#repairs = repairs;
    link.onChange((isUp) => {
      if (isUp) repairs.hurry();
    });
    const rejected: TopicsMetrics["rejected"] = (why) =>
      parts.metrics?.rejected(why);
    const budget = { used: 0, max: limits.maxKeptBytes };
    const onGap = (line: Parameters<Repairs["repair"]>[0]) =>
      void repairs.repair(line);
    this.lines = new NodeLines({
      ...{ repairs, feed, clock, mayReorder: link.isCluster },
      lines: {
        ...{ tell, onProblem, onGap, rejected, budget, clock },
        gapMs: limits.gapMs,
      },
      max: limits.maxPersonal,
      mark: () => this.#subscriber.mark(),
    });
    const incoming = new Incoming({
      ...{ tell, onProblem, rejected, personal: this.lines.personal },
      topic: (name) => this.topics.named(name),
    });
    this.#subscriber = new Subscriber({
      ...{ link, clock, onProblem, name: `jindou-${nodeId}` },
      onFrame: (name, frame) => {
        this.holdIfSilent();
        incoming.accept(name, frame);
      },
      onLost: (names, sinceMs) => this.topics.lost(names, sinceMs),
      onBack: (names) => this.topics.back(names),
    });
    this.topics = new ListenedTopics({
      ...{ subscriber: this.#subscriber, lines: this.lines, clock, lingerMs },
      ...{ onProblem, maxLingering: limits.maxLingering },
      onRestored(topics) {
        onRestored(topics);
        incoming.tellHeld();
      },
      judgeUsers: (uids) => resync.judgeUsers(uids),
      nameOf: (topic) => link.keys.topic(topic),
      timeoutMs: this.#timeoutMs,
    });
  }

  /**
   * Where no heartbeat was confirmed lately, nothing more is told before it was judged. Asked when something is about to be told: after this process
   * stood still, what came meanwhile is read before any timer runs.
   */
  holdIfSilent(): void {
    if (this.#isCluster) return; // heartbeats go to one of its servers: that it is away says nothing about the others
    const sinceMs = this.#resync.silentSinceMs();
    if (sinceMs !== undefined) this.topics.hold(sinceMs);
  }

  /** Nothing is lost just now. */
  get isWhole(): boolean {
    return this.#subscriber.isWhole;
  }

  /** Connects. Throws when Redis does not let it. */
  async start(): Promise<void> {
    await this.#subscriber.start();
  }

  /** Resolves once everything published to the node's topics before the call was told. Rejects `unavailable` in time. */
  async arrived(): Promise<void> {
    await this.#subscriber.mark();
    await within(
      this.topics.settled().then(() => this.#repairs.settled()),
      this.#timeoutMs,
      "what was missed is not read yet",
    );
  }

  close(): void {
    this.topics.close();
    this.lines.close();
    this.#subscriber.close();
  }
}
