// The estimate of a server's clock after a reply that this node read late. The tests call the clock
// directly, because with a whole store, one late reply among many would show only as a rare write
// that is rejected as too late.

import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import t, { type Test } from "tap";
import { ServerClocks } from "../../src/redis/server-clock.ts";
import { startRedis } from "../support/redis.ts";

const STALL_MS = 400;
const WAIT_MS = 20_000;
/**
 * Tolerance of the estimate. A reply on this machine arrives within this time, even under load, and
 * the stall takes twice as long.
 */
const TOLERANCE_MS = STALL_MS / 2;

/** Keeps the event loop from reading replies. */
function stall(): void {
  const until = performance.now() + STALL_MS;
  while (performance.now() < until);
}

t.test(
  "a TIME reply that is read late does not set back the estimate of the clock of Redis",
  async (t) => {
    const redis = await startRedis(t);
    const server = redis.client();
    const clocks = new ServerClocks({ servers: () => [server], maxAgeMs: 60_000 });
    t.equal(clocks.now(server), undefined, "the clock is unknown before the first reply");
    // Both the server and this process read the clock of this machine.
    const behindMs = () => Date.now() - (clocks.now(server) ?? 0);
    // On a busy machine, a reply may be late although nothing in this process delays it.
    const limitMs = performance.now() + WAIT_MS;
    do await clocks.ask(server);
    while (behindMs() > TOLERANCE_MS / 4 && performance.now() < limitMs);
    for (const isInTime of [true, false, true]) {
      const asking = clocks.ask(server);
      if (!isInTime) setImmediate(stall); // the TIME command has been sent by then
      await asking;
      t.ok(behindMs() < TOLERANCE_MS, `the estimate is ${behindMs().toFixed(0)} ms behind`);
      t.ok(behindMs() > -TOLERANCE_MS, "the estimate does not run ahead");
    }
  },
);

t.test(
  "the clock of a Redis server is unknown after the connection to that server was closed",
  async (t) => {
    const redis = await startRedis(t);
    const server = redis.client();
    const clocks = new ServerClocks({ servers: () => [server], maxAgeMs: 60_000 });
    await clocks.ask(server);
    t.type(clocks.now(server), "number", "the clock is known while the server is connected");
    const closed = new Promise((resolve) => server.once("close", resolve));
    await redis.stop();
    await closed;
    t.equal(clocks.now(server), undefined, "the next connection may lead to another server");
  },
);

t.test("a node reads the clock of a Redis server periodically", async (t) => {
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

/** Starts a server that answers TIME with this time, and every other command with OK. */
async function startClock(t: Test, timeMs: number): Promise<Redis> {
  const server = createServer((socket) => {
    socket.on("data", (data) => {
      const commands = String(data).match(/\$\d+\r\n[a-z]+\r\n/gi) ?? [];
      for (const [i, command] of commands.entries())
        if (/time/i.test(command))
          socket.write(`*2\r\n$10\r\n${Math.floor(timeMs / 1000)}\r\n$1\r\n0\r\n`);
        else if (i === 0) socket.write("+OK\r\n");
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const client = new Redis({ port, enableReadyCheck: false, disableClientInfo: true });
  t.teardown(() => {
    client.disconnect();
    server.close();
  });
  return client;
}

t.test("the time of a Redis server whose clock shows a time after 2080 is not used", async (t) => {
  for (const [year, isUsed] of [
    [2079, true],
    [2081, false],
    [2100, false],
  ] as const) {
    const server = await startClock(t, Date.UTC(year, 0, 1));
    const clocks = new ServerClocks({ servers: () => [server], maxAgeMs: 60_000 });
    if (isUsed) await clocks.ask(server);
    else await t.rejects(clocks.ask(server), { message: /its clock shows 2/ });
    t.equal(clocks.now(server) !== undefined, isUsed, `${year}`);
  }
});
