// Everything an embedded store keeps reads the same from Redis after a move, and goes on from
// there; on one server and on a Cluster.

import { open } from "lmdb";
import t, { type Test } from "tap";
import { STREAM_CONTENT, STREAM_END } from "../../src/broker/model.ts";
import { Lease } from "../../src/migrate/lease.ts";
import { enterMove } from "../../src/migrate/record.ts";
import { moveTables } from "../../src/migrate/tables.ts";
import { RedisLink } from "../../src/redis/link.ts";
import { openMoveSource } from "../../src/store/embedded/export.ts";
import { codeOf, draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis, startRedisCluster } from "../support/redis.ts";
import { commandDraft, fill, numbered, picture, streamDraft } from "./data.ts";
import { FOLDER, type MoverSettings, mover, redisStore } from "./mover.ts";

const DAY_MS = 86_400_000;

/** A folder with a little of everything, closed; what it read like; and the time then. */
async function filledFolder(t: Test) {
  const from = testFolder(t);
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const clock = () => time.nowMs;
  const limits = { maxChannelMessages: 50 };
  const store = await openStore(t, from, { clock, ...limits });
  await fill(store, (ms) => {
    time.nowMs += ms;
  });
  await store.checkpoint();
  t.ok(await store.sweep(), "a history begins late");
  time.nowMs += 6000; // what expires soon has
  const before = await picture(store);
  await store.close();
  return { from, time, clock, before };
}

async function movesAll(t: Test, url: string): Promise<void> {
  const { from, time, clock, before } = await filledFolder(t);
  const redis = redisSettings(url);
  let isCompared = false;
  const progress = new Map<string, readonly [done: number, total: number]>();
  const move = mover({
    ...{ from, redis, clock },
    onProgress({ step, done, total }) {
      progress.set(step, [done, total]);
      if (step === "verify" && !isCompared) time.nowMs += 100_000; // what waits for eve ends in between
      isCompared = step === "verify";
    },
  });
  t.equal(await move.isPending(), true);
  await move.run();
  t.match(move.state, { status: "completed", lastErr: null, tryCount: 1 });
  for (const [step, [done, total]] of progress)
    t.equal(done, total, `the progress bar of ${step} ends full`);

  const store = await redisStore(t, redis, clock);
  t.same(await picture(store), before);

  const last = await store.readMessages("2:g", {
    ...{ fromSeq: 1, toSeq: 1e9, limit: 1, reverse: true, maxBytes: 1 },
  });
  const [newest] = last.messages;
  const g = { id: "g", type: 2 } as const;
  const again = await store.append(numbered("alice", g, "n0"));
  t.match(again, { messageSeq: 1, duplicate: true });
  const retried = await store.appendCommand(commandDraft());
  t.match(retried, { messageSeq: 0, duplicate: true });
  const next = await store.append(numbered("alice", g, "next"));
  t.equal(next.messageSeq, (newest?.messageSeq ?? 0) + 1);
  t.ok(next.messageId > (newest?.messageId ?? 0));
  const sent = await store.appendCommand(commandDraft({ clientMsgNo: "new" }));
  t.ok(sent.messageId > (newest?.messageId ?? 0));
  const page = { limit: 100, maxBytes: 1_000_000 };
  t.same(
    (await store.readInbox("bob", 0, page)).map(({ inboxSeq }) => inboxSeq),
    [2, 4, 5],
  );

  const more = { type: STREAM_CONTENT, data: "so far", eventId: "o1" };
  t.match(await store.streamEvent(streamDraft(more)), { verdict: "done" });
  t.equal((await store.stream("2:g", "open"))?.text, "so far"); // a retry
  await store.streamEvent(streamDraft({ ...more, eventId: "o2", data: "!" }));
  await store.streamEvent(streamDraft({ type: STREAM_END, data: "over" }));
  t.match(await store.stream("2:g", "open"), {
    ...{ text: "so far!", state: "closed", endData: "over", nextIndex: 5 },
  });
  t.equal(await store.activeStream("2:g"), undefined);

  time.nowMs += 2 * DAY_MS;
  await store.sweep();
  const late = await store.append(numbered("alice", g, "n0"));
  t.equal(late.duplicate, false); // the window is over
}

t.test("all of it moves to one server", async (t) => {
  const server = await startRedis(t);
  await movesAll(t, server.url);
  const client = server.client();
  for (const log of await client.keys("*log:*"))
    t.notMatch(
      JSON.stringify(await client.xrange(log, "-", "+")),
      /server-\d/,
      "no record holds a clientMsgNo that its id says",
    );
});

