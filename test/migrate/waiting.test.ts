// What a process knows, says and does while another one moves, and of a move that nobody goes on
// with.

import t, { type Test } from "tap";
import { hashToken } from "../../src/broker/tokens.ts";
import type { Migration, OtherMove } from "../../src/migrate/migration.ts";
import { codeOf, draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { fill, hashOf } from "./data.ts";
import { mover } from "./mover.ts";

const RECORD = "jd:{all}:migration";

/** A Redis, and a process that says it moves but does nothing. */
async function start(t: Test) {
  const server = await startRedis(t);
  const redis = redisSettings(server.url);
  const client = server.client();
  const begins = async () => {
    await client.set("jd:{all}:migrating", "other"); // for as long as the test takes
    await client.hset(RECORD, { v: 1, began: 1, source: "folder" });
  };
  return { server, redis, begins, client };
}

/** The folder of a store, closed; with an access token of "admin". */
async function folderWith(t: Test, token: string, untilMs: number) {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await store.append(draftOf());
  await store.putAccessToken(hashToken(token), "admin", untilMs);
  await store.close();
  return from;
}

/** Runs until it is over or closed. */
function running(t: Test, move: Migration): Promise<string | undefined> {
  t.teardown(() => move.close());
  return codeOf(move.run());
}

async function until(
  client: { ping(): Promise<unknown> },
  isSo: () => boolean | Promise<boolean>,
): Promise<void> {
  while (!(await isSo())) await client.ping();
}

t.test("who waits for another's move has one connection and knows how far it is", async (t) => {
  const { redis, begins, client } = await start(t);
  await begins();
  await client.hset(RECORD, { step: "message", rows: 3, total: 10 });
  const looks: OtherMove[] = [];
  const waiter = mover({
    ...{ from: "", redis, onWaiting: (look) => looks.push(look) },
  });
  t.equal(await waiter.isPending(), true);
  const connections = async () => {
    const info = await client.info("stats");
    return Number(/total_connections_received:(\d+)/.exec(info)?.[1]);
  };
  const before = await connections();
  const over = running(t, waiter);
  await until(client, () => looks.length >= 2);
  t.equal((await connections()) - before, 1);
  t.match(looks[0], {
    ...{ step: "message", done: 3, total: 10 },
    ...{ isAbandoned: false, lastErr: undefined },
  });
  t.match(waiter.state, { status: "running", step: "message" });
  await client.hset(RECORD, { step: "verify", rows: 7, total: 20 });
  await until(client, () => looks.at(-1)?.step === "verify");
  t.match(looks.at(-1), { done: 7, total: 20 });
  await client.hset(RECORD, { done: 1 });
  t.equal(await over, undefined);
  t.match(waiter.state, { status: "migrated", step: "verify" });
});

t.test(
  "a move whose process died is told as failed, and who has the folder takes it over",
  async (t) => {
    const { redis, client } = await start(t);
    const from = await folderWith(t, "token", Number.MAX_SAFE_INTEGER);
    const dies = mover({
      ...{ from, redis },
      onProgress: ({ step }) => step === "message" && dies.close(),
    });
    t.equal(await codeOf(dies.once()), "unavailable");
    const looks: OtherMove[] = [];
    const waiter = mover({
      ...{ from: "", redis, abandonedAfterMs: 50 },
      onWaiting: (look) => looks.push(look),
    });
    t.equal(await waiter.isPending(), true);
    const over = running(t, waiter);
    await until(client, () => looks.length > 0);
    t.match(looks[0], { isAbandoned: false, lastErr: /was stopped/ }); // it may only pause
    await until(client, () => looks.at(-1)?.isAbandoned === true);
    t.match(waiter.state, {
      ...{ status: "failed", step: "message", tryCount: 1 },
      lastErr: /No process is migrating the data/,
    });
    const heir = mover({ from, redis });
    t.equal(await heir.isPending(), true);
    await heir.run();
    t.match(heir.state, { status: "completed", tryCount: 2 });
    t.equal(await over, undefined);
    t.equal(waiter.state.status, "migrated");
  },
);

t.test(
  "a move that Redis loses is waited for, unless the waiting node is started again",
  async (t) => {
    const { redis, begins, client } = await start(t);
    const from = await folderWith(t, "token", Number.MAX_SAFE_INTEGER);
    await begins();
    const looks: OtherMove[] = [];
    const waiter = mover({
      ...{ from: "", redis, abandonedAfterMs: 50 },
      onWaiting: (look) => looks.push(look),
    });
    t.equal(await waiter.isPending(), true);
    const over = running(t, waiter);
    await until(client, () => looks.length > 0);
    await client.flushall();
    await until(client, () => waiter.state.status !== "running");
    t.match(waiter.state, { status: "failed", lastErr: /has lost/ });
    t.equal(await mover({ from: "", redis }).isPending(), false);
    await mover({ from, redis }).run();
    t.equal(await over, undefined);
    t.equal(waiter.state.status, "migrated");
  },
);

t.test("what no try can repair is told, and waits for an empty Redis", async (t) => {
  const { redis, client } = await start(t);
  const from = testFolder(t);
  const store = await openStore(t, from);
  await fill(store, () => {});
  await store.close();
  const nowMs = Date.now();
  const moving = { from, redis, clock: () => nowMs };
  const counts: Record<string, number> = {};
  const first = mover({
    ...moving,
    onCompared(all) {
      for (const { what, count } of all) counts[what] = count;
    },
  });
  await first.once();
  t.match(counts, {
    ...{ devices: 11, "managers' passwords": 1, channels: 7 },
    ...{ streams: 5, "active streams": 2, "command inboxes": 3 },
    ...{ messages: 145, "read positions": 4, subscribers: 15 },
  });
  await client.hdel(RECORD, "done");
  await client.hset("jd:{all}:managers", "eve", "1\nhash");
  const bucket = (await client.keys("jd:{*}:head:2:large"))[0] ?? "";
  await client.set(bucket.replace(":head:", ":activeStream:"), "stray");
  for (let seq = 90; seq < 99; seq++) await client.xadd("jd:{u:bob}:inbox", `${seq}-0`, "x", "1");
  const again = mover(moving);
  t.equal(await codeOf(again.once()), "internal");
  t.match(
    again.state.lastErr,
    /managers' passwords: .* 1, Redis 2; active streams: .* 2, Redis 3; commands in inboxes: /,
  );

  const failures: (number | undefined)[] = [];
  const looks: OtherMove[] = [];
  const node = mover({
    ...{ ...moving, abandonedAfterMs: 300 },
    onWaiting: (look) => looks.push(look),
    onFailure: (_, retryMs) => failures.push(retryMs),
  });
  const over = running(t, node);
  await until(client, () => failures.length > 1);
  t.same(failures, [1000, undefined]); // the inbox was written anew, and then no further try
  const differing = /managers' passwords: .* 1, Redis 2; active streams: .* 2, Redis 3$/;
  t.match(node.state, { status: "failed", lastErr: differing });
  await client.hset(RECORD, "err", ""); // another one tried and was killed
  await until(client, () => looks.length > 0);
  t.match(looks[0], { isAbandoned: true, lastErr: differing });
  t.match(node.state, { status: "failed", lastErr: differing });
  await client.flushall();
  t.equal(await over, undefined);
  t.match(node.state, { status: "completed", lastErr: null });
});

t.test(
  "whose an access token is, is told from the folder, and from Redis once it is there",
  async (t) => {
    const { server, redis, begins, client } = await start(t);
    const untilMs = Date.now() + 600_000;
    const from = await folderWith(t, "good", untilMs);
    let nowMs = Date.now();
    const move = mover({ from, redis, clock: () => nowMs });
    t.equal(await move.isPending(), true);
    t.equal(await move.accessTokenOwner(hashOf("good")), "admin");
    t.equal(await move.accessTokenOwner(hashOf("none")), undefined);

    await begins();
    await client.hset(RECORD, { step: "user" });
    const waiter = mover({ from: "", redis });
    t.equal(await waiter.isPending(), true);
    const asked = (token: string) => waiter.accessTokenOwner(hashOf(token));
    t.equal(await codeOf(asked("good")), "unavailable"); // no connection yet
    const over = running(t, waiter);
    await until(client, async () => (await codeOf(asked("known"))) !== undefined);
    const key = `jd:{all}:tokens:${Buffer.from(hashOf("known")).toString("hex")}`;
    await client.set(key, `1\n${untilMs}\neve`);
    await until(client, async () => (await codeOf(asked("known"))) === undefined);
    t.equal(await asked("known"), "eve");
    t.equal(await codeOf(asked("none")), "unavailable"); // it may come yet
    await client.hset(RECORD, { step: "channel" });
    await until(client, () => waiter.state.step === "channel");
    t.equal(await asked("none"), undefined);
    await client.hset(RECORD, { done: 1 });
    await over;

    await server.stop();
    t.equal(await move.accessTokenOwner(hashOf("good")), "admin");
    nowMs = untilMs;
    t.equal(await move.accessTokenOwner(hashOf("good")), undefined);
  },
);
