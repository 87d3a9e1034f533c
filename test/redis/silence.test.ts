// A Redis that neither replies nor closes its connection: its host lost power, the network was cut,
// or the process hangs. The node replaces the connection, and keeps only a limited number of calls
// in the meantime.

import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import t, { type Test } from "tap";
import { codeOf, draftOf } from "../contract/store-fixture.ts";
import { openStore, type StoreNode } from "../store/redis/one-store.ts";
import {
  type RedisServer,
  startRedis,
  startRedisCluster,
  waitForReplication,
} from "../support/redis.ts";
import { startSentinels } from "../support/sentinels.ts";
import { measureStalls } from "../support/stalls.ts";

const WAIT_LIMIT_MS = 120_000;
const SHORT_TIMEOUT = { timeoutMs: 1000 };

/**
 * Starts a proxy to the server. `freeze` freezes its open connections: no byte passes any more, and
 * neither end is notified. New connections work. `hold` makes the server's replies wait until
 * `release`, and replies that arrive later are held again.
 */
async function startProxy(t: Test, { port }: RedisServer) {
  const connections = new Map<net.Socket, net.Socket>();
  const heldReplies: (() => void)[] = [];
  let connectionCount = 0;
  let writeCount = 0;
  let isHeld = false;
  const proxy = net.createServer((near) => {
    const far = net.connect(port, "127.0.0.1");
    connectionCount += 1;
    connections.set(near, far);
    near.on("data", (data) => {
      if (data.includes("evalsha")) writeCount += 1;
      if (connections.has(near)) far.write(data);
    });
    far.on("data", (data) => {
      if (isHeld) {
        heldReplies.push(() => near.write(data));
      } else if (connections.has(near)) near.write(data);
    });
    // An error means that the other side has closed the connection.
    for (const end of [near, far]) end.on("error", () => {});
    near.on("close", () => far.destroy());
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const frozen: net.Socket[] = [];
  t.teardown(() => {
    for (const end of [...frozen, ...[...connections].flat()]) end.destroy();
    proxy.close();
  });
  return {
    url: `redis://127.0.0.1:${(proxy.address() as net.AddressInfo).port}`,
    connectionCount: () => connectionCount,
    /** Returns the number of packets with a script call that clients have sent. */
    writeCount: () => writeCount,
    hold() {
      isHeld = true;
    },
    release() {
      for (const write of heldReplies.splice(0)) write();
    },
    freeze() {
      frozen.push(...[...connections].flat());
      connections.clear();
    },
  };
}

/** Appends messages until one is accepted, and returns the error codes of the others. */
async function appendUntilAccepted({ store }: StoreNode): Promise<Set<string | undefined>> {
  const codes = new Set<string | undefined>();
  const deadline = performance.now() + WAIT_LIMIT_MS;
  while (!codes.has(undefined)) {
    if (performance.now() > deadline) throw new Error("no message was accepted in time");
    codes.add(await codeOf(store.append(draftOf())));
    await sleep(20);
  }
  codes.delete(undefined);
  codes.delete("too_late"); // on a slow machine, a message may reach the server after its deadline
  return codes;
}

/** Returns the number of commands that ioredis holds for the server. */
function pendingCommands({ link }: StoreNode): number {
  const [server] = link.primaries() as unknown as {
    readonly commandQueue: { readonly length: number };
  }[];
  return server?.commandQueue.length ?? 0;
}

t.test("a Redis whose maxmemory-policy evicts data is reported at start", async (t) => {
  const evicting = ["--maxmemory-policy", "volatile-lru"];
  const [evictingNode, safeNode] = await Promise.all([
    openStore(t, (await startRedis(t, evicting)).url),
    openStore(t, (await startRedis(t)).url),
  ]);
  t.match(evictingNode?.problems.map(String), [/volatile-lru/]);
  t.equal(evictingNode?.problems.length, 1);
  t.same(safeNode?.problems, []);
});

t.test("a connection to Redis that receives no replies is replaced", async (t) => {
  const proxy = await startProxy(t, await startRedis(t));
  const node = await openStore(t, proxy.url, { settings: SHORT_TIMEOUT });
  await appendUntilAccepted(node);
  const before = proxy.connectionCount();
  proxy.freeze();
  t.same(await appendUntilAccepted(node), new Set(["unavailable"]));
  t.ok(proxy.connectionCount() > before);
});

t.test("a connection to Redis that receives no replies to WAIT is replaced", async (t) => {
  const primary = await startRedis(t, ["--repl-diskless-sync-delay", "0"]);
  const replica = await startRedis(t, ["--replicaof", `127.0.0.1 ${primary.port}`]);
  await waitForReplication(primary.client(), replica.client());
  await primary.client()?.set("first", "1");
  await primary.client()?.wait(1, WAIT_LIMIT_MS); // the replica has begun to confirm writes
  const proxy = await startProxy(t, primary);
  const settings = { ...SHORT_TIMEOUT, minReplicas: 1 };
  const node = await openStore(t, proxy.url, { settings });
  await appendUntilAccepted(node);
  proxy.freeze();
  t.same(await appendUntilAccepted(node), new Set(["unavailable"]));
});

t.test("a node keeps at most redis.maxInFlight commands pending while Redis hangs", async (t) => {
  const redis = await startRedis(t);
  const settings = { timeoutMs: 500, maxInFlight: 100 };
  const node = await openStore(t, redis.url, { settings });
  const { store, link } = node;
  await appendUntilAccepted(node);
  redis.signal("SIGSTOP");
  const codes = new Set<string | undefined>();
  let maxPending = 0;
  const deadline = performance.now() + 3 * settings.timeoutMs;
  while (performance.now() < deadline || link.isUp) {
    const calls = Array.from({ length: 90 }, () => store.append(draftOf()));
    maxPending = Math.max(maxPending, pendingCommands(node));
    for (const code of await Promise.all(calls.map(codeOf))) codes.add(code);
    await sleep(20);
  }
  t.ok(maxPending <= settings.maxInFlight, `${maxPending} commands were pending`);
  t.notOk(codes.has(undefined));
  t.ok([...codes].every((code) => code === "unavailable" || code === "overloaded"));
  t.equal(link.isUp, false, "the node sends no more calls to the silent server");
  redis.signal("SIGCONT");
  await appendUntilAccepted(node);
  // The link itself may have one pending command at any moment.
  const limitMs = performance.now() + WAIT_LIMIT_MS;
  while (pendingCommands(node) > 1 && performance.now() < limitMs) await sleep(5);
  t.ok(pendingCommands(node) <= 1, "no command of the outage is pending any more");
});

t.test(
  "a message waits at most redis.timeoutMs in total, in the queue and for its reply",
  async (t) => {
    const redis = await startRedis(t);
    const timeoutMs = 2000;
    // A round in which this process had to wait for the processor is repeated, up to five times.
    let round = await sendWhileHeld(t, redis, timeoutMs);
    for (let at = 0; at < 5 && round.stalledMs > 0.05 * timeoutMs; at++)
      round = await sendWhileHeld(t, redis, timeoutMs);
    const { first, early, late, queuedWrites, lateWrites } = round;
    t.equal(queuedWrites, 1, "later messages wait in the queue");
    t.equal(first.code, undefined);
    t.equal(early.code, "unavailable");
    t.ok(early.ms < timeoutMs, "the second message was rejected before it was sent");
    t.equal(late.code, "unavailable");
    t.equal(lateWrites, 1, "the late message was sent but got no reply");
    // If the time in the queue did not count, this would take 1.3 times `timeoutMs`.
    t.ok(late.ms < 1.15 * timeoutMs, `the late message was rejected after ${late.ms} ms`);
  },
);

/**
 * Sends three messages while the replies of Redis are held, and returns the outcome of each. The
 * reply to the first one is released after 0.8 times the timeout.
 */
async function sendWhileHeld(t: Test, redis: RedisServer, timeoutMs: number) {
  const proxy = await startProxy(t, redis);
  const node = await openStore(t, proxy.url, { settings: { timeoutMs } });
  const send = async () => {
    const sinceMs = performance.now();
    const code = await codeOf(node.store.append(draftOf()));
    return { code, ms: Math.round(performance.now() - sinceMs) };
  };
  const at = (part: number) => sleep(startMs + part * timeoutMs - performance.now());
  await appendUntilAccepted(node);
  proxy.hold();
  const writesBefore = proxy.writeCount();
  const stalls = measureStalls(t);
  const startMs = performance.now();
  const sendingFirst = send(); // a call in flight: later messages wait in the queue
  await at(0.1);
  const sendingEarly = send();
  await at(0.5);
  const sendingLate = send();
  await at(0.8);
  const queuedWrites = proxy.writeCount() - writesBefore;
  proxy.release();
  const [first, early, late] = [await sendingFirst, await sendingEarly, await sendingLate];
  const lateWrites = proxy.writeCount() - writesBefore - queuedWrites;
  return { first, early, late, queuedWrites, lateWrites, stalledMs: stalls.totalMs() };
}

t.test(
  "a connection to Redis over its limit of unsent bytes rejects calls with `overloaded`",
  async (t) => {
    const redis = await startRedis(t);
    const settings = { timeoutMs: 2000, maxInFlight: 20_000 };
    const node = await openStore(t, redis.url, { settings });
    redis.signal("SIGSTOP");
    const payload = Buffer.alloc(1_000_000);
    const calls = Array.from({ length: 100 }, () => node.link.call("set", "large", payload));
    const codes = await Promise.all(calls.map(codeOf));
    const countOf = (code: string) => codes.filter((other) => other === code).length;
    t.ok(countOf("overloaded") >= 20, `${countOf("overloaded")} of 100 calls are rejected`);
    t.equal(countOf("overloaded") + countOf("unavailable"), 100);
    redis.signal("SIGCONT");
    await appendUntilAccepted(node);
  },
);

t.test(
  "a node uses the new primary after Sentinels have replaced a primary that hangs",
  async (t) => {
    const watched = await startSentinels(t, 1);
    const settings = {
      ...{ timeoutMs: 500, sentinelName: watched.name },
      sentinelPassword: watched.password,
    };
    const node = await openStore(t, watched.url, { settings });
    await appendUntilAccepted(node);
    watched.primary.signal("SIGSTOP");
    await appendUntilAccepted(node);
    const [replica] = watched.replicas;
    t.match(await replica?.client().info("replication"), /role:master/);
  },
);

t.test("a Redis Cluster server that hung is used again when it replies", async (t) => {
  const { url, primaries } = await startRedisCluster(t);
  const node = await openStore(t, url, { settings: SHORT_TIMEOUT });
  const groups = Array.from({ length: 24 }, (_, i) => ({ id: `g${i}`, type: 2 }) as const);
  const appendToEach = () =>
    Promise.all(groups.map((channel) => codeOf(node.store.append(draftOf({ channel })))));
  t.same(new Set(await appendToEach()), new Set([undefined]));
  const hanging = primaries[0];
  hanging?.signal("SIGSTOP");
  for (let i = 0; i < 2; i++) {
    const codes = await appendToEach();
    t.ok(codes.includes(undefined), "channels on other servers are not affected");
    t.ok(codes.includes("unavailable"));
  }
  hanging?.signal("SIGCONT");
  const deadline = performance.now() + WAIT_LIMIT_MS;
  while (new Set(await appendToEach()).size > 1 && performance.now() < deadline) await sleep(50);
  t.same(new Set(await appendToEach()), new Set([undefined]));
});
