// A Redis that rejects writes, because it is out of memory or lacks the replicas that it requires.
// Reads continue, also after a reconnect. Operations that free memory continue on a full Redis.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import t, { type Test } from "tap";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { STREAM_CONTENT, STREAM_START } from "../../../src/broker/model.ts";
import { forkOf, free, draftOf as logDraftOf } from "../../contract/log-fixture.ts";
import { ALL, codeOf, draftOf } from "../../contract/store-fixture.ts";
import { eventOf, KEY } from "../../contract/store-stream-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { logKeys } from "./log-driver.ts";
import { openStore, type StoreNode, type StoreNodeOptions } from "./one-store.ts";

const CAUSES = ["maxmemory", "min-replicas-to-write"] as const;

/** Makes Redis reject writes, or accept them again. */
async function rejectWrites(client: Redis, cause: (typeof CAUSES)[number], isRejecting: boolean) {
  await client.config("SET", cause, isRejecting ? 1 : 0);
}

async function start(t: Test, options: StoreNodeOptions = {}) {
  const redis = await startRedis(t);
  return { node: await openStore(t, redis.url, options), client: redis.client() };
}

/** Closes the connections of the node, and waits until the node uses Redis again. */
async function reconnect({ link }: StoreNode, client: Redis): Promise<void> {
  await client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
  while (link.isUp) await pause(5);
  for (let waitedMs = 0; !link.isUp && waitedMs < 5000; waitedMs += 10) await pause(10);
}

t.test("reads continue after a reconnect to a Redis that rejects writes", async (t) => {
  for (const cause of CAUSES) {
    const { node, client } = await start(t);
    const { store } = node;
    await store.append(draftOf());
    await store.createLog(free("l"), logDraftOf({ records: [Buffer.from("x")] }));
    await rejectWrites(client, cause, true);
    await reconnect(node, client);
    t.equal(await codeOf(store.append(draftOf())), "unavailable", `${cause}: writes are rejected`);
    t.equal((await store.readMessages("2:g", ALL)).messages.length, 1, cause);
    const read = await store.readLog(free("l"), { from: { position: 0, check: 0 }, maxBytes: 99 });
    t.match(read, { verdict: "read", head: { records: 1 } }, cause);
    await rejectWrites(client, cause, false);
    t.equal((await store.append(draftOf())).messageSeq, 2, cause);
    t.same(node.problems, [], cause);
  }
});

t.test("a log read is rejected while Redis is full and lacks the function library", async (t) => {
  const { node, client } = await start(t);
  await node.store.createLog(free("l"), logDraftOf());
  await rejectWrites(client, "maxmemory", true);
  await client.call("FUNCTION", "FLUSH");
  await reconnect(node, client);
  t.equal(await codeOf(node.store.logHead(free("l"))), "unavailable");
  await rejectWrites(client, "maxmemory", false);
  t.match(await node.store.logHead(free("l")), { records: 0 });
});

t.test(
  "a producer that a full Redis refused has another 30 s before its stream is interrupted",
  async (t) => {
    const { node, client } = await start(t);
    const { store, time } = node;
    await store.streamEvent(eventOf(STREAM_START));
    time.nowMs += 60_000;
    await rejectWrites(client, "maxmemory", true);
    t.equal(await codeOf(store.streamEvent(eventOf(STREAM_CONTENT, "x"))), "unavailable");
    t.equal(await store.interruptStreams(30_000), 0);
    await rejectWrites(client, "maxmemory", false);
    t.equal(await store.interruptStreams(30_000), 0, "the producer can repeat its event");
    time.nowMs += 29_999;
    t.equal(await store.interruptStreams(30_000), 0);
    time.nowMs += 1;
    t.equal(await store.interruptStreams(30_000), 1, "a producer that stays silent is given up");
  },
);

t.test(
  "a stream is not interrupted one second after a full Redis stopped refusing its producer",
  async (t) => {
    const { node, client } = await start(t);
    const { store, time } = node;
    await store.streamEvent(eventOf(STREAM_START));
    time.nowMs += 29_000;
    await rejectWrites(client, "maxmemory", true);
    t.equal(await codeOf(store.streamEvent(eventOf(STREAM_CONTENT, "x"))), "unavailable");
    await rejectWrites(client, "maxmemory", false);
    time.nowMs += 1001;
    t.equal(await store.interruptStreams(30_000), 0);
    time.nowMs += 30_000;
    t.equal(await store.interruptStreams(30_000), 1);
  },
);

t.test("a full Redis removes expired logs, deletes logs and releases forks", async (t) => {
  const { node, client } = await start(t);
  const { store, time } = node;
  const expiresAtMs = time.nowMs + 1000;
  const records = [Buffer.from("x")];
  await store.createLog(free("expired"), logDraftOf({ expiresAtMs, records }));
  await store.createLog(free("deleted"), logDraftOf({ records }));
  await store.createLog(free("fork"), logDraftOf({ origin: forkOf("deleted") }));
  time.nowMs += 1000;
  await rejectWrites(client, "maxmemory", true);
  t.equal(await codeOf(store.createLog(free("new"), logDraftOf())), "unavailable");
  await store.sweep();
  for (const name of ["deleted", "fork"]) t.equal(await store.deleteLog(free(name)), "done");
  await store.sweep();
  t.same(await logKeys(node.link), []);
  for (const name of ["expired", "deleted", "fork"])
    t.equal(await store.logHead(free(name)), "missing");
});

t.test("a full Redis deletes logs while it refuses writes, and after a reconnect", async (t) => {
  const { node, client } = await start(t);
  const { store } = node;
  for (const name of ["a", "b"]) await store.createLog(free(name), logDraftOf());
  await rejectWrites(client, "maxmemory", true);
  const create = () => codeOf(store.createLog(free("new"), logDraftOf()));
  const calls = [create(), store.deleteLog(free("a")), create()];
  t.same(await Promise.all(calls), ["unavailable", "done", "unavailable"]);
  await reconnect(node, client);
  t.equal(await store.deleteLog(free("b")), "done");
  t.equal(await create(), "unavailable");
});

t.test("a sweep of a full Redis does not fail at channels with nothing to remove", async (t) => {
  const { node, client } = await start(t, { limits: { maxChannelMessages: 100 } });
  const { store, time } = node;
  await store.append(draftOf());
  time.nowMs += 100_000_000; // the channel is visited once a day
  await rejectWrites(client, "maxmemory", true);
  t.equal(await store.sweep(), 0);
});

t.test("a channel that cannot be swept does not prevent the removal of expired logs", async (t) => {
  const { node } = await start(t);
  const { store, time, link } = node;
  await store.append(draftOf({ expireS: 1 }));
  await store.createLog(free("l"), logDraftOf({ expiresAtMs: time.nowMs + 1000 }));
  await link.write("del", link.keys.channel("expiry", KEY));
  await link.write("set", link.keys.channel("expiry", KEY), "a wrong type");
  time.nowMs += 1000;
  t.equal(await codeOf(store.sweep()), "internal");
  const due = await link.call("zcard", link.keys.bucket("due", bucketOf(KEY)));
  t.equal(due, 1, "the channel stays due");
  t.equal(await store.logHead(free("l")), "missing");
  t.equal(await link.call("exists", link.keys.bucket("logExpiry", bucketOf("l"))), 0);
});
