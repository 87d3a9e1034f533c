// Nodes on Redis keep the contracts of a cluster and of sessions, on one server and on a Redis
// Cluster; across nodes as within one.

import { randomUUID } from "node:crypto";
import t, { type Test } from "tap";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { clusterContract } from "../../contract/cluster.ts";
import { sessionsEndedDuring, sessionsOf } from "../../contract/cluster-fixture.ts";
import { sessionContract } from "../../contract/sessions.ts";
import { redisSettings, startRedis, startRedisCluster } from "../../support/redis.ts";
import { sessionOn, until } from "./nodes.ts";
import { startWholeNode, type WholeNode } from "./whole-node.ts";

/**
 * All nodes share this process, and hundreds of logins come at once. Where its turns come late,
 * answers of Redis are not read in time, and each node takes the others for dead; neither is what
 * these tests are about.
 */
const DEAD_AFTER_MS = 60_000;
const PATIENT = { timeoutMs: 60_000 };

async function open(t: Test, settings: RedisSettings): Promise<WholeNode> {
  const node = await startWholeNode({
    ...{ nodeId: randomUUID(), settings },
    ...{ heartbeatMs: 100, deadAfterMs: DEAD_AFTER_MS },
  });
  t.teardown(() => node.close());
  return node;
}

async function suites(t: Test, name: string, settings: RedisSettings): Promise<void> {
  const driver = { name, open: (t: Test) => open(t, settings) };
  clusterContract(t, driver);
  sessionContract(t, driver);

  t.test(`${name}: simultaneous main logins on three nodes`, async (t) => {
    const nodes = await Promise.all([1, 2, 3].map(() => open(t, settings)));
    const wrong = await Promise.all(Array.from({ length: 100 }, () => loginRound(nodes)));
    t.same(wrong.flat(), []);
  });

  t.test(`${name}: what one node publishes another hears`, async (t) => {
    const [a, b] = [await open(t, settings), await open(t, settings)];
    const uid = randomUUID();
    await b.cluster.listen(`p:${uid}`);
    a.cluster.publish({ kind: "presence", uid });
    await until(() => b.events.length === 1);
    t.same(b.events, [{ kind: "presence", uid }]);
    t.same(a.events, []);
  });

  t.test(`${name}: sessions of a node that leaves are offline`, async (t) => {
    const [a, b] = [await open(t, settings), await open(t, settings)];
    const uid = randomUUID();
    await a.cluster.listen(`p:${uid}`);
    await b.directory.login(sessionOn(b, uid));
    t.match(await a.directory.presence([uid]), [{ online: true }]);
    await b.close();
    await until(async () => {
      const [one] = await a.directory.presence([uid]);
      return one?.online === false;
    });
    await until(() => a.events.some((one) => one.kind === "presence"));
  });
}

/** Three mains of one user log in at once; what is wrong afterwards. */
async function loginRound(nodes: readonly WholeNode[]): Promise<string[]> {
  const uid = randomUUID();
  const [hearing] = nodes as [WholeNode];
  const told = await sessionsEndedDuring(hearing, uid, () =>
    Promise.all(nodes.map((node) => node.directory.login(sessionOn(node, uid)))),
  );
  const seen = await Promise.all(nodes.map((node) => sessionsOf(node.store, uid)));
  const presence = await Promise.all(nodes.map((node) => node.directory.presence([uid])));
  const survivors = new Set(seen.flat().map((one) => one.sessionId));
  return [
    ...(told.length === 2 ? [] : ["not two were ended"]),
    ...(survivors.size === 1 ? [] : ["not one survives"]),
    ...(seen.every((one) => one.length === 1) ? [] : ["directories differ"]),
    ...(presence.flat().every((one) => one.online) ? [] : ["offline"]),
  ];
}

t.test("one server", async (t) => {
  const redis = await startRedis(t);
  const settings = redisSettings(redis.url, PATIENT);
  await suites(t, "redis", settings);

  t.test("who may have missed events looks after its sessions", async (t) => {
    const [a, b] = [await open(t, settings), await open(t, settings)];
    const uid = randomUUID();
    await a.cluster.listen(`u:${uid}`);
    const session = sessionOn(a, uid);
    await a.directory.login(session);
    const raw = redis.client();
    const { keys } = a.link;
    await raw.del(keys.user("sessions", uid));
    await raw.del(keys.user("logins", uid));
    await raw.call("CLIENT", "KILL", "TYPE", "pubsub");
    await until(async () => (await sessionsOf(b.store, uid)).length === 1);
    t.same(await sessionsOf(b.store, uid), [session]);
  });
});

t.test("Redis Cluster", async (t) => {
  const { url } = await startRedisCluster(t);
  await suites(t, "redis cluster", redisSettings(url, PATIENT));
});
