// Nodes on Redis for the delivery contract: real topics, store and directory, whose connections all
// go through network. State: the nodes.

import { randomUUID } from "node:crypto";
import { bucketOf } from "../../../src/redis/keys.ts";
import { idCounterOf } from "../../../src/store/redis/steps/channel-names.ts";
import type { DeliveryDriver, DeliveryNode } from "../../contract/delivery-fixture.ts";
import type { FaultyNetwork } from "../../support/faulty-network.ts";
import { redisSettings } from "../../support/redis.ts";
import { startWholeNode, type WholeNode } from "./whole-node.ts";

/** That a test stops a node's connection, or the machine is busy, makes it no dead one. */
const BEATS = { heartbeatMs: 500, deadAfterMs: 60_000 };
const TIMEOUT_MS = 10_000;

/** On the server, or the Cluster, behind the network. */
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
      const whole = await startWholeNode(about, judge);
      t.teardown(() => whole.close());
      const { cluster, store, events } = whole;
      const node = { cluster, store, events };
      nodes.set(node, whole);
      return node;
    },
    sweep: async (node) => (await nodes.get(node)?.store.sweep()) ?? 0,
    async failOver(node, key, { publications, kept }) {
      const link = nodes.get(node)?.link;
      if (link === undefined) throw new Error("no node of this driver");
      const [head, log] = ["head", "log"].map((part) => link.keys.channel(part, key)) as [
        string,
        string,
      ];
      if (kept) {
        const seq = Number(await link.call("hget", head, "seq"));
        const left = seq - publications;
        const lost = (await link.call("xrange", log, left + 1, seq)) as [
          ...[place: string, ...unknown[]],
        ][];
        for (const [place] of lost) await link.call("xdel", log, place);
        await link.call("xsetid", log, `${left}-${Number.MAX_SAFE_INTEGER}`);
        await link.call("hset", head, "seq", left);
      }
      await link.call("hincrby", head, "pub", -publications);
      const last = await link.call("xrevrange", log, "+", "-", "COUNT", 1);
      const [[place] = ["0-0"]] = last as [place: string][];
      const ids = idCounterOf(link, bucketOf(key));
      const lastId = `${place}`.split("-")[1] ?? 0;
      await link.call("set", ids.key, lastId);
      if (await link.call("hexists", head, "newest"))
        await link.call("hset", head, "newest", lastId);
    },
  };
}
