// A write is acknowledged when the required number of replicas has the write (WAIT). It is rejected
// if these replicas do not have it in time.

import t, { type Test } from "tap";
import { channelKey } from "../../src/broker/model.ts";
import { ReplicationBarrier } from "../../src/redis/replication.ts";
import { slotOf } from "../../src/redis/slots.ts";
import { codeOf, draftOf, retryOf } from "../contract/store-fixture.ts";
import { openStore } from "../store/redis/one-store.ts";
import {
  type RedisServer,
  startRedis,
  startRedisCluster,
  waitForReplication,
} from "../support/redis.ts";
import { measureStalls } from "../support/stalls.ts";

const settings = { minReplicas: 1, timeoutMs: 1500 };
/** Settings with which every message is replicated in time, even on a busy machine. */
const UNHURRIED = { ...settings, timeoutMs: 60_000 };

/** Makes a primary send its data to new replicas at once. */
const SYNC_AT_ONCE = ["--repl-diskless-sync-delay", "0"];

/** Starts a replica and waits until it has all data of the primary. */
async function replicaOf(t: Test, primary: RedisServer): Promise<RedisServer> {
  const replica = await startRedis(t, [...["--replicaof", `127.0.0.1 ${primary.port}`]]);
  await waitForReplication(primary.client(), replica.client());
  return replica;
}

t.test(
  "a message is acknowledged only after a replica has it, and many messages share few WAIT calls",
  async (t) => {
    const primary = await startRedis(t, SYNC_AT_ONCE);
    const replica = await replicaOf(t, primary);
    const { store, link } = await openStore(t, primary.url, { settings: UNHURRIED });
    const replicaClient = replica.client();
    const log = link.keys.channel("log", "2:g");
    for (let i = 1; i <= 20; i++) {
      await store.append(draftOf());
      t.equal(await replicaClient.xlen(log), i);
    }
    await Promise.all(Array.from({ length: 500 }, () => store.append(draftOf())));
    t.equal(await replicaClient.xlen(log), 520);
    const stats = await primary.client().info("commandstats");
    const waits = Number(/cmdstat_wait:calls=(\d+)/.exec(stats)?.[1]);
    t.ok(waits >= 21 && waits < 200, `the primary ran WAIT ${waits} times`);
  },
);

t.test(
  "a message that no replica receives in time is rejected as unavailable, and its retry is a duplicate",
  async (t) => {
    const primary = await startRedis(t, SYNC_AT_ONCE);
    const replica = await replicaOf(t, primary);
    const { store } = await openStore(t, primary.url, { settings });
    await store.append(draftOf());
    replica.signal("SIGSTOP");
    const stalls = measureStalls(t);
    const started = Date.now();
    const calls = [store.append(retryOf("n")), store.append(retryOf("n"))];
    const codes = await Promise.all(calls.map(codeOf));
    t.same(
      codes,
      ["unavailable", "unavailable"],
      "a retry is not acknowledged before the first message is replicated",
    );
    const tookMs = Date.now() - started;
    t.ok(tookMs < 6000 + 10 * stalls.totalMs(), `the rejection took ${tookMs} ms`);
    t.same(await store.headSeq("2:g"), 2, "reads work in the meantime");
    replica.signal("SIGCONT");
    t.match(await store.append(retryOf("n")), {
      messageSeq: 2,
      duplicate: true,
    });
    await replica.stop();
    t.equal(await codeOf(store.append(draftOf())), "unavailable");
  },
);

t.test("acknowledgements resume after Redis closes the node's connections", async (t) => {
  const primary = await startRedis(t, SYNC_AT_ONCE);
  await replicaOf(t, primary);
  const { store } = await openStore(t, primary.url, { settings });
  await store.append(draftOf());
  const client = primary.client();
  await client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
  const codes = new Set<string | undefined>();
  for (let i = 0; i < 200 && !(codes.size > 0 && codes.has(undefined)); i++) {
    codes.add(await codeOf(store.append(draftOf())));
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  t.ok(codes.has(undefined), "messages are acknowledged over new connections");
  t.ok([...codes].every((code) => code === undefined || code === "unavailable"));
});

t.test(
  "a message on a Redis Cluster waits only for the replicas of its channel's primary",
  async (t) => {
    const { url, primaries, replicas } = await startRedisCluster(t, {
      replicas: true,
    });
    const { store } = await openStore(t, url, { settings });
    const groups = Array.from({ length: 24 }, (_, i) => ({ id: `g${i}`, type: 2 }) as const);
    for (const channel of groups) await store.append(draftOf({ channel }));
    const hasWaited = async ({ client }: RedisServer) =>
      /cmdstat_wait:/.test(await client().info("commandstats"));
    for (const primary of primaries) t.ok(await hasWaited(primary));
    replicas[0]?.signal("SIGSTOP");
    const codes = await Promise.all(
      groups.map((channel) => codeOf(store.append(draftOf({ channel })))),
    );
    t.same(
      new Set(codes),
      new Set([undefined, "unavailable"]),
      "channels of other primaries are not affected",
    );
    replicas[0]?.signal("SIGCONT");
  },
);

t.test(
  "a personal message on a Redis Cluster also waits for the replicas of its users' primaries",
  async (t) => {
    const { url, replicas } = await startRedisCluster(t, { replicas: true });
    const { store, link } = await openStore(t, url, { settings });
    const isOnFirst = (key: string) => slotOf(key) < Math.ceil(16_384 / 3);
    const isChosen = (uid: string, fromUid: string) =>
      isOnFirst(link.keys.user("peers", uid)) &&
      !isOnFirst(link.keys.channel("head", channelKey({ id: uid, type: 1 }, fromUid)));
    const names = Array.from({ length: 1000 }, (_, n) => `u${n}`);
    const fromUid = names.find((name) => !isOnFirst(link.keys.user("peers", name))) ?? "";
    const uid = names.find((name) => isChosen(name, fromUid)) ?? "";
    const toUser = draftOf({ channel: { id: uid, type: 1 }, fromUid, clientMsgNo: "n" });
    replicas[0]?.signal("SIGSTOP");
    t.equal(await codeOf(store.append(toUser)), "unavailable");
    replicas[0]?.signal("SIGCONT");
    t.match(await store.append(toUser), { messageSeq: 1, duplicate: true });
  },
);

// Calls the barrier directly, because the connection must be lost between two writes of one call.
t.test(
  "the writes of one call are not confirmed if the connection to the primary was lost after the first write",
  async (t) => {
    const primary = await startRedis(t, SYNC_AT_ONCE);
    await replicaOf(t, primary);
    const { link } = await openStore(t, primary.url, { settings });
    const barrier = new ReplicationBarrier(link);
    t.teardown(() => barrier.close());
    const replicated = barrier.observe();
    await barrier.observe()();
    await primary.client().call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    while ((await codeOf(barrier.observe()())) !== undefined)
      await new Promise((resolve) => setTimeout(resolve, 5));
    t.equal(await codeOf(replicated()), "unavailable");
    await barrier.observe()();
  },
);
