// The number of calls to the store and the cluster that a connect makes. The number does not depend
// on the number of the user's groups, except that one call subscribes to a limited number of
// topics.

import { t } from "../support/suite.ts";
import { seeded } from "./random.ts";
import { World } from "./world.ts";

type Calls = Readonly<Record<string, number>>;

/** Counts the calls of the object's methods from now on. */
function countCalls(ports: object): Calls {
  const calls: Record<string, number> = {};
  for (const [name, method] of Object.entries(ports) as [string, (...args: unknown[]) => unknown][])
    Object.assign(ports, {
      [name](...args: unknown[]) {
        calls[name] = (calls[name] ?? 0) + 1;
        return method(...args);
      },
    });
  return calls;
}

async function callsOfConnect(groups: number): Promise<{ store: Calls; cluster: Calls }> {
  const world = new World(seeded(groups));
  for (let at = 0; at < groups; at++) world.server.changeMember(`g${at}`, "alice", true);
  const store = countCalls(world.server.store);
  const cluster = countCalls(world.server.cluster);
  const { session, isLive } = await world.live({ uid: "alice" });
  if (!isLive || session.groups.size !== groups) throw new Error("the session is not live");
  return { store, cluster };
}

t.test("a CONNECT makes the same store calls for 300 groups as for one group", async (t) => {
  const [few, many] = [await callsOfConnect(1), await callsOfConnect(300)];
  t.same(many.store, few.store, "calls of the store");
  t.same(many.store, { joinState: 1, groupsOf: 1 }, "memberships, inbox and streams together");
  t.equal(many.cluster.barrier, few.cluster.barrier);
  t.ok(Number(many.cluster.subscribe) <= 20, "topics are subscribed together");
});
