// Redis goes away under two busy nodes, three times and each time otherwise: ended, frozen, killed.
// Meanwhile everything is refused quickly and retryably, sockets stay and nothing piles up;
// afterwards everybody catches up: nothing acknowledged is missing, doubled or out of order.

import t from "tap";
import { measureStalls } from "../support/stalls.ts";
import { volume } from "../support/volume.ts";
import { AwayWorld } from "./redis-away-world.ts";

/** Of each node. */
const CALLS = volume(300);
/** Much longer than one call waits for Redis, and not as long as three in turn. */
const SLOW_MS = 3000;

async function timed<T>(act: () => Promise<T>): Promise<readonly [T, number]> {
  const startedMs = performance.now();
  return [await act(), performance.now() - startedMs];
}

const AWAY = [
  {
    how: "ended and started again",
    go: (world: AwayWorld) => world.redis.stop(),
    back: (world: AwayWorld) => world.redis.restart(),
  },
  {
    how: "frozen for longer than a call may take",
    go: async (world: AwayWorld) => world.redis.signal("SIGSTOP"),
    back: async (world: AwayWorld) => world.redis.signal("SIGCONT"),
  },
  {
    how: "killed and started again",
    go: (world: AwayWorld) => world.redis.stop("SIGKILL"),
    back: (world: AwayWorld) => world.redis.restart(),
  },
] as const;

t.test("Redis away", async (t) => {
  const world = await AwayWorld.open(t);
  await world.progress(20);
  for (const { how, go, back } of AWAY)
    await t.test(how, async (t) => {
      await go(world);
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
        `refused, not queued: ${tookMs} ms`,
      );
      t.ok((await world.inFlight()) < 100, "what was refused is over");
      t.same(world.gone(), [], "sockets stay");
      await back(world);
      await world.untilReady();
      await world.progress(20);
      await world.untilOnline();
      t.same(world.gone(), [], "nobody had to come back");
    });
  await world.finish();
  t.same(world.problems, []);
  t.ok(world.acknowledgedCount > 100, `${world.acknowledgedCount} messages`);
  t.same(world.gone(), []);
});
