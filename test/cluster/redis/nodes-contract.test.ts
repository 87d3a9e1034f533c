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
  const wholes = new WeakMap<RegisteredNode, WholeNode>();
  const linkOf = (node: RegisteredNode) => {
    const whole = wholes.get(node);
    if (whole === undefined) throw new Error("the node was not opened by this driver");
    return whole.link;
  };
  return {
    ...{ name, heartbeatMs: HEARTBEAT_MS },
    async open(t, prefix, options) {
      const settings = redisSettings(url, { prefix });
      const beats = { heartbeatMs: HEARTBEAT_MS, ...options };
      const whole = await startWholeNode({ settings, ...beats });
      t.teardown(() => whole.close());
      const { cluster, close, link } = whole;
      const node = { cluster, close, kill: () => link.close() };
      wholes.set(node, whole);
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
      const own = incarnations.find((name) => name.toString().startsWith(node.cluster.nodeId));
      if (own === undefined) throw new Error("the node has no heartbeat in Redis");
      await call("zadd", beats, 1, own);
    },
  };
}

function boundTo(link: WholeNode["link"]) {
  return { keys: link.keys, call: link.call.bind(link) };
}

t.test("nodes on one Redis server fulfil the contract of the registry", async (t: Test) => {
  const { url } = await startRedis(t);
  registryContract(t, driverOf("redis", url));
});

t.test("nodes on a Redis Cluster fulfil the contract of the registry", async (t: Test) => {
  const { url } = await startRedisCluster(t);
  registryContract(t, driverOf("redis cluster", url));
});
