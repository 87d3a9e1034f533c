// The registry of live nodes: heartbeats by Redis' clock, one process per node id, and no death
// while Redis is unreachable.

import t from "tap";
import { sessionsOf } from "../../contract/cluster-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { measureStalls } from "../../support/stalls.ts";
import {
  createNode,
  DEAD_AFTER_MS,
  disconnect,
  HEARTBEAT_MS,
  isOnline,
  liveNodes,
  sessionOn,
  startNode,
  until,
} from "./nodes.ts";

t.test("each node lists all live nodes, itself first", async (t) => {
  const redis = await startRedis(t);
  const a = await startNode(t, redis, { nodeId: "a" });
  const b = await startNode(t, redis, { nodeId: "b" });
  t.equal(await liveNodes(b), "a,b", "a node that joins later lists the others at once");
  await until(async () => (await liveNodes(a)) === "a,b");
  const [self, other] = await b.cluster.nodes();
  t.equal(self?.nodeId, "b");
  t.match(other, {
    nodeId: "a",
    clientAddress: "a:1",
    tcpAddress: "a:2",
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
  await until(async () => (await liveNodes(b)) === "b");
  const tookMs = performance.now() - since;
  t.ok(
    tookMs < DEAD_AFTER_MS + 10 * stalls.totalMs(),
    "a node that leaves is removed before it counts as dead",
  );
  await t.rejects(a.cluster.nodes(), { code: "unavailable" });
});

t.test("a Redis function library of the broker is deleted when no live node uses it", async (t) => {
  const redis = await startRedis(t);
  const load = (name: string) =>
    redis
      .client()
      .call(
        "FUNCTION",
        "LOAD",
        `#!lua name=${name}\nredis.register_function('${name}_f', function() return 1 end)`,
      );
  const libraries = async () =>
    ((await redis.client().call("FUNCTION", "LIST")) as readonly string[][])
      .map(([, name]) => name)
      .sort()
      .join();
  const [early, late] = ["jindou_aaaaaaaa", "jindou_bbbbbbbb"];
  for (const name of [early, "jindou_cccccccc", "other"]) await load(name);
  const a = await startNode(t, redis, { nodeId: "a", library: early });
  await until(async () => (await libraries()) === `${early},other`);
  await startNode(t, redis, { nodeId: "b", library: late });
  await load(late);
  await until(async () => (await liveNodes(a)) === "a,b");
  t.equal(await libraries(), `${early},${late},other`);
  await a.cluster.close();
  await until(async () => (await libraries()) === `${late},other`);
});

t.test("a node without heartbeats is no longer listed after deadAfterMs", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  await until(async () => (await a.cluster.nodes()).length === 2);
  await disconnect(b);
  const since = performance.now();
  const stalls = measureStalls(t);
  await until(async () => (await a.cluster.nodes()).length === 1);
  const tookMs = performance.now() - since;
  t.ok(
    tookMs < 3 * DEAD_AFTER_MS + 10 * stalls.totalMs(),
    `the node is removed after ${tookMs} ms`,
  );
});

t.test("a second process with the id of a live node does not start", async (t) => {
  const redis = await startRedis(t);
  const options = { nodeId: "same" };
  const a = await startNode(t, redis, options);
  const second = await createNode(t, redis, options);
  await t.rejects(second.cluster.start(), /"same"/);
  t.equal(await liveNodes(a), "same");

  const third = await createNode(t, redis, options);
  await disconnect(a);
  await t.resolves(third.cluster.start(), "a process starts when the node with its id is dead");
});

t.test("the id of a node that was closed can be used at once", async (t) => {
  const redis = await startRedis(t);
  const slow = { nodeId: "same", deadAfterMs: 60_000 };
  const a = await startNode(t, redis, slow);
  await a.cluster.close();
  const b = await startNode(t, redis, slow);
  t.equal(await liveNodes(b), "same");
});

t.test("an outage of Redis does not make nodes count as dead", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  await until(async () => (await a.cluster.nodes()).length === 2);
  await b.directory.login(sessionOn(b, "u"));
  const key = a.link.keys.shared("beats");
  const raw = redis.client();
  const before = await raw.zrange(key, "0", "-1");
  redis.signal("SIGSTOP");
  await new Promise((resolve) => setTimeout(resolve, 2 * DEAD_AFTER_MS));
  t.type(
    a.topics.silentSinceMs(),
    "number",
    "heartbeats without a reply do not count as rejected, so topics are suspended",
  );
  redis.signal("SIGCONT");
  const seen = new Set<boolean>();
  for (let checks = 0; checks < 20; ) {
    const isUserOnline = await isOnline(a, "u").catch(() => undefined); // fails until the node is connected again
    if (isUserOnline !== undefined) {
      seen.add(isUserOnline);
      checks += 1;
    }
    await new Promise((resolve) => setTimeout(resolve, HEARTBEAT_MS / 2));
  }
  t.same([...seen], [true]);
  t.same((await raw.zrange(key, "0", "-1")).sort(), before.sort());
});

