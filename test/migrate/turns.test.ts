// Who moves data when several processes want to, what happens when they cannot, and what they say
// of it.

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

t.test("of several at once one moves, the others wait for it", async (t) => {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await fill(store, () => {});
  await store.close();
  const redis = redisSettings((await startRedis(t)).url);
  const all = Array.from({ length: 3 }, () => mover({ from, redis }));
  const waiting = mover({ from: "", redis });
  t.equal(await waiting.isPending(), false); // nobody moves anything yet
  const [pending] = await Promise.all(all.map((one) => one.isPending()));
  t.equal(pending, true);
  await Promise.all(all.map((one) => one.run()));
  const states = all.map(({ state }) => state.status).sort();
  t.same(states, ["completed", "migrated", "migrated"]);
});

t.test("a folder that a node uses is not moved; when it is free the next try does", async (t) => {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await store.append(draftOf());
  const redis = redisSettings((await startRedis(t)).url);
  const move = mover({ from, redis });
  t.equal(await codeOf(move.once()), "unavailable");
  t.match(move.state, {
    ...{ status: "failed", lastErr: /in use by process/, tryCount: 1 },
  });
  const waiter = mover({ from: "", redis });
  t.equal(await waiter.isPending(), false); // Redis was not touched
  await store.close();
  await move.run();
  t.match(move.state, { status: "completed", lastErr: null, tryCount: 2 });
  const there = await redisStore(t, redis, Date.now);
  t.equal(await there.headSeq("2:g"), 1);
});

t.test("what is not there or cannot be reached is said", async (t) => {
  const server = await startRedis(t);
  const redis = redisSettings(server.url);
  const missing = mover({ from: "/nowhere", redis });
  t.equal(await codeOf(missing.once()), "unavailable");
  t.match(missing.state.lastErr, /no data of an embedded store/);
  await server.stop();
  const away = mover({ from: "/nowhere", redis });
  t.equal(await away.isPending(), true);
  t.equal(await codeOf(away.once()), "unavailable");
  t.match(away.state, {
    ...{ status: "failed", lastErr: /Redis cannot be used/, tryCount: 1 },
  });
  t.equal(await codeOf(away.once()), "unavailable");
  t.equal(away.state.tryCount, 2);
  away.close();
  t.equal(await codeOf(away.run()), "unavailable"); // and not for ever
});

t.test("what no retry can help is thrown", async (t) => {
  const server = await startRedis(t);
  const redis = redisSettings(server.url);
  await server.client().set("jd:{all}:format", "jindou 99");
  const move = mover({ from: "/nowhere", redis });
  t.equal(await codeOf(move.isPending()), "internal");
  t.equal(await codeOf(move.run()), "internal");
  t.match(move.state, { status: "failed", lastErr: /format 99/ });
});

t.test("of a node that begins to serve and a move one gives way", async (t) => {
  const { from, redis, client } = await folderAndRedis(t);
  const waiter = mover({ from: "", redis });
  t.equal(await waiter.isPending(), false);
  const node = await joins(t, client);
  t.equal(await codeOf(waiter.assertNoneBegan()), undefined);
  const refused = mover({ from, redis, deadAfterMs: 60_000 });
  const refusal = codeOf(refused.once());
  while ((await client.exists(LEASE)) === 0);
  t.equal(await codeOf(waiter.assertNoneBegan()), "unavailable"); // a node that begins now leaves
  node.lives();
  t.equal(await refusal, "internal");
  t.match(refused.state.lastErr, /node "one" runs on this Redis/);
  t.equal(await client.exists(RECORD), 0); // nobody waits for it
  node.dies();
  t.equal(await waiter.isPending(), false);
  t.equal(await codeOf(waiter.assertNoneBegan()), undefined);
  t.equal(await client.zcard("jd:{all}:beats"), 1); // nobody says that it died
  for (const part of ["sessions", "logins", "ended"])
    await client.hset(`jd:{u:a}:b}:${part}`, "a", "session of the dead");
  const move = mover({ from, redis });
  await move.once();
  t.equal(move.state.status, "completed");
  t.equal(await codeOf(waiter.assertNoneBegan()), undefined); // it is done
  t.equal(await client.zcard("jd:{all}:beats"), 0);
  t.equal(await client.hlen("jd:{all}:nodes"), 0);
});

t.test("a process that looks whether it may move is heeded while it has the lease", async (t) => {
  const { from, redis, client } = await folderAndRedis(t);
  await client.set(LEASE, "another");
  const node = mover({ from: "", redis });
  t.equal(await node.isPending(), true);
  t.equal(await codeOf(node.assertNoneBegan()), "unavailable");
  const undecided = codeOf(node.assertNoneBeganMeanwhile());
  await client.del(LEASE);
  t.equal(await undecided, undefined);
  t.equal(await node.isPending(), false);
  await node.run(); // there is nothing to wait for
  await client.hset(RECORD, { v: 1, began: 1, source: "folder" });
  t.equal(await codeOf(node.assertNoneBeganMeanwhile()), "unavailable");
  await client.del(RECORD);
  const move = mover({ from, redis });
  await move.once();
  t.equal(move.state.status, "completed");
  t.equal(await codeOf(node.assertNoneBeganMeanwhile()), undefined);
});

