// The contract of `Cluster` in broker/ports.ts, as a suite every driver runs. Uids are made unique
// per case, so that a driver with shared storage may run it against one server.

import type { Test } from "tap";
import { userTopic } from "../../src/broker/model.ts";
import { events } from "./cluster-events.ts";
import { type NodeDriver, uniqueUid } from "./cluster-fixture.ts";

/** Runs the whole contract against the driver. */
export function clusterContract(t: Test, driver: NodeDriver): void {
  t.test(`${driver.name}: events`, (t) => events(t, driver));
  t.test(`${driver.name}: nodes that live`, (t) => liveness(t, driver));
  t.test(`${driver.name}: life cycle`, (t) => lifeCycle(t, driver));
}

async function liveness(t: Test, driver: NodeDriver): Promise<void> {
  const [one, other] = [await driver.open(t), await driver.open(t)];

  t.test("a node's own incarnation lives, others see it", async (t) => {
    for (const { cluster } of [one, other]) {
      t.equal(await one.cluster.isLive(cluster.incarnation), true);
      await t.resolves(cluster.heartbeat());
    }
  });

  t.test("one that nobody knows does not", async (t) => {
    const { cluster } = one;
    t.equal(await cluster.isLive(`${cluster.nodeId}:earlier`), false);
    t.equal(await cluster.isLive("nobody:0"), false);
  });
}

async function lifeCycle(t: Test, driver: NodeDriver): Promise<void> {
  const { cluster } = await driver.open(t);
  await t.resolves(cluster.ping(), "a started node answers");
  cluster.unlisten(userTopic(uniqueUid()));
  await cluster.close();
  await t.resolves(cluster.close(), "closing twice is closing");
}