t.test("all of it moves to a Redis Cluster", async (t) => {
  await movesAll(t, (await startRedisCluster(t)).url);
});

t.test("what was moved once is not moved again", async (t) => {
  const { url } = await startRedis(t);
  const { from, clock } = await filledFolder(t);
  const redis = redisSettings(url);
  await mover({ from, redis, clock }).run();
  const store = await redisStore(t, redis, clock);
  await store.append(draftOf({ fromUid: "carol" }));
  const after = await picture(store);
  const again = mover({ from, redis, clock });
  t.equal(await again.isPending(), false);
  await again.run();
  t.match(again.state, { status: "migrated", lastErr: null, tryCount: 1 });
  t.same(await picture(store), after);
  const late = await lateEntry(t, { redis, from, clock });
  t.equal(late.isDone, true);
});

/**
 * A process that looked before everything was moved, and takes the lease afterwards: no door shows
 * it.
 */
async function lateEntry(
  t: Test,
  moving: Pick<MoverSettings, "redis" | "from"> & { readonly clock: () => number },
) {
  const { redis, from, clock } = moving;
  const link = await linkTo(t, redis);
  const lease = new Lease(link);
  t.equal(await lease.acquire(), true);
  const source = await openFolder(t, from, clock);
  const late = await enterMove({
    ...{ link, lease, source: source.id, nowMs: clock(), deadAfterMs: 300 },
    pause: async () => {},
  });
  await lease.release();
  return late;
}

async function linkTo(t: Test, redis: MoverSettings["redis"]): Promise<RedisLink> {
  const link = new RedisLink(redis, { name: "late", onError() {} });
  await link.start();
  t.teardown(() => link.close());
  return link;
}

async function openFolder(t: Test, from: string, clock: () => number) {
  const source = await openMoveSource({
    ...{ ...FOLDER, path: from, clock, onError() {}, onLost() {} },
  });
  t.teardown(() => source.close());
  return source;
}

t.test("a read position in a channel without messages is left", async (t) => {
  const { url } = await startRedis(t);
  const { from, clock } = await filledFolder(t);
  const folder = open({ path: `${from}/lmdb`, maxDbs: 48 });
  const positions = folder.openDB({ name: "positions" });
  await positions.put(["alice", "2:lost"], [1, 1, 0, 1, 5]); // of a channel that a power loss took
  await folder.close();
  const move = mover({ from, redis: redisSettings(url), clock });
  await move.once();
  t.equal(move.state.status, "completed");
});

t.test("two sets of data are not mixed", async (t) => {
  const { url } = await startRedis(t);
  const [one, other] = [await filledFolder(t), await filledFolder(t)];
  const redis = redisSettings(url);
  await mover({ ...one, redis }).run();
  const again = mover({ ...other, redis });
  t.equal(await again.isPending(), true);
  t.equal(await codeOf(again.once()), "internal");
  t.match(again.state, { status: "failed", lastErr: /another folder/ });
  const used = redisSettings(url, { prefix: "used" });
  const store = await redisStore(t, used, one.clock);
  await store.append(draftOf());
  const refused = mover({ ...other, redis: used });
  t.equal(await codeOf(refused.once()), "internal");
  t.match(refused.state, {
    status: "failed",
    lastErr: /not empty/,
    tryCount: 1,
  });
  t.equal(await codeOf(refused.once()), "internal");
  t.equal(refused.state.tryCount, 2);
});

// Pages hold hundreds of rows, so no door stops behind each of them.
t.test("a move that goes on behind any row brings the rest", async (t) => {
  const { from, clock } = await filledFolder(t);
  const source = await openFolder(t, from, clock);
  const link = await linkTo(t, redisSettings((await startRedis(t)).url));
  const tables = moveTables(source, {
    ...{ link, clock, beganAtMs: clock() },
    ...{ dedupeWindowMs: DAY_MS, retentionMs: 0 },
  });
  for (const { name, rows } of tables) {
    const all = [...rows("")];
    t.ok(all.length > 0 || name.startsWith("commandFirsts"), name);
    for (const [at, row] of all.entries())
      if (row.at !== "" && all[at - 1]?.at !== row.at)
        t.same([...rows(row.at)], all.slice(at + 1), `${name} ${row.at}`);
  }
});
