// A cluster node on Redis: combines its topics with the node registry. Must never close the link to
// Redis, because the store shares the link and the link's creator closes it later.

import { isTransient } from "../../broker/errors.ts";
import { presenceTopic } from "../../broker/model.ts";
import type { Cluster, ClusterEvent, Incarnation, ResyncHandler } from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import { deleteUnusedLibraries } from "../../redis/unused-libraries.ts";
import { createNodeDescription, type NodeDetails } from "../node-description.ts";
import { Registry, type RegistryPorts } from "./nodes/registry.ts";
import type { TopicsResync } from "./topics/topics-ports.ts";

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
  onEvent(listener: (event: ClusterEvent) => void, resync: TopicsResync): void;
}

export interface RedisClusterPorts
  extends Pick<
    RegistryPorts,
    | "library"
    | "heartbeatMs"
    | "agreement"
    | "startClockComparison"
    | "onNewIncarnation"
    | "onError"
  > {
  readonly link: RedisLink;
  readonly topics: ClusterTopics;
  readonly about: NodeDetails;
}

export function createRedisCluster(ports: RedisClusterPorts): Cluster {
  const { link, topics, about, onError } = ports;
  const { nodeId } = about;
  const describe = createNodeDescription(about);
  const registry = new Registry({ ...ports, nodeId, describe });
  const watched = new Set<string>();
  let listener: (event: ClusterEvent) => void = () => {};
  let resync: Pick<ResyncHandler, "beat" | "evicted"> = { beat() {}, evicted() {} };
  let wasDisconnected = false;

  /** Deletes the libraries that no live node uses, if every live node announces its library. */
  function deleteLibraries(): void {
    const used = registry.libraries();
    if (used === undefined) return;
    deleteUnusedLibraries(link, used).catch((error: unknown) => {
      if (!isTransient(error)) onError(error, "Could not delete the libraries of earlier builds");
    });
  }

  registry.setListener({
    onBeat(isNew) {
      const isAnew = isNew || wasDisconnected;
      wasDisconnected = false;
      resync.beat(isAnew);
    },
    /**
     * Deletes unused libraries. Reports a `missed` event for every watched user, because any of
     * them may be offline now.
     */
    onDeath() {
      deleteLibraries();
      for (const uid of watched) listener({ kind: "missed", topic: presenceTopic(uid) });
    },
    onEvicted: () => resync.evicted(),
  });
  link.onChange((isUp) => {
    wasDisconnected = true;
    if (isUp) registry.refresh().catch(() => {}); // the next heartbeat tries again
  });
  return {
    ...topics,
    nodeId,
    deliversAll: false,
    get incarnation(): Incarnation {
      return registry.incarnation;
    },
    onEvent(newListener, handler) {
      listener = newListener;
      resync = handler;
      topics.onEvent(newListener, {
        silentSinceMs: () => registry.silentSinceMs(),
        judgeUsers: (uids) => handler.judgeUsers(uids),
        judgeGroup: handler.judgeGroup,
      });
    },
    async start() {
      await link.start();
      await topics.start();
      await registry.start();
      deleteLibraries();
    },
    async close() {
      await registry.close();
      await topics.close();
    },
    async ping() {
      registry.assertBeating();
      await topics.ping();
      await link.ping();
    },
    listen(...names) {
      for (const topic of names) {
        const uid = topic.slice(2);
        if (topic === presenceTopic(uid)) watched.add(uid);
      }
      return topics.listen(...names);
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
