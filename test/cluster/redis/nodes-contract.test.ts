// Nodes on Redis fulfil the contract of the node registry, on one server and on a Redis Cluster.

import t, { type Test } from "tap";
import {
  type RegisteredNode,
  type RegistryDriver,
  registryContract,
} from "../../contract/cluster-nodes.ts";
import { redisSettings, startRedis, startRedisCluster } from "../../support/redis.ts";
import { startWholeNode, type WholeNode } from "./whole-node.ts";

const HEARTBEAT_MS = 100;

function driverOf(name: string, url: string): RegistryDriver {
  const wholeNodes = new WeakMap<RegisteredNode, WholeNode>();
  const linkOf = (node: RegisteredNode) => {
    const wholeNode = wholeNodes.get(node);
    if (wholeNode === undefined) throw new Error("the node was not opened by this driver");
    return wholeNode.link;
  };
  return {
    ...{ name, heartbeatMs: HEARTBEAT_MS },
    async open(t, prefix, options) {
      const settings = redisSettings(url, { prefix });
      const beats = { heartbeatMs: HEARTBEAT_MS, ...options };
      const wholeNode = await startWholeNode({ settings, ...beats });
      t.teardown(() => wholeNode.close());
      const { cluster, close, link } = wholeNode;
      const node = { cluster, close, kill: () => link.close() };
      wholeNodes.set(node, wholeNode);
      return node;
    },
    async forgetNodes(node) {
      const { keys, call } = boundTo(linkOf(node));
      for (const part of ["beats", "nodes", "clock"]) await call("del", keys.shared(part));
    },
    async declareDead(node) {
      const { keys, call } = boundTo(linkOf(node));
      const beats = keys.shared("beats");
      const incarnations = (await call("zrange", beats, 0, -1)) as readonly Buffer[];
      const ownIncarnation = incarnations.find((name) =>
        name.toString().startsWith(node.cluster.nodeId),
      );
      if (ownIncarnation === undefined) throw new Error("the node has no heartbeat in Redis");
      await call("zadd", beats, 1, ownIncarnation);
    },
  };
}

function boundTo(link: WholeNode["link"]) {
  return { keys: link.keys, call: link.call.bind(link) };
}

t.test("nodes on one Redis server fulfil the contract of the node registry", async (t: Test) => {
  const { url } = await startRedis(t);
  registryContract(t, driverOf("redis", url));
});

t.test("nodes on a Redis Cluster fulfil the contract of the node registry", async (t: Test) => {
  const { url } = await startRedisCluster(t);
  registryContract(t, driverOf("redis cluster", url));
});
