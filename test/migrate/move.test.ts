// The result of a migration to one Redis server and to a Redis Cluster: all data reads the same as
// from the embedded store, and new data continues after it.

import { readFileSync } from "node:fs";
import { open } from "lmdb";
import t, { type Test } from "tap";
import { EVENTS_START } from "../../src/broker/event-ports.ts";
import { bucketOf } from "../../src/broker/log-frame.ts";
import { STREAM_CONTENT, STREAM_END, userTopic } from "../../src/broker/model.ts";
import type { Store } from "../../src/broker/ports.ts";
import { Lease } from "../../src/migrate/lease.ts";
import { enterMove } from "../../src/migrate/record.ts";
import { moveTables } from "../../src/migrate/tables.ts";
import { RedisLink } from "../../src/redis/link.ts";
import { openMoveSource } from "../../src/store/embedded/export.ts";
import * as log from "../contract/log-fixture.ts";
import { ALL, codeOf, draftOf, group } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis, startRedisCluster } from "../support/redis.ts";
import { commandDraft, EXPIRING_STREAM_S, fill, numbered, picture, streamDraft } from "./data.ts";
import { FOLDER, type MoverSettings, mover, redisStore } from "./mover.ts";

const DAY_MS = 86_400_000;

/**
 * Creates the folder of a closed store with some data, and returns what was read from the store.
 */
async function filledFolder(t: Test) {
  const from = testFolder(t);
  const time = { nowMs: Date.UTC(2040, 0, 1) };
  const clock = () => time.nowMs;
  const limits = { maxChannelMessages: 50 };
  const store = await openStore(t, from, { clock, ...limits });
  await fill(store, (ms) => {
    time.nowMs += ms;
  });
  await store.checkpoint();
  t.ok(await store.sweep(), "the sweep removes the oldest messages");
  time.nowMs += 6000; // the message with an expiry of 5 s has expired
  const before = await picture(store);
  await store.close();
  return { from, time, clock, before };
}

/** Migrates a folder to Redis, compares the data, and then adds new data. */
async function assertMigrates(t: Test, url: string): Promise<void> {
  const { from, time, clock, before } = await filledFolder(t);
  const redis = redisSettings(url);
  let isCompared = false;
  const progress = new Map<string, readonly [done: number, total: number]>();
  const migration = mover({
    ...{ from, redis, clock },
    onProgress({ step, done, total }) {
      progress.set(step, [done, total]);
      if (step === "verify" && !isCompared) time.nowMs += 100_000; // a command for eve expires
      isCompared = step === "verify";
    },
  });
  t.equal(await migration.isPending(), true);
  await migration.run();
  t.match(migration.state, { status: "completed", lastErr: null, tryCount: 1 });
  for (const [step, [done, total]] of progress)
    t.equal(done, total, `the progress of ${step} ends at its total`);

  const store = await redisStore(t, redis, clock);
  t.same(await picture(store), before);
  await store.setDemand({ feed: true, session: false, command: false });
  t.equal(await store.endOnline("zoe", [], Number.MAX_SAFE_INTEGER), false, "zoe may return");
  t.equal(await store.endOnline("zoe", [], Number.MAX_SAFE_INTEGER), true, "zoe is offline");

  const last = await store.readMessages("2:g", {
    ...{ fromSeq: 1, toSeq: 1e9, limit: 1, reverse: true, maxBytes: 1 },
  });
  const [newest] = last.messages;
  const g = { id: "g", type: 2 } as const;
  const retry = await store.append(numbered("alice", g, "n0"));
  t.match(retry, { messageSeq: 1, duplicate: true });
  const retriedCommand = await store.appendCommand(commandDraft());
  t.match(retriedCommand, { messageSeq: 0, duplicate: true });
  const other = { payload: new TextEncoder().encode('{"type":1}') };
  const refused = "client_msg_no_reused";
  for (const [fromUid, clientMsgNo] of [
    ["alice", "n0"],
    ["bob", "unkept"],
    ["alice", "open"],
  ] as const)
    t.match(await store.append({ ...numbered(fromUid, g, clientMsgNo), ...other }), { refused });
  t.match(await store.appendCommand(commandDraft(other)), { refused });
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

  const toFull = { clientMsgNo: "", recipients: ["full"], origin: "session" };
  const tooMany = () => store.appendCommand(commandDraft(toFull));
  await t.rejects(tooMany(), { code: "overloaded" }, "migrated copies count as the sender's share");
  t.equal(await store.acknowledgeCommands("full", [1]), 1);
  t.equal((await tooMany()).duplicate, false);
  await t.rejects(tooMany(), { code: "overloaded" });

  const content = { type: STREAM_CONTENT, data: "so far", eventId: "o1" };
  t.match(await store.streamEvent(streamDraft(content)), { verdict: "done" });
  t.equal((await store.stream("2:g", "open"))?.text, "so far?"); // the event is a retry and adds nothing
  await store.streamEvent(streamDraft({ ...content, eventId: "shared", data: "?" }));
  await store.streamEvent(streamDraft({ ...content, eventId: "o2", data: "!" }));
  const late = { clientMsgNo: "closed", type: STREAM_CONTENT, data: "wörds ", eventId: "e1" };
  for (const [timestampMs, verdict] of [
    [1234, "done"],
    [undefined, "done"],
    [1235, "closed"],
  ] as const)
    t.match(await store.streamEvent(streamDraft({ ...late, timestampMs })), { verdict });
  await store.streamEvent(streamDraft({ type: STREAM_END, data: "over" }));
  t.match(await store.stream("2:g", "open"), {
    ...{ text: "so far??!", state: "closed", endData: "over", nextIndex: 8 },
  });
  t.equal((await store.activeStreams(["2:g"]))[0], undefined);

  t.equal((await store.stream("2:g", "stopped"))?.state, "cancelled");
  time.nowMs += EXPIRING_STREAM_S * 1000;
  t.equal(await store.stream("2:g", "stopped"), undefined, "the message has expired");
  await store.sweep();
  const expired = await expiredCommandsOf(store, "eve");
  t.equal(expired.length, 1, "a command that expired during the migration has its event");
  t.equal(
    (await expiredCommandsOf(store, "bob")).length,
    2,
    "a command that expired before the migration has its event too",
  );
  const afterWindow = await store.append(numbered("alice", g, "n0"));
  t.equal(afterWindow.duplicate, false, "the dedupe window has passed");

  const append = log.appendOf(["moved"], { producer: { id: "wörker", epoch: 3, number: 1 } });
  t.match(await store.appendLog(log.free("fork"), append), { verdict: "appended" });
  t.same(await log.appendsOf(store, log.free("fork")), [["abc"], ["own"], ["moved"]]);
  t.same(await log.appendsOf(store, log.free("fork/of fork")), [["abc"], ["own"]]);
  for (const path of ["fork", "fork/of fork"])
    t.equal(await store.deleteLog(log.free(path)), "done");
  for (const path of ["source", "fork"])
    t.equal(await store.logHead(log.free(path)), "missing", "the last fork removed its sources");
}