const RECORD = "jd:{all}:migration";
const LEASE = "jd:{all}:migrating";

/** A folder with a message, closed, and an empty Redis. */
async function folderAndRedis(t: Test) {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await store.append(draftOf());
  await store.close();
  const server = await startRedis(t);
  return { from, redis: redisSettings(server.url), client: server.client() };
}

/** Enters itself as a node, and gives signs of life until it dies without leaving. */
async function joins(t: Test, client: Redis) {
  let at = 1;
  let timer: NodeJS.Timeout | undefined;
  const sign = () => client.zadd("jd:{all}:beats", at++, "one:life");
  const dies = () => clearInterval(timer);
  await client.hset("jd:{all}:nodes", "one:life", "its record");
  await sign();
  t.teardown(dies);
  const lives = () => {
    timer = setInterval(() => void sign(), 20);
  };
  return { lives, dies };
}

t.test("what differs in Redis is found, and moved again", async (t) => {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await fill(store, () => {});
  await store.close();
  const server = await startRedis(t);
  const client = server.client();
  const redis = redisSettings(server.url);
  const keyOf = async (name: string) => {
    const [key] = await client.keys(`jd:{*}:${name}`);
    if (key === undefined) throw new Error(`no ${name}`);
    return key;
  };
  const spoils: Readonly<Record<string, () => Promise<unknown>>> = {
    "a foreign key": () => client.hset("jd:{x}:none", "a", "b"),
    "no device": async () => client.del("jd:{u:bob}:devices"),
    "no number": async () => client.del(await keyOf("dedupe:2:g\nalice\nn0")),
    "another seq": async () => client.hset(await keyOf("head:2:g"), "@bob", "1"),
    "a stranger's seq": async () => client.hset(await keyOf("head:2:g"), "@stranger", "1"),
    "no message": async () => {
      const log = await keyOf("log:2:g");
      const [[place] = [""]] = await client.xrange(log, "7", "7");
      return client.xdel(log, place);
    },
    "a stranger": async () => client.sadd(await keyOf("permanent:2:g"), "stranger"),
  };
  const outcomes: Record<string, readonly string[]> = {};
  const said: Record<string, readonly (string | null)[]> = {};
  for (const [name, spoil] of Object.entries(spoils)) {
    await client.flushall();
    await mover({ from, redis }).once();
    await client.hdel("jd:{all}:migration", "done");
    await spoil();
    const tries = [mover({ from, redis }), mover({ from, redis })];
    const outcome: string[] = [];
    for (const move of tries) outcome.push((await codeOf(move.once())) ?? move.state.status);
    outcomes[name] = outcome;
    said[name] = tries.map(({ state }) => state.lastErr);
  }
  t.same(outcomes, {
    "a foreign key": ["completed", "migrated"],
    "no device": ["internal", "completed"],
    "no number": ["internal", "completed"],
    "another seq": ["internal", "completed"],
    "a stranger's seq": ["internal", "internal"],
    "no message": ["internal", "completed"], // a log is written anew
    "a stranger": ["internal", "internal"], // nothing is taken out
  });
  t.match(
    said["no message"]?.[0],
    /next attempt copies everything again.*log:2:g" differs.*messages: .* \d+, Redis/,
  );
  t.match(said["a stranger"], [
    /next attempt copies everything again.*: subscribers: the folder has 15, Redis 16$/,
    /even after everything was copied again.*: subscribers: the folder has 15, Redis 16$/,
  ]);
});

t.test("the lease is one process's until it gives it back", async (t) => {
  const { url } = await startRedis(t);
  const link = new RedisLink(redisSettings(url), {
    ...{ name: "lease", onError() {} },
  });
  await link.start();
  t.teardown(() => link.close());
  const [one, other] = [new Lease(link), new Lease(link)];
  t.equal(await one.acquire(), true);
  t.equal(await other.acquire(), false);
  await other.release(); // it has nothing to give back
  one.assertHeld();
  await one.renew();
  await one.release();
  t.equal(await other.acquire(), true);
  await other.release();
});

t.test("progress is a bar at a terminal, and lines elsewhere", async (t) => {
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
    progress.show({ step: "user", done: 6, total: 10 }); // too soon
    progress.show({ step: "user", done: 10, total: 10 });
    progress.end();
    const bar = isTTY ? /\[#{12}\.{12}\] / : /^/;
    t.match(text, new RegExp(`${bar.source}user 5/10 \\(50 %\\), 1/s, 5 s left`, "m"));
    t.notMatch(text, /6\/10/);
    t.match(text, /user 10\/10 \(100 %\)\n$/);
  }
});
