// Nodes on Redis fulfil the contracts of a cluster and of sessions, on one server and on a Redis
// Cluster.

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
 * Time without a heartbeat after which a node counts as dead. All nodes run in this process, and
 * hundreds of logins happen at once. With short limits, replies of Redis would be read late and
 * nodes would declare each other dead, which these tests do not expect.
 */
const DEAD_AFTER_MS = 60_000;
const LONG_TIMEOUT = { timeoutMs: 60_000 };

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

  t.test(
    `${name}: exactly one of three main devices that log in concurrently stays online`,
    async (t) => {
      const nodes = await Promise.all([1, 2, 3].map(() => open(t, settings)));
      const errors = await Promise.all(Array.from({ length: 100 }, () => raceLogins(nodes)));
      t.same(errors.flat(), []);
    },
  );

  t.test(
    `${name}: an event that one node publishes reaches another node that listens to its topic`,
    async (t) => {
      const [a, b] = [await open(t, settings), await open(t, settings)];
      const uid = randomUUID();
      await b.cluster.listen(`p:${uid}`);
      a.cluster.publish({ kind: "presence", uid });
      await until(() => b.events.length === 1);
      t.same(b.events, [{ kind: "presence", uid }]);
      t.same(a.events, []);
    },
  );

  t.test(
    `${name}: the users of a node that leaves the cluster go offline, and watchers are notified`,
    async (t) => {
      const [a, b] = [await open(t, settings), await open(t, settings)];
      const uid = randomUUID();
      await a.cluster.listen(`p:${uid}`);
      await b.directory.login(sessionOn(b, uid));
      t.match(await a.directory.presence([uid]), [{ online: true }]);
      await b.close();
      await until(async () => {
        const [status] = await a.directory.presence([uid]);
        return status?.online === false;
      });
      await until(() =>
        a.events.some((event) => event.kind === "missed" && event.topic === `p:${uid}`),
      );
    },
  );
}

/** Logs a user in on three main devices at once. Returns descriptions of wrong results. */
async function raceLogins(nodes: readonly WholeNode[]): Promise<string[]> {
  const uid = randomUUID();
  const [listener] = nodes as [WholeNode];
  const endedSessions = await sessionsEndedDuring(listener, uid, () =>
    Promise.all(nodes.map((node) => node.directory.login(sessionOn(node, uid)))),
  );
  const sessionLists = await Promise.all(nodes.map((node) => sessionsOf(node.store, uid)));
  const presence = await Promise.all(nodes.map((node) => node.directory.presence([uid])));
  const survivors = new Set(sessionLists.flat().map(({ sessionId }) => sessionId));
  return [
    ...(endedSessions.length === 2 ? [] : ["the number of ended sessions is not 2"]),
    ...(survivors.size === 1 ? [] : ["the number of surviving sessions is not 1"]),
    ...(sessionLists.every((list) => list.length === 1) ? [] : ["the nodes list other sessions"]),
    ...(presence.flat().every(({ online }) => online) ? [] : ["the user is offline"]),
  ];
}

t.test(
  "nodes on one Redis server fulfil the contracts of the cluster and of sessions",
  async (t) => {
    const redis = await startRedis(t);
    const settings = redisSettings(redis.url, LONG_TIMEOUT);
    await suites(t, "redis", settings);

    t.test(
      "a node that may have missed events restores the entries of its sessions that Redis lost",
      async (t) => {
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
      },
    );
  },
);

t.test(
  "nodes on a Redis Cluster fulfil the contracts of the cluster and of sessions",
  async (t) => {
    const { url } = await startRedisCluster(t);
    await suites(t, "redis cluster", redisSettings(url, LONG_TIMEOUT));
  },
);
