// A process that waits while another process migrates: its status, an abandoned migration, and the
// access tokens that are valid in the meantime.

import t, { type Test } from "tap";
import { hashToken } from "../../src/broker/tokens.ts";
import type { Migration, OtherMove } from "../../src/migrate/migration.ts";
import { codeOf, draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { fill, hashOf } from "./data.ts";
import { mover } from "./mover.ts";

const RECORD = "jd:{all}:migration";

/** Starts a Redis. `holdLease` acts as a process that holds the lease but copies nothing. */
async function start(t: Test) {
  const server = await startRedis(t);
  const redis = redisSettings(server.url);
  const client = server.client();
  const holdLease = async () => {
    await client.set("jd:{all}:migrating", "other"); // without expiry
    await client.hset(RECORD, { v: 1, began: 1, source: "folder" });
  };
  return { server, redis, holdLease, client };
}

/** Creates the folder of a closed store with an access token of `admin`. */
async function folderWith(t: Test, token: string, untilMs: number) {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await store.append(draftOf());
  await store.putAccessToken(hashToken(token), "admin", untilMs);
  await store.close();
  return from;
}

/** Runs a migration and returns the code of its error. Closes the migration when the test ends. */
function run(t: Test, move: Migration): Promise<string | undefined> {
  t.teardown(() => move.close());
  return codeOf(move.run());
}

async function until(
  client: { ping(): Promise<unknown> },
  condition: () => boolean | Promise<boolean>,
): Promise<void> {
  while (!(await condition())) await client.ping();
}

t.test(
  "a process that waits for a migration uses one connection and reports its progress",
  async (t) => {
    const { redis, holdLease, client } = await start(t);
    await holdLease();
    await client.hset(RECORD, { step: "message", rows: 3, total: 10 });
    const reports: OtherMove[] = [];
    const waiter = mover({
      ...{ from: "", redis, onWaiting: (report) => reports.push(report) },
    });
    t.equal(await waiter.isPending(), true);
    const connections = async () => {
      const info = await client.info("stats");
      return Number(/total_connections_received:(\d+)/.exec(info)?.[1]);
    };
    const before = await connections();
    const done = run(t, waiter);
    await until(client, () => reports.length >= 2);
    t.equal((await connections()) - before, 1);
    t.match(reports[0], {
      ...{ step: "message", done: 3, total: 10 },
      ...{ isAbandoned: false, lastErr: undefined },
    });
    t.match(waiter.state, { status: "running", step: "message" });
    await client.hset(RECORD, { step: "verify", rows: 7, total: 20 });
    await until(client, () => reports.at(-1)?.step === "verify");
    t.match(reports.at(-1), { done: 7, total: 20 });
    await client.hset(RECORD, { done: 1 });
    t.equal(await done, undefined);
    t.match(waiter.state, { status: "migrated", step: "verify" });
  },
);

t.test(
  "a migration whose process died is reported as failed, and another process that has the folder resumes the migration",
  async (t) => {
    const { redis, client } = await start(t);
    const from = await folderWith(t, "token", Number.MAX_SAFE_INTEGER);
    const stopping = mover({
      ...{ from, redis },
      onProgress: ({ step }) => step === "message" && stopping.close(),
    });
    t.equal(await codeOf(stopping.once()), "unavailable");
    const reports: OtherMove[] = [];
    const waiter = mover({
      ...{ from: "", redis, abandonedAfterMs: 50 },
      onWaiting: (report) => reports.push(report),
    });
    t.equal(await waiter.isPending(), true);
    const done = run(t, waiter);
    await until(client, () => reports.length > 0);
    t.match(reports[0], { isAbandoned: false, lastErr: /was stopped/ }); // another attempt may follow
    await until(client, () => reports.at(-1)?.isAbandoned === true);
    t.match(waiter.state, {
      ...{ status: "failed", step: "message", tryCount: 1 },
      lastErr: /No process is migrating the data/,
    });
    const successor = mover({ from, redis });
    t.equal(await successor.isPending(), true);
    await successor.run();
    t.match(successor.state, { status: "completed", tryCount: 2 });
    t.equal(await done, undefined);
    t.equal(waiter.state.status, "migrated");
  },
);

t.test(
  "a node that waits for a migration keeps waiting if Redis loses the migration record",
  async (t) => {
    const { redis, holdLease, client } = await start(t);
    const from = await folderWith(t, "token", Number.MAX_SAFE_INTEGER);
    await holdLease();
    const reports: OtherMove[] = [];
    const waiter = mover({
      ...{ from: "", redis, abandonedAfterMs: 50 },
      onWaiting: (report) => reports.push(report),
    });
    t.equal(await waiter.isPending(), true);
    const done = run(t, waiter);
    await until(client, () => reports.length > 0);
    await client.flushall();
    await until(client, () => waiter.state.status !== "running");
    t.match(waiter.state, { status: "failed", lastErr: /has lost/ });
    t.equal(await mover({ from: "", redis }).isPending(), false);
    await mover({ from, redis }).run();
    t.equal(await done, undefined);
    t.equal(waiter.state.status, "migrated");
  },
);

t.test(
  "a difference between the folder and Redis that copying cannot fix is reported until Redis is emptied",
  async (t) => {
    const { redis, client } = await start(t);
    const from = testFolder(t);
    const store = await openStore(t, from);
    await fill(store, () => {});
    await store.close();
    const nowMs = Date.now();
    const settings = { from, redis, clock: () => nowMs };
    const counts: Record<string, number> = {};
    const first = mover({
      ...settings,
      onCompared(rowCounts) {
        for (const { what, count } of rowCounts) counts[what] = count;
      },
    });
    await first.once();
    t.match(counts, {
      ...{ devices: 13, "managers' passwords": 1, channels: 7 },
      ...{ streams: 9, "active streams": 3, "command inboxes": 4 },
      ...{ messages: 149, "read positions": 4, subscribers: 15 },
    });
    await client.hdel(RECORD, "done");
    await client.hset("jd:{all}:managers", "eve", "1\nhash");
    const bucket = (await client.keys("jd:{*}:head:2:large"))[0] ?? "";
    await client.zadd(bucket.replace(":head:", ":openStreams:"), 0, "stray");
    for (let seq = 90; seq < 99; seq++) await client.xadd("jd:{u:bob}:inbox", `${seq}-0`, "x", "1");
    const second = mover(settings);
    t.equal(await codeOf(second.once()), "internal");
    t.match(
      second.state.lastErr,
      /managers' passwords: .* 1, Redis 2; active streams: .* 3, Redis 4; commands in inboxes: /,
    );

    const failures: (number | undefined)[] = [];
    const reports: OtherMove[] = [];
    const node = mover({
      ...{ ...settings, abandonedAfterMs: 300 },
      onWaiting: (report) => reports.push(report),
      onFailure: (_, retryMs) => failures.push(retryMs),
    });
    const done = run(t, node);
    await until(client, () => failures.length > 1);
    t.same(
      failures,
      [1000, undefined],
      "the difference is not copied again after the second attempt",
    );
    const differing = /managers' passwords: .* 1, Redis 2; active streams: .* 3, Redis 4$/;
    t.match(node.state, { status: "failed", lastErr: differing });
    await client.hset(RECORD, "err", ""); // another process started an attempt and was killed
    await until(client, () => reports.length > 0);
    t.match(reports[0], { isAbandoned: true, lastErr: differing });
    t.match(node.state, { status: "failed", lastErr: differing });
    await client.flushall();
    t.equal(await done, undefined);
    t.match(node.state, { status: "completed", lastErr: null });
  },
);

t.test(
  "the migrating process looks up access tokens in the folder, and a waiting process looks them up in Redis",
  async (t) => {
    const { server, redis, holdLease, client } = await start(t);
    const untilMs = Date.now() + 600_000;
    const from = await folderWith(t, "good", untilMs);
    let nowMs = Date.now();
    const migration = mover({ from, redis, clock: () => nowMs });
    t.equal(await migration.isPending(), true);
    t.equal(await migration.accessTokenOwner(hashOf("good")), "admin");
    t.equal(await migration.accessTokenOwner(hashOf("none")), undefined);

    await holdLease();
    await client.hset(RECORD, { step: "user" });
    const waiter = mover({ from: "", redis });
    t.equal(await waiter.isPending(), true);
    const ownerOf = (token: string) => waiter.accessTokenOwner(hashOf(token));
    t.equal(await codeOf(ownerOf("good")), "unavailable"); // the waiting process is not connected yet
    const done = run(t, waiter);
    await until(client, async () => (await codeOf(ownerOf("known"))) !== undefined);
    const key = `jd:{all}:tokens:${Buffer.from(hashOf("known")).toString("hex")}`;
    await client.set(key, `1\n${untilMs}\neve`);
    await until(client, async () => (await codeOf(ownerOf("known"))) === undefined);
    t.equal(await ownerOf("known"), "eve");
    t.equal(await codeOf(ownerOf("none")), "unavailable"); // the token is perhaps not copied yet
    await client.hset(RECORD, { step: "channel" });
    await until(client, () => waiter.state.step === "channel");
    t.equal(await ownerOf("none"), undefined);
    await client.hset(RECORD, { done: 1 });
    await done;

    await server.stop();
    t.equal(await migration.accessTokenOwner(hashOf("good")), "admin");
    nowMs = untilMs;
    t.equal(await migration.accessTokenOwner(hashOf("good")), undefined);
  },
);
