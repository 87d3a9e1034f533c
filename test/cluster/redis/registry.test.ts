// Which nodes live: told with each heartbeat, by Redis' clock; no two under one id; nobody dies of
// Redis being away.

import t from "tap";
import { sessionsOf } from "../../contract/cluster-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { measureStalls } from "../../support/stalls.ts";
import {
  createNode,
  DEAD_AFTER_MS,
  HEARTBEAT_MS,
  isOnline,
  kill,
  living,
  sessionOn,
  startNode,
  until,
} from "./nodes.ts";

t.test("nodes know of each other, each names itself first", async (t) => {
  const redis = await startRedis(t);
  const a = await startNode(t, redis, { nodeId: "a" });
  const b = await startNode(t, redis, { nodeId: "b" });
  t.equal(await living(b), "a,b", "who comes later knows at once");
  await until(async () => (await living(a)) === "a,b");
  const [self, other] = await b.cluster.nodes();
  t.equal(self?.nodeId, "b");
  t.match(other, {
    nodeId: "a",
    clientAddress: "a:1",
    version: "1.2.3",
    startedAtMs: 7,
    sessions: 0,
    isDraining: false,
  });
  t.ok(other !== undefined && other.load >= 0 && other.load <= 1);

  await a.directory.login(sessionOn(a, "u1"));
  await a.directory.login(sessionOn(a, "u2"));
  a.isDraining = true;
  await until(async () => {
    const [, seen] = await b.cluster.nodes();
    return seen?.sessions === 2 && seen.isDraining;
  });

  await a.cluster.close();
  const since = performance.now();
  const stalls = measureStalls(t);
  await until(async () => (await living(b)) === "b");
  const tookMs = performance.now() - since;
  t.ok(tookMs < DEAD_AFTER_MS + 10 * stalls.totalMs(), "it said so");
  await t.rejects(a.cluster.nodes(), { code: "unavailable" });
});

t.test("a node that falls silent is dead in time", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  await until(async () => (await a.cluster.nodes()).length === 2);
  await kill(b);
  const since = performance.now();
  const stalls = measureStalls(t);
  await until(async () => (await a.cluster.nodes()).length === 1);
  const tookMs = performance.now() - since;
  t.ok(tookMs < 3 * DEAD_AFTER_MS + 10 * stalls.totalMs(), `${tookMs} ms`);
});

t.test("a second process under a living id does not start", async (t) => {
  const redis = await startRedis(t);
  const options = { nodeId: "same" };
  const a = await startNode(t, redis, options);
  const second = await createNode(t, redis, options);
  await t.rejects(second.cluster.start(), /"same"/);
  t.equal(await living(a), "same");

  const third = await createNode(t, redis, options);
  await kill(a);
  await t.resolves(third.cluster.start(), "its predecessor was dead soon");
});

t.test("after a clean end the id is free at once", async (t) => {
  const redis = await startRedis(t);
  const slow = { nodeId: "same", deadAfterMs: 60_000 };
  const a = await startNode(t, redis, slow);
  await a.cluster.close();
  const b = await startNode(t, redis, slow);
  t.equal(await living(b), "same");
});

t.test("nobody dies of Redis being away", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  await until(async () => (await a.cluster.nodes()).length === 2);
  await b.directory.login(sessionOn(b, "u"));
  const key = a.link.keys.shared("beats");
  const raw = redis.client();
  const before = await raw.zrange(key, "0", "-1");
  redis.signal("SIGSTOP");
  await new Promise((resolve) => setTimeout(resolve, 2 * DEAD_AFTER_MS));
  redis.signal("SIGCONT");
  const seen = new Set<boolean>();
  for (let looks = 0; looks < 20; ) {
    const isThere = await isOnline(a, "u").catch(() => undefined); // its connection comes back
    if (isThere !== undefined) {
      seen.add(isThere);
      looks += 1;
    }
    await new Promise((resolve) => setTimeout(resolve, HEARTBEAT_MS / 2));
  }
  t.same([...seen], [true]);
  t.same((await raw.zrange(key, "0", "-1")).sort(), before.sort());
});

