// The fence of writes: a call that reaches Redis after its deadline changes nothing, and nothing is
// written to a server whose clock the node does not know.

import { readdirSync, readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { RedisLink } from "../../src/redis/link.ts";
import { cannotRun } from "../../src/redis/lost-connection.ts";
import { loadScript, READ_COMMANDS } from "../../src/redis/script.ts";
import { codeOf } from "../contract/store-fixture.ts";
import { redisSettings, startRedis, startRedisCluster } from "../support/redis.ts";
import { startStallingProxy } from "../support/stalling-proxy.ts";

const SOURCES = new URL("../../src/", import.meta.url);
const DAY_MS = 24 * 60 * 60 * 1000;

const filesOf = (ending: string) =>
  readdirSync(SOURCES, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(ending))
    .map((name) => new URL(name, SOURCES));

interface LinkSettings {
  readonly url: string;
  readonly timeoutMs?: number;
  readonly maxClockAgeMs?: number;
}

async function openLink(t: Test, { url, timeoutMs = 1000, maxClockAgeMs = 5000 }: LinkSettings) {
  const errors: unknown[] = [];
  const link = new RedisLink(redisSettings(url, { timeoutMs }), {
    ...{ name: "test", maxClockAgeMs },
    onError: (error) => errors.push(error),
  });
  t.teardown(() => link.close());
  await link.start();
  return link;
}

t.test(
  "every Lua script that writes begins with the fence that checks its deadline, and scripts that only read have no fence",
  async (t) => {
    for (const file of filesOf(".lua")) {
      const text = readFileSync(file, "utf8");
      const commands = [...text.matchAll(/redis\.p?call\((?:'(\w+)')?/g)].map(([, name]) => name);
      if (commands.length === 0) continue; // a part of other scripts
      const isWriting =
        text.includes("write_when_full(") || // a function of shared.lua that writes
        commands.some((name) => name === undefined || !READ_COMMANDS.has(name));
      const script = loadScript(file);
      // `loadScript` drops functions that nothing calls, so a file that is only included has no
      // `redis.call`.
      if (script.source.includes("redis.call"))
        t.equal(script.source.startsWith("local server_now"), script.isWriting, script.name);
      if (!isWriting) t.notOk(script.isWriting, `${script.name} only reads`);
    }
  },
);

t.test("no source file sends a write command other than SPUBLISH without the fence", async (t) => {
  for (const file of filesOf(".ts")) {
    const text = readFileSync(file, "utf8");
    for (const [, command = ""] of text.matchAll(/\blink\s*\.call\(\s*"(\w+)"/g))
      t.ok(
        command === "spublish" || READ_COMMANDS.has(command.toUpperCase()),
        `${file.pathname.split("/src/")[1]}: ${command}`,
      );
  }
});

t.test("a write that reaches Redis after its deadline changes nothing", async (t) => {
  const redis = await startRedis(t);
  const proxy = await startStallingProxy(t, redis.port);
  const link = await openLink(t, { url: `redis://127.0.0.1:${proxy.port}`, timeoutMs: 500 });
  proxy.stall();
  t.equal(
    await codeOf(link.write("set", "late", "1")),
    "unavailable",
    "the write is not answered in time",
  );
  await pause(300);
  proxy.resume();
  const raw = redis.client();
  await pause(300);
  t.equal(await raw.get("late"), null, "the write did not run later");
  while ((await codeOf(link.write("set", "in-time", "1"))) !== undefined) await pause(20);
  t.equal(await raw.get("in-time"), "1", "the next write runs");
});

t.test("cannotRun resolves only after the deadline of the call", async (t) => {
  // Timers of Node.js fire early, which shows only with fractions of milliseconds.
  const delays = await Promise.all(
    Array.from({ length: 100 }, async (_, i) => {
      const untilMs = performance.now() + 3 + i / 7;
      await cannotRun(undefined, untilMs);
      return performance.now() - untilMs;
    }),
  );
  t.same(
    delays.filter((ms) => ms <= 0),
    [],
  );
});

t.test(
  "a write on a lost connection fails as soon as Redis has closed that connection",
  async (t) => {
    const redis = await startRedis(t);
    const proxy = await startStallingProxy(t, redis.port);
    const timeoutMs = 60_000;
    const link = await openLink(t, { url: `redis://127.0.0.1:${proxy.port}`, timeoutMs });
    const sinceMs = performance.now();
    proxy.stall();
    const lost = codeOf(link.write("set", "lost", "1"));
    await pause(300); // the write is in the network by then
    proxy.cut();
    t.equal(await lost, "unavailable");
    t.ok(
      performance.now() - sinceMs < timeoutMs / 2,
      "the caller does not wait until the deadline",
    );
    proxy.resume();
    await pause(300);
    t.equal(await redis.client().get("lost"), null, "the write did not run later");
  },
);

t.test("a write to a Redis that hangs past the write's deadline changes nothing", async (t) => {
  const redis = await startRedis(t);
  const link = await openLink(t, { url: redis.url, timeoutMs: 500 });
  redis.signal("SIGSTOP");
  t.equal(
    await codeOf(link.write("set", "late", "1")),
    "unavailable",
    "the write is not answered in time",
  );
  redis.signal("SIGCONT");
  await pause(300);
  t.equal(await redis.client().get("late"), null, "the write did not run later");
});

t.test(
  "writes are rejected while the clock of Redis is unknown, and reads are still answered",
  async (t) => {
    const redis = await startRedis(t);
    const proxy = await startStallingProxy(t, redis.port);
    const url = `redis://127.0.0.1:${proxy.port}`;
    const timeoutMs = 60_000;
    const link = await openLink(t, { url, timeoutMs, maxClockAgeMs: 200 });
    t.equal(await codeOf(link.write("set", "key", "1")), undefined, "a write succeeds at first");
    proxy.stall();
    await pause(400);
    const before = performance.now();
    t.equal(await codeOf(link.write("set", "key", "2")), "unavailable", "the write is refused");
    t.ok(
      performance.now() - before < timeoutMs / 2,
      "the write is refused long before redis.timeoutMs has passed",
    );
    const read = link.call("get", "key");
    proxy.resume();
    t.equal(String(await read), "1", "the read is answered");
    while ((await codeOf(link.write("set", "key", "3"))) !== undefined) await pause(20);
  },
);

t.test(
  "a write's deadline is measured by the clock of Redis, even if the node's clock is a day off",
  async (t) => {
    const redis = await startRedis(t);
    const link = await openLink(t, { url: redis.url });
    const realNow = Date.now;
    t.teardown(() => {
      Date.now = realNow;
    });
    for (const offsetMs of [-DAY_MS, DAY_MS]) {
      Date.now = () => realNow() + offsetMs;
      t.equal(await codeOf(link.write("set", "key", "1")), undefined, `off by ${offsetMs} ms`);
    }
  },
);

t.test(
  "a write after Redis' clock was set forward is rejected as too late, and the next write runs",
  async (t) => {
    const redis = await startRedis(t);
    const link = await openLink(t, { url: redis.url });
    await link.write("set", "key", "1");
    const realNow = performance.now.bind(performance);
    t.teardown(() => {
      performance.now = realNow;
    });
    performance.now = () => realNow() - 60_000; // looks like a step of Redis' clock
    t.equal(await codeOf(link.write("set", "key", "2")), "too_late");
    t.equal(String(await link.call("get", "key")), "1", "the late write changed nothing");
    t.equal(
      await codeOf(link.write("set", "key", "3")),
      undefined,
      "the new time is known at once",
    );
  },
);

t.test(
  "a node reads the clock of every primary of a Redis Cluster, so that each primary accepts writes",
  async (t) => {
    const { url } = await startRedisCluster(t);
    const link = await openLink(t, { url });
    for (let at = 0; at < 20; at++)
      t.equal(await codeOf(link.write("set", `{${at}}`, "1")), undefined, `slot of {${at}}`);
  },
);
