// What a cluster says of a node that others take for dead: its sessions are offline although their
// entries are still there, and a node whose own heartbeat fails is not ready. Two broker processes
// on a Redis of their own.

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
const [alive, doomed] = await Promise.all([
  spawnBroker(t, { ...settings, JINDOU_NODE_ID: "alive" }),
  spawnBroker(t, { ...settings, JINDOU_NODE_ID: "doomed" }),
]);

t.test("entries of a dead node count as offline, and expire", async (t) => {
  await connectNative(t, { port: alive.clientPort, uid: "here" });
  await connectNative(t, { port: doomed.clientPort, uid: "there" });
  const uids = ["here", "there"];
  const online = async () => {
    const { body } = await alive.call("/user/onlinestatus", uids);
    return body.map((one: { online: number }) => one.online);
  };
  await until(async () => String(await online()) === "1,1");
  await doomed.kill();
  const killedMs = performance.now();
  await until(async () => String(await online()) === "1,0");
  t.comment(`offline after ${(performance.now() - killedMs).toFixed(0)} ms`);

  // Private, since no door shows what is left in Redis.
  const key = "jd:{u:there}:sessions";
  t.equal(await client.hlen(key), 1, "nobody has removed the entry");
  const keptMs = await client.pttl(key);
  t.ok(keptMs > 0 && keptMs <= 600_000, `it expires: ${keptMs} ms`);
  const left = await client.keys("jd:*doomed*");
  t.same(left, [], "nothing else is left of the node");
});

t.test(
  "a node whose heartbeat fails for as long as makes it dead is not ready, and says why",
  async (t) => {
    const beats = "jd:{all}:beats";
    t.equal((await alive.call("/readyz")).status, 200);
    await client.rename(beats, "kept");
    await client.set(beats, "no place for heartbeats");
    let answer: ApiResponse | undefined;
    await until(async () => {
      answer = await alive.call("/readyz");
      return answer.status === 503;
    });
    t.match(answer?.body, { error: /heartbeat/, code: "unavailable" });
    t.equal((await alive.call("/healthz")).status, 200, "it lives");
    await client.rename("kept", beats);
    await until(async () => (await alive.call("/readyz")).status === 200);
  },
);

async function until(holds: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + WAIT_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error("it does not happen");
    await pause(50);
  }
}
