// The topics' side of a node of a cluster on Redis: what it publishes, what it listens to, and that the listener is told all of it in order. State: the
// listeners; the parts hold theirs. There is no short cut within a node: everything goes through Redis.

import { BrokerError } from "../../broker/errors.ts";
import type { Topic } from "../../broker/model.ts";
import type { ClusterEvent } from "../../broker/ports.ts";
import type { Arrivals } from "../../redis/arrivals.ts";
import { Publishing } from "./publishing.ts";
import { Receiver } from "./receiver.ts";
import {
  NO_RESYNC,
  type OnProblem,
  seldom,
  type TopicsParts,
  type TopicsResync,
} from "./topics-parts.ts";

/** The `ClusterTopics` of cluster.ts. */
export class RedisTopics {
  /** For the store of the same node. */
  readonly arrivals: Arrivals;
  readonly #parts: TopicsParts;
  readonly #onProblem: OnProblem;
  readonly #receiver: Receiver;
  readonly #publishing: Publishing;
  #listener: (event: ClusterEvent) => void = () => {};
  #resync = NO_RESYNC;

  constructor(parts: TopicsParts) {
    this.#parts = parts;
    this.#onProblem = seldom(parts.onProblem);
    this.#publishing = new Publishing(parts.link, this.#onProblem);
    const receiver = new Receiver(parts, {
      onProblem: this.#onProblem,
      tell: (event) => this.#tell(event),
      onRestored: (topics) => this.#restored(topics),
      resync: {
        silentSinceMs: () => this.#resync.silentSinceMs(),
        judgeUsers: (uids) => this.#resync.judgeUsers(uids),
        judgeGroup: (...asked) => this.#resync.judgeGroup(...asked),
      },
    });
    this.#receiver = receiver;
    this.arrivals = {
      level: (...asked) => receiver.lines.level(...asked),
      listensTo: (topic) => receiver.topics.has(topic),
      barrier: () =>
        receiver.topics.size === 0
          ? undefined
          : receiver.arrived().catch((error) => {
              this.#onProblem(
                error,
                "Waiting for a node's own publications failed",
              );
            }),
    };
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
    await this.#receiver.start();
  }

  /** Forgets all topics and tells nothing any more. Safe to call twice. */
  async close(): Promise<void> {
    await this.#publishing.settled();
    this.#receiver.close();
  }

  /** Throws `unavailable` while what is published may not come. */
  async ping(): Promise<void> {
    if (!this.#receiver.isWhole) throw new BrokerError("unavailable");
  }

  /** See `Cluster`. Rejects `unavailable`; a topic that was listened to before stays wanted then. */
  listen(topic: Topic): Promise<void> {
    return this.#receiver.topics.listen(topic);
  }

  unlisten(topic: Topic): void {
    this.#receiver.topics.unlisten(topic);
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
    await this.#receiver.arrived();
  }

  /** See `Cluster`. */
  recovery(concerns: (topic: Topic) => boolean): Promise<void> | undefined {
    this.#receiver.holdIfSilent();
    return this.#receiver.topics.areWhole(concerns)
      ? undefined
      : this.#receiver.arrived();
  }

  #tell(event: ClusterEvent): void {
    try {
      this.#listener(event);
    } catch (error) {
      this.#onProblem(error, "A received event could not be handled");
    }
  }

  /** What no store has of the meantime is made good by who listens. */
  #restored(topics: readonly Topic[]): void {
    for (const topic of topics)
      if (!topic.startsWith("g:")) this.#tell({ kind: "missed", topic });
    this.#parts.metrics?.resubscribed(topics.length);
  }
}
