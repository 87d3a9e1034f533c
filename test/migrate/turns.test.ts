// Migrations by several processes, failures of a migration, and its reported status and progress.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import t, { type Test } from "tap";
import { Lease } from "../../src/migrate/lease.ts";
import { Progress } from "../../src/migrate/progress.ts";
import { RedisLink } from "../../src/redis/link.ts";
import { codeOf, draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { fill } from "./data.ts";
import { mover, redisStore } from "./mover.ts";

t.test(
  "one of several processes migrates the data, and the others wait until it has finished",
  async (t) => {
    const from = testFolder(t);
    const store = await openStore(t, from);
    await fill(store, () => {});
    await store.close();
    const redis = redisSettings((await startRedis(t)).url);
    const migrations = Array.from({ length: 3 }, () => mover({ from, redis }));
    const waiting = mover({ from: "", redis });
    t.equal(await waiting.isPending(), false); // no migration has started
    const [pending] = await Promise.all(migrations.map((migration) => migration.isPending()));
    t.equal(pending, true);
    await Promise.all(migrations.map((migration) => migration.run()));
    const states = migrations.map(({ state }) => state.status).sort();
    t.same(states, ["completed", "migrated", "migrated"]);
  },
);

t.test("a folder that a node uses is not migrated until the node has stopped", async (t) => {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await store.append(draftOf());
  const redis = redisSettings((await startRedis(t)).url);
  const migration = mover({ from, redis });
  t.equal(await codeOf(migration.once()), "unavailable");
  t.match(migration.state, {
    ...{ status: "failed", lastErr: /in use by process/, tryCount: 1 },
  });
  const waiter = mover({ from: "", redis });
  t.equal(await waiter.isPending(), false); // nothing was written to Redis
  await store.close();
  await migration.run();
  t.match(migration.state, { status: "completed", lastErr: null, tryCount: 2 });
  const migrated = await redisStore(t, redis, Date.now);
  t.equal(await migrated.headSeq("2:g"), 1);
});

t.test(
  "a missing folder and an unreachable Redis are reported in the lastErr of a migration",
  async (t) => {
    const server = await startRedis(t);
    const redis = redisSettings(server.url);
    const missing = mover({ from: "/nowhere", redis });
    t.equal(await codeOf(missing.once()), "unavailable");
    t.match(missing.state.lastErr, /^The folder \/nowhere /);
    await server.stop();
    const unreachable = mover({ from: "/nowhere", redis });
    t.equal(await unreachable.isPending(), true);
    t.equal(await codeOf(unreachable.once()), "unavailable");
    t.match(unreachable.state, {
      ...{ status: "failed", lastErr: /Redis cannot be used/, tryCount: 1 },
    });
    t.equal(await codeOf(unreachable.once()), "unavailable");
    t.equal(unreachable.state.tryCount, 2);
    unreachable.close();
    t.equal(await codeOf(unreachable.run()), "unavailable", "closing ends the retries");
  },
);

t.test("a migration is not retried after an error that retrying cannot fix", async (t) => {
  const server = await startRedis(t);
  const redis = redisSettings(server.url);
  await server.client().set("jd:{all}:format", "jindou 99");
  const migration = mover({ from: "/nowhere", redis });
  t.equal(await codeOf(migration.isPending()), "internal");
  t.equal(await codeOf(migration.run()), "internal");
  t.match(migration.state, { status: "failed", lastErr: /format 99/ });
});

t.test(
  "a migration does not start while a node serves, and a node does not serve during a migration",
  async (t) => {
    const { from, redis, client } = await folderAndRedis(t);
    const waiter = mover({ from: "", redis });
    t.equal(await waiter.isPending(), false);
    const node = await joinedNode(t, client);
    t.equal(await codeOf(waiter.assertNoneBegan()), undefined);
    const refused = mover({ from, redis, deadAfterMs: 60_000 });
    const refusal = codeOf(refused.once());
    while ((await client.exists(LEASE)) === 0);
    t.equal(await codeOf(waiter.assertNoneBegan()), "unavailable"); // a node that starts now stops again
    node.startHeartbeats();
    t.equal(await refusal, "internal");
    t.match(refused.state.lastErr, /The node "one" uses this Redis/);
    t.equal(await client.exists(RECORD), 0); // no process waits for the migration
    node.stopHeartbeats();
    t.equal(await waiter.isPending(), false);
    t.equal(await codeOf(waiter.assertNoneBegan()), undefined);
    t.equal(await client.zcard("jd:{all}:beats"), 1); // the dead node is still registered
    for (const name of ["sessions", "logins", "ended"])
      await client.hset(`jd:{u:a}:b}:${name}`, "a", "session of the dead node");
    const migration = mover({ from, redis });
    await migration.once();
    t.equal(migration.state.status, "completed");
    t.equal(await codeOf(waiter.assertNoneBegan()), undefined); // the migration is done
    t.equal(await client.zcard("jd:{all}:beats"), 0);
    t.equal(await client.hlen("jd:{all}:nodes"), 0);
  },
);

t.test("a migration first waits out the longest cluster.deadAfterMs of all nodes", async (t) => {
  const { from, redis, client } = await folderAndRedis(t);
  const timings = { "cluster.deadAfterMs": 60_000 };
  const node = await joinedNode(t, client, JSON.stringify({ nodeId: "one", timings }));
  const refused = mover({ from, redis, deadAfterMs: 100 });
  const refusal = codeOf(refused.once());
  while ((await client.exists(LEASE)) === 0);
  await pause(500); // longer than the limit of the migration itself
  t.equal(await client.exists(RECORD), 0);
  node.startHeartbeats();
  t.equal(await refusal, "internal");
  t.match(refused.state.lastErr, /The node "one" uses this Redis/);
});

t.test(
  "a node waits while another process holds the migration lease, even if no migration has started",
  async (t) => {
    const { from, redis, client } = await folderAndRedis(t);
    await client.set(LEASE, "another");
    const node = mover({ from: "", redis });
    t.equal(await node.isPending(), true);
    t.equal(await codeOf(node.assertNoneBegan()), "unavailable");
    const undecided = codeOf(node.assertNoneBeganMeanwhile());
    await client.del(LEASE);
    t.equal(await undecided, undefined);
    t.equal(await node.isPending(), false);
    await node.run(); // there is no migration
    await client.hset(RECORD, { v: 1, began: 1, source: "folder" });
    t.equal(await codeOf(node.assertNoneBeganMeanwhile()), "unavailable");
    await client.del(RECORD);
    const migration = mover({ from, redis });
    await migration.once();
    t.equal(migration.state.status, "completed");
    t.equal(await codeOf(node.assertNoneBeganMeanwhile()), undefined);
  },
);

const RECORD = "jd:{all}:migration";
const LEASE = "jd:{all}:migrating";

/** Creates the folder of a closed store with a message, and an empty Redis. */
async function folderAndRedis(t: Test) {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await store.append(draftOf());
  await store.close();
  const server = await startRedis(t);
  return { from, redis: redisSettings(server.url), client: server.client() };
}

/** Registers a node, whose heartbeats the test starts and stops. */
async function joinedNode(t: Test, client: Redis, announcement = "its record") {
  let at = 1;
  let timer: NodeJS.Timeout | undefined;
  const beat = () => client.zadd("jd:{all}:beats", at++, "one:life");
  let lastBeat: Promise<unknown> = client.hset("jd:{all}:nodes", "one:life", announcement);
  await lastBeat;
  await beat();
  const stopHeartbeats = () => clearInterval(timer);
  t.teardown(async () => {
    stopHeartbeats();
    await lastBeat; // the client is closed next, which would reject a heartbeat without a reply
  });
  const startHeartbeats = () => {
    timer = setInterval(() => {
      lastBeat = beat();
    }, 20);
  };
  return { startHeartbeats, stopHeartbeats };
}

t.test(
  "data that differs between the folder and Redis is copied again, and a difference that remains is reported",
  async (t) => {
    const from = testFolder(t);
    const store = await openStore(t, from);
    await fill(store, () => {});
    await store.close();
    const server = await startRedis(t);
    const client = server.client();
    const redis = redisSettings(server.url);
    const keyOf = async (name: string) => {
      const [key] = await client.keys(`jd:{*}:${name}`);
      if (key === undefined) throw new Error(`Redis has no key named ${name}`);
      return key;
    };
    const changes: Readonly<Record<string, () => Promise<unknown>>> = {
      "a foreign key": () => client.hset("jd:{x}:none", "a", "b"),
      "no device": async () => client.del("jd:{u:bob}:devices"),
      "no number": async () => client.del(await keyOf("dedupe:2:g\nalice\nn0")),
      "another seq": async () => client.hset(await keyOf("head:2:g"), "@bob", "1"),
      "a stranger's seq": async () => client.hset(await keyOf("head:2:g"), "@stranger", "1"),
      "no message": async () => {
        const log = await keyOf("log:2:g");
        const [[entryId] = [""]] = await client.xrange(log, "7", "7");
        return client.xdel(log, entryId);
      },
      "a stranger": async () => client.sadd(await keyOf("permanent:2:g"), "stranger"),
    };
    const outcomes: Record<string, readonly string[]> = {};
    const errors: Record<string, readonly (string | null)[]> = {};
    for (const [name, change] of Object.entries(changes)) {
      await client.flushall();
      await mover({ from, redis }).once();
      await client.hdel("jd:{all}:migration", "done");
      await change();
      const attempts = [mover({ from, redis }), mover({ from, redis })];
      const outcome: string[] = [];
      for (const migration of attempts)
        outcome.push((await codeOf(migration.once())) ?? migration.state.status);
      outcomes[name] = outcome;
      errors[name] = attempts.map(({ state }) => state.lastErr);
    }
    t.same(outcomes, {
      "a foreign key": ["completed", "migrated"],
      "no device": ["internal", "completed"],
      "no number": ["internal", "completed"],
      "another seq": ["internal", "completed"],
      "a stranger's seq": ["internal", "internal"],
      "no message": ["internal", "completed"], // the log is written again
      "a stranger": ["internal", "internal"], // a migration removes nothing
    });
    t.match(
      errors["no message"]?.[0],
      /next attempt copies everything again.*log:2:g" differs.*messages: .* \d+, Redis/,
    );
    t.match(errors["a stranger"], [
      /next attempt copies everything again.*: subscribers: the folder has 15, Redis 16$/,
      /even after everything was copied again.*: subscribers: the folder has 15, Redis 16$/,
    ]);
  },
);

t.test("a migration lease is held by one process until that process releases it", async (t) => {
  const { url } = await startRedis(t);
  const link = new RedisLink(redisSettings(url), {
    ...{ name: "lease", onError() {} },
  });
  await link.start();
  t.teardown(() => link.close());
  const [first, second] = [new Lease(link), new Lease(link)];
  t.equal(await first.acquire(), true);
  t.equal(await second.acquire(), false);
  await second.release(); // has no effect
  first.assertHeld();
  await first.renew();
  await first.release();
  t.equal(await second.acquire(), true);
  await second.release();
});

t.test(
  "the progress of a migration is shown as a bar on a terminal and as lines elsewhere",
  async (t) => {
    for (const isTTY of [true, false]) {
      let nowMs = 0;
      let text = "";
      const progress = new Progress(
        {
          ...{ isTTY, columns: 80 },
          write(piece) {
            text += piece;
          },
        },
        () => nowMs,
      );
      progress.show({ step: "user", done: 0, total: 10 });
      nowMs += 5000;
      progress.show({ step: "user", done: 5, total: 10 });
      nowMs += 1;
      progress.show({ step: "user", done: 6, total: 10 }); // too soon to be shown
      progress.show({ step: "user", done: 10, total: 10 });
      progress.end();
      const bar = isTTY ? /\[#{12}\.{12}\] / : /^/;
      t.match(text, new RegExp(`${bar.source}user 5/10 \\(50 %\\), 1/s, 5 s left`, "m"));
      t.notMatch(text, /6\/10/);
      t.match(text, /user 10\/10 \(100 %\)\n$/);
    }
  },
);