t.test("a node that was declared dead is another incarnation", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  const raw = redis.client();
  await b.directory.login(sessionOn(b, "u"));
  const key = b.link.keys.shared("beats");
  const ofB = (await raw.zrange(key, "0", "-1")).filter((one) => one.startsWith(b.cluster.nodeId));
  await raw.zadd(key, 1, ofB[0] ?? ""); // as if it had said nothing since 1970
  await until(async () => {
    const found = await raw.zrange(key, "0", "-1");
    return found.length === 2 && !found.includes(ofB[0] ?? "");
  });
  await until(() => isOnline(a, "u"));
  t.same(b.problems, []);
});

t.test("all is entered again when Redis lost everything", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  const session = sessionOn(b, "u");
  await b.directory.login(session);
  await redis.client().flushall();
  await until(async () => (await a.cluster.nodes()).length === 2);
  await until(() => isOnline(a, "u"));
  t.same(await sessionsOf(a.store, "u"), [session]);
  t.same(b.events, [], "nobody was ended");
});

t.test("all is entered again when an empty Redis took over", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  const sessions = ["u1", "u2"].map((uid) => sessionOn(b, uid));
  for (const one of sessions) await b.directory.login(one);
  await redis.stop("SIGKILL");
  await t.rejects(b.directory.login(sessionOn(b, "u3")), {
    code: "unavailable",
  });
  await t.rejects(a.directory.presence(["u1"]), { code: "unavailable" });
  await redis.restart();
  await until(() => isOnline(a, "u1").catch(() => false));
  await until(() => isOnline(a, "u2"));
  t.same(await sessionsOf(a.store, "u1"), sessions.slice(0, 1));
  t.notOk(await isOnline(a, "u3"), "a refused session is nowhere");
  t.same([...a.problems, ...b.problems], []);
});

t.test("a node says once that its clock is off", async (t) => {
  const redis = await startRedis(t);
  const right = await startNode(t, redis);
  for (const offMs of [5000, -5000]) {
    let looks = 0;
    const clock = () => {
      looks += 1;
      return Date.now() + offMs;
    };
    const { offsets, clockCheck } = await startNode(t, redis, { clock });
    await until(() => looks >= 8);
    t.equal(offsets.length, 1);
    for (const seen of [...offsets, clockCheck.offsetMs]) {
      t.equal(Math.sign(seen), Math.sign(offMs));
      t.ok(Math.abs(seen) <= Math.abs(offMs));
    }
  }
  t.same(right.offsets, []);
  t.ok(Math.abs(right.clockCheck.offsetMs) < 1000);
});

t.test("a node with too much in flight still lives", async (t) => {
  const redis = await startRedis(t);
  const a = await startNode(t, redis);
  const b = await startNode(t, redis, { settings: { maxInFlight: 0 } });
  await t.rejects(b.link.ping(), { code: "overloaded" });
  await new Promise((resolve) => setTimeout(resolve, 2 * DEAD_AFTER_MS));
  t.equal((await a.cluster.nodes()).length, 2);
  await b.cluster.close();
  await until(async () => (await a.cluster.nodes()).length === 1);
});

t.test("before the start and after the end nothing is answered", async (t) => {
  const redis = await startRedis(t);
  const node = await createNode(t, redis);
  const refused = { code: "unavailable" };
  await t.rejects(node.directory.login(sessionOn(node, "u")), refused);
  await t.rejects(node.directory.presence(["u"]), refused);
  await node.cluster.start();
  await t.resolves(node.cluster.ping());
  await node.cluster.close();
  await t.rejects(node.directory.presence(["u"]), refused);
  await t.rejects(node.cluster.ping(), refused);
});