/** Returns the ids in the events `command.expired` of a user. */
async function expiredCommandsOf(store: Store, uid: string): Promise<readonly unknown[]> {
  const { rows } = await store.readEvents(bucketOf(userTopic(uid)), EVENTS_START, 1000);
  return rows
    .filter(({ key, type }) => key === userTopic(uid) && type === "command.expired")
    .flatMap(({ fields }) => fields?.command_ids as readonly number[]);
}

t.test("a migration to one Redis server preserves all data", async (t) => {
  const server = await startRedis(t);
  await assertMigrates(t, server.url);
  const client = server.client();
  for (const log of await client.keys("*log:*"))
    t.notMatch(
      JSON.stringify(await client.xrange(log, "-", "+")),
      /server-\d/,
      "records do not contain a clientMsgNo that is derived from the id",
    );
});

t.test("a migration to a Redis Cluster preserves all data", async (t) => {
  await assertMigrates(t, (await startRedisCluster(t)).url);
});

t.test("a folder that was migrated is not migrated again", async (t) => {
  const { url } = await startRedis(t);
  const { from, clock } = await filledFolder(t);
  const redis = redisSettings(url);
  await mover({ from, redis, clock }).run();
  const store = await redisStore(t, redis, clock);
  await store.append(draftOf({ fromUid: "carol" }));
  const after = await picture(store);
  const second = mover({ from, redis, clock });
  t.equal(await second.isPending(), false);
  await second.run();
  t.match(second.state, { status: "migrated", lastErr: null, tryCount: 1 });
  t.same(await picture(store), after);
  const late = await lateEntry(t, { redis, from, clock });
  t.equal(late.isDone, true);
});

/**
 * Acts as a process that decided to migrate before another process migrated the data, and acquires
 * the lease only after that migration. Calls internal functions, because `Migration` cannot
 * reproduce this moment.
 */
