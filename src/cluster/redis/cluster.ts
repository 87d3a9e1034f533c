// A node of a cluster on Redis: topics and registry put together. State: who listens to this node's events, the presence topics it listens to, whether
// Redis was away since the last heartbeat; the parts hold theirs. The link to Redis is shared with the store: whoever made it closes it, after this.

import { presenceTopic, type Topic } from "../../broker/model.ts";
import type {
  Cluster,
  ClusterEvent,
  Incarnation,
  NodeInfo,
  Resync,
} from "../../broker/ports.ts";
import type { MaybePromise } from "../../lib/maybe-promise.ts";
import type { RedisLink } from "../../redis/link.ts";
import { type AboutNode, createNodeDescription } from "../about-node.ts";
import { Registry, type RegistryParts } from "./nodes/registry.ts";
import type { TopicsResync } from "./topics/topics-parts.ts";

/** The topics' side of a node (topics.ts). */
export interface ClusterTopics
  extends Pick<
    Cluster,
    | "publish"
    | "announce"
    | "listen"
    | "subscribe"
    | "unlisten"
    | "barrier"
    | "recovery"
    | "delivered"
    | "start"
    | "close"
    | "ping"
  > {
  /** Who receives this node's events, and judges who may see what it missed. */
  onEvent(listener: (event: ClusterEvent) => void, resync: TopicsResync): void;
}

export interface RedisClusterParts
  extends Pick<
    RegistryParts,
    | "heartbeatMs"
    | "deadAfterMs"
    | "asksTime"
    | "onNewIncarnation"
    | "onProblem"
  > {
  readonly link: RedisLink;
  readonly topics: ClusterTopics;
  readonly about: AboutNode;
}

export class RedisCluster implements Cluster {
  readonly nodeId: string;
  readonly #link: RedisLink;
  readonly #topics: ClusterTopics;
  readonly #registry: Registry;
  /** Users whose presence this node listens to. */
  readonly #watched = new Set<string>();
  #listener: (event: ClusterEvent) => void = () => {};
  #resync: Pick<Resync, "beat"> = { beat() {} };
  #wasAway = false;

  constructor(parts: RedisClusterParts) {
    const { link, topics, about } = parts;
    const { nodeId } = about;
    const describe = createNodeDescription(about);
    const registry = new Registry({ ...parts, nodeId, describe });
    this.nodeId = nodeId;
    this.#link = link;
    this.#topics = topics;
    this.#registry = registry;
    registry.listener({
      onBeat: (isNew) => {
        const isAnew = isNew || this.#wasAway;
        this.#wasAway = false;
        this.#resync.beat(isAnew);
      },
      onDeath: () => this.#doubtPresence(),
    });
    link.onChange((isUp) => {
      this.#wasAway = true;
      if (isUp) registry.refresh().catch(() => {}); // else the next heartbeat
    });
  }

  onEvent(listener: (event: ClusterEvent) => void, resync: Resync): void {
    this.#listener = listener;
    this.#resync = resync;
    this.#topics.onEvent(listener, {
      silentSinceMs: () => this.#registry.silentSinceMs(),
      judgeUsers: (uids) => resync.judgeUsers(uids),
      judgeGroup: resync.judgeGroup,
    });
  }

  /** Joins the cluster. Throws an Error with a sentence for the operator when another process lives under this node's id. */
  async start(): Promise<void> {
    await this.#link.start();
    await this.#topics.start();
    await this.#registry.start();
  }

  /** Leaves the cluster; sessions that are still open count as offline from now on. Safe to call twice. */
  async close(): Promise<void> {
    await this.#registry.close();
    await this.#topics.close();
  }

  async ping(): Promise<void> {
    this.#registry.assertBeating();
    await this.#topics.ping();
    await this.#link.ping();
  }

  publish(event: ClusterEvent): void {
    this.#topics.publish(event);
  }

  announce(events: readonly ClusterEvent[]): Promise<void> {
    return this.#topics.announce(events);
  }

  listen(topic: Topic): Promise<void> {
    const uid = topic.slice(2);
    if (topic === presenceTopic(uid)) this.#watched.add(uid);
    return this.#topics.listen(topic);
  }

  subscribe(topic: Topic): Promise<void> {
    return this.#topics.subscribe(topic);
  }

  unlisten(topic: Topic): void {
    const uid = topic.slice(2);
    if (topic === presenceTopic(uid)) this.#watched.delete(uid);
    this.#topics.unlisten(topic);
  }

  barrier(): Promise<void> {
    return this.#topics.barrier();
  }

  recovery(
    ...asked: Parameters<Cluster["recovery"]>
  ): Promise<void> | undefined {
    return this.#topics.recovery(...asked);
  }

  delivered(): Promise<void> | undefined {
    return this.#topics.delivered();
  }

  get incarnation(): Incarnation {
    return this.#registry.incarnation;
  }

  isLive(incarnation: Incarnation): MaybePromise<boolean> {
    return this.#registry.isLive(incarnation);
  }

  async heartbeat(): Promise<void> {
    await this.#registry.refresh();
    this.#registry.assertBeating();
  }

  async nodes(): Promise<readonly NodeInfo[]> {
    return this.#registry.nodes();
  }

  /** A node died: nobody else says which users it served, so whoever is watched here may be offline now. */
  #doubtPresence(): void {
    for (const uid of this.#watched) this.#listener({ kind: "presence", uid });
  }
}
