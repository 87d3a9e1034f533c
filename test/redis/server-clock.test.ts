// The estimate of a server's clock after a reply that this node read late. Tested at the part
// itself: at the store, one late reply among many shows only as a rare write that is rejected as
// too late.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { ServerClocks } from "../../src/redis/server-clock.ts";
import { startRedis } from "../support/redis.ts";

const STALL_MS = 400;
const WAIT_MS = 20_000;
/** More than a reply on this machine takes, also under load, and much less than the stall. */
const TOLERANCE_MS = STALL_MS / 2;

/** Keeps the event loop from reading replies. */
function stall(): void {
  const until = performance.now() + STALL_MS;
  while (performance.now() < until);
}

t.test(
  "a TIME reply that is read late does not set back the estimate of the server's clock",
  async (t) => {
    const redis = await startRedis(t);
    const server = redis.client();
    const clocks = new ServerClocks({ servers: () => [server], maxAgeMs: 60_000 });
    t.equal(clocks.now(server), undefined, "the clock is unknown before the first reply");
    // Both the server and this process read the clock of this machine.
    const behindMs = () => Date.now() - (clocks.now(server) ?? 0);
    for (const isInTime of [true, true, false, true, true]) {
      const asking = clocks.ask(server);
      if (!isInTime) setImmediate(stall); // the question has been sent by then
      await asking;
      t.ok(behindMs() < TOLERANCE_MS, `the estimate is ${behindMs().toFixed(0)} ms behind`);
      t.ok(behindMs() > -TOLERANCE_MS, "the estimate does not run ahead");
    }
  },
);

t.test("a server's clock is unknown after the connection to that server was closed", async (t) => {
  const redis = await startRedis(t);
  const server = redis.client();
  const clocks = new ServerClocks({ servers: () => [server], maxAgeMs: 60_000 });
  await clocks.ask(server);
  t.type(clocks.now(server), "number", "the clock is known while the server is connected");
  const closed = new Promise((resolve) => server.once("close", resolve));
  await redis.stop();
  await closed;
  t.equal(clocks.now(server), undefined, "the next connection may lead to another server");
});

t.test("a node asks every server for its time repeatedly", async (t) => {
  const redis = await startRedis(t);
  const [server, other] = [redis.client(), redis.client()];
  const clocks = new ServerClocks({ servers: () => [server], maxAgeMs: 100 });
  t.teardown(() => clocks.close());
  clocks.watch();
  const questions = async () => {
    const [, count = "0"] = /cmdstat_time:calls=(\d+)/.exec(await other.info("commandstats")) ?? [];
    return Number(count);
  };
  const until = performance.now() + WAIT_MS;
  while ((await questions()) < 5 && performance.now() < until) await pause(20);
  t.ok((await questions()) >= 5, "the server was asked at least five times");
});
