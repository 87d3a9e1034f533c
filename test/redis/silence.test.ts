// A Redis that says nothing and does not hang up: its host lost power, the network was cut, the
// process hangs. The node leaves the connection for a new one, and holds no more than it may
// meanwhile.

import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import t, { type Test } from "tap";
import { codeOf, draftOf } from "../contract/store-fixture.ts";
import { type OneStore, openStore } from "../store/redis/one-store.ts";
import { type RedisServer, startRedis, startRedisCluster } from "../support/redis.ts";
import { startSentinels } from "../support/sentinels.ts";

const PATIENCE_MS = 120_000;
const QUICK = { timeoutMs: 1000 };

/**
 * A way to the server whose connections can be frozen: nothing passes any more, and neither end is
 * told. New ones work. Or answers are held: what the server says waits until it is let go, and what
 * comes later is held again.
 */
async function startProxy(t: Test, { port }: RedisServer) {
  const open = new Map<net.Socket, net.Socket>();
  const held: (() => void)[] = [];
  let opened = 0;
  let asked = 0;
  let isHeld = false;
  const proxy = net.createServer((near) => {
    const far = net.connect(port, "127.0.0.1");
    opened += 1;
    open.set(near, far);
    near.on("data", (data) => {
      asked += 1;
      if (open.has(near)) far.write(data);
    });
    far.on("data", (data) => {
      if (isHeld) held.push(() => near.write(data));
      else if (open.has(near)) near.write(data);
    });
    for (const end of [near, far]) end.on("error", () => {}); // cut by the other side
    near.on("close", () => far.destroy());
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const all: net.Socket[] = [];
  t.teardown(() => {
    for (const end of [...all, ...[...open].flat()]) end.destroy();
    proxy.close();
  });
  return {
    url: `redis://127.0.0.1:${(proxy.address() as net.AddressInfo).port}`,
    opened: () => opened,
    /** How often a client wrote. */
    asked: () => asked,
    hold() {
      isHeld = true;
    },
    held: () => held.length,
    letGo() {
      for (const answer of held.splice(0)) answer();
    },
    freeze() {
      all.push(...[...open].flat());
      open.clear();
    },
  };
}

/** Appends until one is taken; what the others were told. */
async function insist({ store }: OneStore): Promise<Set<string | undefined>> {
  const codes = new Set<string | undefined>();
  const deadline = performance.now() + PATIENCE_MS;
  while (!codes.has(undefined)) {
    if (performance.now() > deadline) throw new Error("not in time");
    codes.add(await codeOf(store.append(draftOf())));
    await sleep(20);
  }
  codes.delete(undefined);
  return codes;
}

/** Commands that the library holds for the one server. */
function waiting({ link }: OneStore): number {
  const [server] = link.primaries() as unknown as {
    readonly commandQueue: { readonly length: number };
  }[];
  return server?.commandQueue.length ?? 0;
}

t.test("a Redis that evicts is warned of", async (t) => {
  const evicting = ["--maxmemory-policy", "volatile-lru"];
  const [one, other] = await Promise.all([
    openStore(t, (await startRedis(t, evicting)).url),
    openStore(t, (await startRedis(t)).url),
  ]);
  t.match(one?.problems.map(String), [/volatile-lru/]);
  t.equal(one?.problems.length, 1);
  t.same(other?.problems, []);
});

t.test("a connection that falls silent is left for a new one", async (t) => {
  const proxy = await startProxy(t, await startRedis(t));
  const node = await openStore(t, proxy.url, { settings: QUICK });
  await insist(node);
  const before = proxy.opened();
  proxy.freeze();
  t.same(await insist(node), new Set(["unavailable"]));
  t.ok(proxy.opened() > before);
});

t.test("and one that only waits for replicas as well", async (t) => {
  const primary = await startRedis(t, ["--repl-diskless-sync-delay", "0"]);
  await startRedis(t, ["--replicaof", `127.0.0.1 ${primary.port}`]);
  const proxy = await startProxy(t, primary);
  const settings = { ...QUICK, minReplicas: 1 };
  const node = await openStore(t, proxy.url, { settings });
  await insist(node);
  proxy.freeze();
  t.same(await insist(node), new Set(["unavailable"]));
});

t.test("a Redis that hangs is given no more than may wait", async (t) => {
  const redis = await startRedis(t);
  const settings = { timeoutMs: 500, maxInFlight: 100 };
  const node = await openStore(t, redis.url, { settings });
  const { store, link } = node;
  await insist(node);
  redis.signal("SIGSTOP");
  const codes = new Set<string | undefined>();
  let most = 0;
  const deadline = performance.now() + 3 * settings.timeoutMs;
  while (performance.now() < deadline || link.isUp) {
    const some = Array.from({ length: 90 }, () => store.append(draftOf()));
    most = Math.max(most, waiting(node));
    for (const code of await Promise.all(some.map(codeOf))) codes.add(code);
    await sleep(20);
  }
  t.ok(most <= settings.maxInFlight, `${most} wait`);
  t.notOk(codes.has(undefined));
  t.ok([...codes].every((one) => one === "unavailable" || one === "overloaded"));
  t.equal(link.isUp, false, "nothing is asked of it any more");
  redis.signal("SIGCONT");
  await insist(node);
  t.ok(waiting(node) <= 1);
});

t.test("a message waits for it for redis.timeoutMs in all", async (t) => {
  const proxy = await startProxy(t, await startRedis(t));
  const timeoutMs = 2000;
  const node = await openStore(t, proxy.url, { settings: { timeoutMs } });
  const send = async () => {
    const sinceMs = performance.now();
    const code = await codeOf(node.store.append(draftOf()));
    return { code, ms: performance.now() - sinceMs };
  };
  const at = (part: number) => sleep(startMs + part * timeoutMs - performance.now());
  await insist(node);
  proxy.hold();
  const startMs = performance.now();
  const taken = send(); // no other call, unless a full one, while this one is not answered
  await at(0.1);
  const early = send();
  await at(0.5);
  const late = send();
  await at(0.8);
  t.equal(proxy.held(), 1);
  const asked = proxy.asked();
  proxy.letGo();
  t.equal((await taken).code, undefined);
  t.equal((await early).code, "unavailable");
  t.ok((await early).ms < timeoutMs, "it waited too long to be sent");
  const { code, ms } = await late;
  t.equal(code, "unavailable");
  t.equal(proxy.asked(), asked + 1, "it was sent and not answered");
  t.ok(ms < 1.15 * timeoutMs, `${Math.round(ms)} ms`); // 0.3 more if it waited as long again
});

t.test("however large what waits is", async (t) => {
  const redis = await startRedis(t);
  const settings = { timeoutMs: 2000, maxInFlight: 20_000 };
  const node = await openStore(t, redis.url, { settings });
  redis.signal("SIGSTOP");
  const payload = Buffer.alloc(1_000_000);
  const calls = Array.from({ length: 100 }, () => node.link.call("set", "large", payload));
  const codes = await Promise.all(calls.map(codeOf));
  const of = (code: string) => codes.filter((one) => one === code).length;
  t.ok(of("overloaded") >= 20, `${of("overloaded")} of 100`);
  t.equal(of("overloaded") + of("unavailable"), 100);
  redis.signal("SIGCONT");
  await insist(node);
});

t.test("Sentinels fail over from a primary that hangs", async (t) => {
  const watched = await startSentinels(t, 1);
  const settings = {
    ...{ timeoutMs: 500, sentinelName: watched.name },
    sentinelPassword: watched.password,
  };
  const node = await openStore(t, watched.url, { settings });
  await insist(node);
  watched.primary.signal("SIGSTOP");
  await insist(node);
  const [replica] = watched.replicas;
  t.match(await replica?.client().info("replication"), /role:master/);
});

t.test("a Cluster's server that hangs is come back to", async (t) => {
  const { url, primaries } = await startRedisCluster(t);
  const node = await openStore(t, url, { settings: QUICK });
  const groups = Array.from({ length: 24 }, (_, i) => ({ id: `g${i}`, type: 2 }) as const);
  const each = () =>
    Promise.all(groups.map((channel) => codeOf(node.store.append(draftOf({ channel })))));
  t.same(new Set(await each()), new Set([undefined]));
  const hanging = primaries[0];
  hanging?.signal("SIGSTOP");
  for (let i = 0; i < 2; i++) {
    const codes = await each();
    t.ok(codes.includes(undefined), "the others go on");
    t.ok(codes.includes("unavailable"));
  }
  hanging?.signal("SIGCONT");
  const deadline = performance.now() + PATIENCE_MS;
  while (new Set(await each()).size > 1 && performance.now() < deadline) await sleep(50);
  t.same(new Set(await each()), new Set([undefined]));
});