async function lateEntry(
  t: Test,
  settings: Pick<MoverSettings, "redis" | "from"> & { readonly clock: () => number },
) {
  const { redis, from, clock } = settings;
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

t.test(
  "a read position in a channel without messages does not make a migration fail",
  async (t) => {
    const { url } = await startRedis(t);
    const { from, clock } = await filledFolder(t);
    const folder = open({ path: `${from}/lmdb`, maxDbs: 48 });
    const positions = folder.openDB({ name: "positions" });
    await positions.put(["alice", "2:lost"], [1, 1, 0, 1, 5]); // the channel was lost in a power failure
    await folder.close();
    const migration = mover({ from, redis: redisSettings(url), clock });
    await migration.once();
    t.equal(migration.state.status, "completed");
  },
);

t.test("a data folder is not migrated into a Redis server that contains other data", async (t) => {
  const { url } = await startRedis(t);
  const [first, second] = [await filledFolder(t), await filledFolder(t)];
  const redis = redisSettings(url);
  await mover({ ...first, redis }).run();
  const conflicting = mover({ ...second, redis });
  t.equal(await conflicting.isPending(), true);
  t.equal(await codeOf(conflicting.once()), "internal");
  t.match(conflicting.state, { status: "failed", lastErr: /a different folder/ });
  const used = redisSettings(url, { prefix: "used" });
  const store = await redisStore(t, used, first.clock);
  await store.append(draftOf());
  const refused = mover({ ...second, redis: used });
  t.equal(await codeOf(refused.once()), "internal");
  t.match(refused.state, {
    status: "failed",
    lastErr: /not empty/,
    tryCount: 1,
  });
  t.equal(await codeOf(refused.once()), "internal");
  t.equal(refused.state.tryCount, 2);
});

// Calls an internal function, because a migration stops only after pages of hundreds of rows.
t.test("the copy of a table resumes after any watermark with the remaining rows", async (t) => {
  const { from, clock } = await filledFolder(t);
  const source = await openFolder(t, from, clock);
  const link = await linkTo(t, redisSettings((await startRedis(t)).url));
  const tables = moveTables(source, {
    ...{ link, clock, beganAtMs: clock() },
    ...{ dedupeWindowMs: DAY_MS, retentionMs: 0 },
  });
  for (const { name, rows } of tables) {
    const allRows = [...rows("")];
    t.ok(allRows.length > 0 || name.startsWith("commandFirsts"), `the table ${name} has rows`);
    for (const [at, row] of allRows.entries())
      if (row.at !== "" && allRows[at - 1]?.at !== row.at)
        t.same([...rows(row.at)], allRows.slice(at + 1), `the rows of ${name} after ${row.at}`);
  }
});

t.test("imported messages, their source ids and the import's state are migrated", async (t) => {
  const from = testFolder(t);
  const clock = () => Date.UTC(2040, 0, 1);
  const store = await openStore(t, from, { clock });
  const channel = { id: "g", type: 2 } as const;
  const imported = (seq: number) => ({
    ...{ channel, fromUid: "alice", clientMsgNo: `no-${seq}`, messageSeq: seq, expireS: 0 },
    ...{ sourceId: String(2n ** 64n - BigInt(seq)), timestampMs: clock() - 3 * DAY_MS + seq },
    ...{ passthrough: undefined, payload: new Uint8Array([seq]) },
  });
  const messages = [imported(2), imported(50), imported(51)];
  await store.createChannel(group("g"), ["alice", "bob", "carol"]);
  await store.importMessages("2:g", messages);
  await store.importPosition("bob", channel, { readSeq: 2, deletedSeq: 0 });
  await store.changeImportPhase(["none"], "closed");
  await store.countImported({ message: 3 });
  await store.append(draftOf());
  const read = async (
    other: Pick<typeof store, "readMessages" | "conversation" | "importState">,
  ) => ({
    messages: await other.readMessages("2:g", ALL),
    bob: await other.conversation("bob", channel),
    carol: await other.conversation("carol", channel),
    state: await other.importState(),
  });
  const before = await read(store);
  t.match(before, { bob: { unread: 3 }, carol: { unread: 1 }, state: { phase: "closed" } });
  await store.close();

  const redis = redisSettings((await startRedis(t)).url);
  const migration = mover({ from, redis, clock });
  await migration.run();
  t.match(migration.state, { status: "completed", tryCount: 1 });
  const moved = await redisStore(t, redis, clock);
  t.same(await read(moved), before);
  t.equal(await moved.seqOfSource("2:g", messages[1]?.sourceId ?? ""), 50);
  t.same(await moved.importMessages("2:g", messages), ["unchanged", "unchanged", "unchanged"]);
  t.match(await moved.append(draftOf()), { messageSeq: 53 });
});

/**
 * Tables whose rows are not migrated. Unless noted otherwise, the same facts are in the rows of
 * other tables.
 */
const DERIVED: ReadonlySet<string> = new Set([
  ...["peers", "expiry", "expiring", "commandCopies", "commandLeft", "inboxSenders"],
  ...["logNames", "logExpiry", "imported"],
  "logins", // sessions end with the migration
  "outbox", // the first checkpoint moves its events to the feed
]);

t.test("the code of the migration mentions every table that a migration must move", async (t) => {
  const [tables = "", ...readers] = [
    ...["store/embedded/engine/tables.ts", "store/embedded/export.ts", "migrate/tables.ts"],
    ...["store/embedded/steps/stored-logs.ts", "store/embedded/steps/stream-rows.ts"],
    "store/embedded/steps/live-streams.ts",
  ].map((path) => readFileSync(new URL(`../../src/${path}`, import.meta.url), "utf8"));
  const names = [
    ...tables.matchAll(/^ {2}readonly (\w+): (?:readonly \[)?(?:Table|BinaryTable)/gm),
  ];
  const missing = names
    .map(([, name = ""]) => name)
    .filter((name) => !DERIVED.has(name) && !new RegExp(`\\b${name}\\b`).test(readers.join("\n")));
  t.ok(names.length > 30);
  t.same(missing, []);
});
