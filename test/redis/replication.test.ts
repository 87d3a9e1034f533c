// WAIT: a write is answered when enough replicas have it, and refused when they have not.

import t, { type Test } from "tap";
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

const AT_ONCE = ["--repl-diskless-sync-delay", "0"];

/** A replica that is in step. */
async function replicaOf(t: Test, primary: RedisServer): Promise<RedisServer> {
  const replica = await startRedis(t, [...["--replicaof", `127.0.0.1 ${primary.port}`]]);
  await waitForReplication(primary.client(), replica.client());
  return replica;
}

t.test("a message is acknowledged when a replica has it, many with few waits", async (t) => {
  const primary = await startRedis(t, AT_ONCE);
  const replica = await replicaOf(t, primary);
  const { store, link } = await openStore(t, primary.url, { settings });
  const copy = replica.client();
  const log = link.keys.channel("log", "2:g");
  for (let i = 1; i <= 20; i++) {
    await store.append(draftOf());
    t.equal(await copy.xlen(log), i);
  }
  await Promise.all(Array.from({ length: 500 }, () => store.append(draftOf())));
  t.equal(await copy.xlen(log), 520);
  const stats = await primary.client().info("commandstats");
  const waits = Number(/cmdstat_wait:calls=(\d+)/.exec(stats)?.[1]);
  t.ok(waits >= 21 && waits < 200, `${waits} waits`);
});

t.test("without a replica in time it is refused, and the retry finds it", async (t) => {
  const primary = await startRedis(t, AT_ONCE);
  const replica = await replicaOf(t, primary);
  const { store } = await openStore(t, primary.url, { settings });
  await store.append(draftOf());
  replica.signal("SIGSTOP");
  const stalls = measureStalls(t);
  const started = Date.now();
  const calls = [store.append(retryOf("n")), store.append(retryOf("n"))];
  const codes = await Promise.all(calls.map(codeOf));
  t.same(codes, ["unavailable", "unavailable"], "a retry does not vouch for the first");
  const tookMs = Date.now() - started;
  t.ok(tookMs < 6000 + 10 * stalls.totalMs(), `in time: ${tookMs} ms`);
  t.same(await store.headSeq("2:g"), 2, "reads go on meanwhile");
  replica.signal("SIGCONT");
  t.match(await store.append(retryOf("n")), {
    messageSeq: 2,
    duplicate: true,
  });
  await replica.stop();
  t.equal(await codeOf(store.append(draftOf())), "unavailable");
});

t.test("it goes on when its connections were cut", async (t) => {
  const primary = await startRedis(t, AT_ONCE);
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
  t.ok(codes.has(undefined), "it goes on with new connections");
  t.ok([...codes].every((code) => code === undefined || code === "unavailable"));
});

t.test("on a Cluster the primary of the channel is waited for", async (t) => {
  const { url, primaries, replicas } = await startRedisCluster(t, {
    replicas: true,
  });
  const { store } = await openStore(t, url, { settings });
  const groups = Array.from({ length: 24 }, (_, i) => ({ id: `g${i}`, type: 2 }) as const);
  for (const channel of groups) await store.append(draftOf({ channel }));
  const stats = async ({ client }: RedisServer) =>
    /cmdstat_wait:/.test(await client().info("commandstats"));
  for (const primary of primaries) t.ok(await stats(primary));
  replicas[0]?.signal("SIGSTOP");
  const codes = await Promise.all(
    groups.map((channel) => codeOf(store.append(draftOf({ channel })))),
  );
  t.same(new Set(codes), new Set([undefined, "unavailable"]), "the others go on");
  replicas[0]?.signal("SIGCONT");
});