t.test("a node that was declared dead continues as a new incarnation", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  const raw = redis.client();
  await b.directory.login(sessionOn(b, "u"));
  const key = b.link.keys.shared("beats");
  const incarnationOfB = (await raw.zrange(key, "0", "-1")).filter((incarnation) =>
    incarnation.startsWith(b.cluster.nodeId),
  );
  await raw.zadd(key, 1, incarnationOfB[0] ?? ""); // as if the last heartbeat of node b was in 1970
  await until(async () => {
    const incarnations = await raw.zrange(key, "0", "-1");
    return incarnations.length === 2 && !incarnations.includes(incarnationOfB[0] ?? "");
  });
  await until(() => isOnline(a, "u"));
  t.same(b.errors, []);
});

t.test("the entries of nodes and sessions are restored after Redis lost all data", async (t) => {
  const redis = await startRedis(t);
  const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
  const session = sessionOn(b, "u");
  await b.directory.login(session);
  await redis.client().flushall();
  await until(async () => (await a.cluster.nodes()).length === 2);
  await until(() => isOnline(a, "u"));
  t.same(await sessionsOf(a.store, "u"), [session]);
  t.same(b.events, [], "no session is ended");
});

t.test(
  "the entries of nodes and sessions are restored after Redis restarted without data",
  async (t) => {
    const redis = await startRedis(t);
    const [a, b] = [await startNode(t, redis), await startNode(t, redis)];
    const sessions = ["u1", "u2"].map((uid) => sessionOn(b, uid));
    for (const session of sessions) await b.directory.login(session);
    await redis.stop("SIGKILL");
    await t.rejects(b.directory.login(sessionOn(b, "u3")), {
      code: "unavailable",
    });
    await t.rejects(a.directory.presence(["u1"]), { code: "unavailable" });
    await redis.restart();
    await until(() => isOnline(a, "u1").catch(() => false));
    await until(() => isOnline(a, "u2"));
    t.same(await sessionsOf(a.store, "u1"), sessions.slice(0, 1));
    t.notOk(await isOnline(a, "u3"), "a session whose login was rejected is not entered");
    t.same([...a.errors, ...b.errors], []);
  },
);

t.test("a node reports once that its clock differs from the clock of Redis", async (t) => {
  const redis = await startRedis(t);
  const right = await startNode(t, redis);
  for (const offsetMs of [5000, -5000]) {
    let checks = 0;
    const clock = () => {
      checks += 1;
      return Date.now() + offsetMs;
    };
    const { offsets, clockCheck } = await startNode(t, redis, { clock });
    await until(() => checks >= 8);
    t.equal(offsets.length, 1);
    for (const seen of [...offsets, clockCheck.offsetMs]) {
      t.equal(Math.sign(seen), Math.sign(offsetMs));
      t.ok(Math.abs(seen) <= Math.abs(offsetMs));
    }
  }
  t.same(right.offsets, []);
  t.ok(Math.abs(right.clockCheck.offsetMs) < 1000);
});

t.test("a node that rejects calls as overloaded still sends heartbeats", async (t) => {
  const redis = await startRedis(t);
  const a = await startNode(t, redis);
  const b = await startNode(t, redis, { settings: { maxInFlight: 0 } });
  await t.rejects(b.link.ping(), { code: "overloaded" });
  await new Promise((resolve) => setTimeout(resolve, 2 * DEAD_AFTER_MS));
  t.equal((await a.cluster.nodes()).length, 2);
  await b.cluster.close();
  await until(async () => (await a.cluster.nodes()).length === 1);
});

t.test(
  "calls to a node before its start and after its close are rejected with `unavailable`",
  async (t) => {
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
  },
);
