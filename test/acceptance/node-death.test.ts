// If the other nodes consider a node dead, its sessions count as offline although their entries
// still exist. A node whose own heartbeat fails is not ready. Uses two broker processes on their
// own Redis.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { type ApiResponse, spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { startRedis } from "../support/redis.ts";

const DEAD_AFTER_MS = 1000;
const WAIT_MS = 120_000;

const redis = await startRedis(t);
const client = redis.client();
const settings = {
  JINDOU_REDIS_URL: redis.url,
  JINDOU_AUTH_CLIENTS: "none",
  JINDOU_CLUSTER_DEAD_AFTER_MS: String(DEAD_AFTER_MS),
};
const [alive, dying] = await Promise.all([
  spawnBroker(t, { ...settings, JINDOU_NODE_ID: "alive" }),
  spawnBroker(t, { ...settings, JINDOU_NODE_ID: "dying" }),
]);

t.test("sessions of a dead node count as offline, and their Redis entries expire", async (t) => {
  await connectNative(t, { port: alive.clientPort, uid: "here" });
  await connectNative(t, { port: dying.clientPort, uid: "there" });
  const uids = ["here", "there"];
  const online = async () => {
    const { body } = await alive.call("/user/onlinestatus", uids);
    return body.map((user: { online: number }) => user.online);
  };
  await until(async () => String(await online()) === "1,1");
  await dying.kill();
  const killedMs = performance.now();
  await until(async () => String(await online()) === "1,0");
  t.comment(`offline after ${(performance.now() - killedMs).toFixed(0)} ms`);

  // This test reads Redis directly, because the API does not show when an entry expires.
  const key = "jd:{u:there}:sessions";
  t.equal(await client.hlen(key), 1, "no node has removed the entry");
  const keptMs = await client.pttl(key);
  t.ok(keptMs > 0 && keptMs <= 600_000, `the entry expires after ${keptMs} ms`);
  const remaining = await client.keys("jd:*dying*");
  t.same(remaining, [], "Redis contains no other key of the node");
});

t.test(
  "a node whose heartbeat fails for longer than `cluster.deadAfterMs` is not ready and names the reason",
  async (t) => {
    const beats = "jd:{all}:beats";
    t.equal((await alive.call("/readyz")).status, 200);
    await client.rename(beats, "saved");
    await client.set(beats, "not a hash");
    let response: ApiResponse | undefined;
    await until(async () => {
      response = await alive.call("/readyz");
      return response.status === 503;
    });
    t.match(response?.body, { error: /heartbeat/, code: "unavailable" });
    t.equal((await alive.call("/healthz")).status, 200, "the node is still healthy");
    await client.rename("saved", beats);
    await until(async () => (await alive.call("/readyz")).status === 200);
  },
);

async function until(holds: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + WAIT_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error("the condition did not become true in time");
    await pause(50);
  }
}
