// Contract of `Cluster` in `broker/ports.ts`, a suite that every driver runs. Every test uses uids
// of its own, so that drivers may share one server.

import type { Test } from "tap";
import { userTopic } from "../../src/broker/model.ts";
import { events } from "./cluster-events.ts";
import { type NodeDriver, uniqueUid } from "./cluster-fixture.ts";

/** Runs the whole contract against the driver. */
export function clusterContract(t: Test, driver: NodeDriver): void {
  t.test(`${driver.name}: published events are delivered`, (t) => events(t, driver));
  t.test(`${driver.name}: the incarnations of running nodes are live`, (t) => liveness(t, driver));
  t.test(`${driver.name}: a node responds to a ping, and may be closed twice`, (t) =>
    lifeCycle(t, driver),
  );
}

async function liveness(t: Test, driver: NodeDriver): Promise<void> {
  const [first, second] = [await driver.open(t), await driver.open(t)];

  t.test("the incarnation of each running node is live", async (t) => {
    for (const { cluster } of [first, second]) {
      t.equal(await first.cluster.isLive(cluster.incarnation), true);
      await t.resolves(cluster.heartbeat());
    }
  });

  t.test("an unknown incarnation is not live", async (t) => {
    const { cluster } = first;
    t.equal(await cluster.isLive(`${cluster.nodeId}:earlier`), false);
    t.equal(await cluster.isLive("nobody:0"), false);
  });
}

async function lifeCycle(t: Test, driver: NodeDriver): Promise<void> {
  const { cluster } = await driver.open(t);
  await t.resolves(cluster.ping(), "a started node responds");
  cluster.unlisten(userTopic(uniqueUid()));
  await cluster.close();
  await t.resolves(cluster.close(), "a second close has no effect");
}
