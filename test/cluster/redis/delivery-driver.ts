// Driver of the delivery contract: nodes on Redis with real topics, store and session directory.
// All their connections pass through a network that tests can break. Owns the nodes.

import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { idCounterOf } from "../../../src/redis/id-counters.ts";
import type { DeliveryDriver, DeliveryNode } from "../../contract/delivery-fixture.ts";
import type { FaultyNetwork } from "../../support/faulty-network.ts";
import { redisSettings } from "../../support/redis.ts";
import { startWholeNode, type WholeNode } from "./whole-node.ts";

/**
 * Heartbeat settings. `deadAfterMs` is long, so that a node does not count as dead when a test
 * holds its connection or the machine is busy.
 */
const BEATS = { heartbeatMs: 500, deadAfterMs: 60_000 };
const TIMEOUT_MS = 10_000;

/** Creates the driver for the Redis server or Redis Cluster on the other side of the network. */
export function deliveryDriver(
  name: string,
  network: FaultyNetwork,
  { isCluster }: { readonly isCluster: boolean },
): DeliveryDriver {
  const nodes = new WeakMap<DeliveryNode, WholeNode>();
  return {
    ...{ name, network, publishesPerUser: isCluster },
    async open(t, { judge, prefix = "d", aheadMs = 0 } = {}) {
      const settings = redisSettings(network.url, {
        ...{ prefix, cluster: isCluster, timeoutMs: TIMEOUT_MS },
      });
      const nodeId = `n-${randomUUID()}`;
      const clock = () => Date.now() + aheadMs;
      const about = { nodeId, settings, clock, ...BEATS };
      const wholeNode = await startWholeNode(about, judge);
      t.teardown(() => wholeNode.close());
      const { cluster, store, events } = wholeNode;
      const node = { cluster, store, events };
      nodes.set(node, wholeNode);
      return node;
    },
    sweep: async (node) => (await nodes.get(node)?.store.sweep()) ?? 0,
    async failOver(node, key, { publications, kept }) {
      const link = nodes.get(node)?.link;
      if (link === undefined) throw new Error("the node was not opened by this driver");
      // A real fail-over takes longer than a millisecond. Within one, an id would be assigned again.
      await pause(2);
      const [head, log] = ["head", "log"].map((part) => link.keys.channel(part, key)) as [
        string,
        string,
      ];
      if (kept) {
        const seq = Number(await link.call("hget", head, "seq"));
        const remainingSeq = seq - publications;
        const lostEntries = (await link.call("xrange", log, remainingSeq + 1, seq)) as [
          ...[place: string, ...unknown[]],
        ][];
        for (const [place] of lostEntries) await link.call("xdel", log, place);
        await link.call("xsetid", log, `${remainingSeq}-${Number.MAX_SAFE_INTEGER}`);
        await link.call("hset", head, "seq", remainingSeq);
      }
      await link.call("hincrby", head, "pub", -publications);
      const newestEntries = await link.call("xrevrange", log, "+", "-", "COUNT", 1);
      const [[place] = ["0-0"]] = newestEntries as [place: string][];
      const ids = idCounterOf(link, bucketOf(key));
      const lastId = `${place}`.split("-")[1] ?? 0;
      await link.call("set", ids.key, lastId);
      if (await link.call("hexists", head, "newest"))
        await link.call("hset", head, "newest", lastId);
    },
  };
}
