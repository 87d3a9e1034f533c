// A node of a cluster on Redis: topics and registry put together. State: who listens to this node's
// events, the presence topics it listens to, whether Redis was away since the last heartbeat; the
// parts hold theirs. The link to Redis is shared with the store: its creator closes it, after this.

import { presenceTopic } from "../../broker/model.ts";
import type { Cluster, ClusterEvent, Incarnation, ResyncHandler } from "../../broker/ports.ts";
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
    "heartbeatMs" | "deadAfterMs" | "asksTime" | "onNewIncarnation" | "onError"
  > {
  readonly link: RedisLink;
  readonly topics: ClusterTopics;
  readonly about: AboutNode;
}

export function createRedisCluster(parts: RedisClusterParts): Cluster {
  const { link, topics, about } = parts;
  const { nodeId } = about;
  const describe = createNodeDescription(about);
  const registry = new Registry({ ...parts, nodeId, describe });
  /** Users whose presence this node listens to. */
  const watched = new Set<string>();
  let listener: (event: ClusterEvent) => void = () => {};
  let resync: Pick<ResyncHandler, "beat"> = { beat() {} };
  let wasAway = false;
  registry.listener({
    onBeat(isNew) {
      const isAnew = isNew || wasAway;
      wasAway = false;
      resync.beat(isAnew);
    },
    /**
     * Nobody else says which users the node served: each that is watched here may be offline now.
     */
    onDeath() {
      for (const uid of watched) listener({ kind: "presence", uid });
    },
  });
  link.onChange((isUp) => {
    wasAway = true;
    if (isUp) registry.refresh().catch(() => {}); // else the next heartbeat
  });
  return {
    ...topics,
    nodeId,
    get incarnation(): Incarnation {
      return registry.incarnation;
    },
    onEvent(given, givenResync) {
      listener = given;
      resync = givenResync;
      topics.onEvent(given, {
        silentSinceMs: () => registry.silentSinceMs(),
        judgeUsers: (uids) => givenResync.judgeUsers(uids),
        judgeGroup: givenResync.judgeGroup,
      });
    },
    /**
     * Joins the cluster. Throws an Error with a message for the operator when another process lives
     * under this node's id.
     */
    async start() {
      await link.start();
      await topics.start();
      await registry.start();
    },
    /**
     * Leaves the cluster; sessions that are still open count as offline from now on. Safe to call
     * twice.
     */
    async close() {
      await registry.close();
      await topics.close();
    },
    async ping() {
      registry.assertBeating();
      await topics.ping();
      await link.ping();
    },
    listen(topic) {
      const uid = topic.slice(2);
      if (topic === presenceTopic(uid)) watched.add(uid);
      return topics.listen(topic);
    },
    unlisten(topic) {
      const uid = topic.slice(2);
      if (topic === presenceTopic(uid)) watched.delete(uid);
      topics.unlisten(topic);
    },
    isLive: (incarnation) => registry.isLive(incarnation),
    async heartbeat() {
      await registry.refresh();
      registry.assertBeating();
    },
    nodes: async () => registry.nodes(),
  };
}
