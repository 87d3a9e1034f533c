// Redis is stopped, frozen and killed, one after the other, while two nodes are busy. Meanwhile
// every call is refused quickly and with a retryable code, sockets stay open, and no calls pile up.
// Afterwards every client catches up, and no acknowledged message is missing, duplicated or out of
// order.

import t from "tap";
import { measureStalls } from "../support/stalls.ts";
import { volume } from "../support/volume.ts";
import { AwayWorld } from "./redis-away-world.ts";

/** Number of calls on each node. */
const CALLS = volume(300);
/**
 * Upper bound for refusing all calls: longer than one call waits for Redis, but much shorter than
 * if the calls waited one after the other.
 */
const SLOW_MS = 3000;

async function timed<T>(act: () => Promise<T>): Promise<readonly [T, number]> {
  const startedMs = performance.now();
  return [await act(), performance.now() - startedMs];
}

const AWAY = [
  {
    title: "calls are refused and clients catch up when Redis is stopped and restarted",
    interrupt: (world: AwayWorld) => world.redis.stop(),
    restore: (world: AwayWorld) => world.redis.restart(),
  },
  {
    title:
      "calls are refused and clients catch up when Redis freezes for longer than a call may take",
    interrupt: async (world: AwayWorld) => world.redis.signal("SIGSTOP"),
    restore: async (world: AwayWorld) => world.redis.signal("SIGCONT"),
  },
  {
    title: "calls are refused and clients catch up when Redis is killed and restarted",
    interrupt: (world: AwayWorld) => world.redis.stop("SIGKILL"),
    restore: (world: AwayWorld) => world.redis.restart(),
  },
] as const;

t.test(
  "nodes survive outages of Redis without losing a client connection or an acknowledged message",
  async (t) => {
    const world = await AwayWorld.open(t);
    await world.progress(20);
    for (const { title, interrupt, restore } of AWAY)
      await t.test(title, async (t) => {
        await interrupt(world);
        for (const node of world.nodes) {
          const refused = await world.untilRefused(node);
          t.equal(refused.body.code, "unavailable");
          t.ok(Number(refused.headers.get("retry-after")) >= 1);
          t.equal((await node.call("/readyz")).status, 503);
          t.equal((await node.call("/healthz")).status, 200);
        }
        t.same(await world.socketCodes(), ["unavailable", "unavailable"]);
        const stalls = measureStalls(t);
        const [statuses, tookMs] = await timed(() => world.flood(CALLS));
        t.same([...new Set(statuses)], [503]);
        const [, usualMs] = await timed(() => world.flood(CALLS, "/healthz"));
        t.ok(
          tookMs < SLOW_MS + 5 * usualMs + 10 * stalls.totalMs(),
          `the calls are refused without waiting for each other, in ${tookMs} ms`,
        );
        t.ok((await world.inFlight()) < 100, "refused calls do not keep waiting for Redis");
        t.same(world.endedConnections(), [], "sockets stay open during the outage");
        await restore(world);
        await world.untilReady();
        await world.progress(20);
        await world.untilOnline();
        t.same(world.endedConnections(), [], "no client had to reconnect");
      });
    await world.finish();
    t.same(world.problems, [], "each reader got every message once and in order");
    t.ok(world.acknowledgedCount > 100, `${world.acknowledgedCount} messages were acknowledged`);
    t.same(world.endedConnections(), [], "no connection ended");
  },
);
