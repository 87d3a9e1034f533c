// Tests of nodes on one Redis whose settings differ: timings that must be equal, the change of such
// a setting node by node, and other settings.

import t, { type Test } from "tap";
import { type BrokerProcess, launchBroker, spawnBroker } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

const DEAD_AFTER = "JINDOU_CLUSTER_DEAD_AFTER_MS";
const ACCEPT = { JINDOU_CLUSTER_ACCEPT_NEW_TIMINGS: "1" };
const DIFFERENT = "The nodes have different timings";
const EQUAL = "All nodes have the same timings now";

function settingsOf(url: string, id: string, settings = {}) {
  return { JINDOU_REDIS_URL: url, JINDOU_NODE_ID: id, ...settings };
}

/** Returns the output of a node that must not start. */
async function refusal(t: Test, settings: Readonly<Record<string, string>>): Promise<string> {
  const node = await launchBroker(t, settings);
  await t.rejects(node.ready(), "the node does not start");
  return node.output();
}

async function logged(node: Pick<BrokerProcess, "output">, text: string): Promise<string> {
  for (;;) {
    const line = node
      .output()
      .split("\n")
      .findLast((candidate) => candidate.includes(text));
    if (line !== undefined) return line;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

t.test("a node does not start if its timing settings differ from a live node's", async (t) => {
  const redis = await startRedis(t);
  const first = await spawnBroker(t, settingsOf(redis.url, "first", { [DEAD_AFTER]: "8000" }));
  for (const [variable, value, key, there] of [
    [DEAD_AFTER, "300", "cluster.deadAfterMs", 8000],
    [DEAD_AFTER, "9000", "cluster.deadAfterMs", 8000],
    ["JINDOU_REDIS_TIMEOUT_MS", "1000", "redis.timeoutMs", 3000],
    ["JINDOU_STORE_DEDUPE_WINDOW_S", "60", "store.dedupeWindowS", 86_400],
  ] as const) {
    const settings = { [DEAD_AFTER]: "8000", [variable]: value };
    t.match(
      await refusal(t, settingsOf(redis.url, "second", settings)),
      `${key} is ${value} here and ${there} on the live node \\"first\\", but must be equal`,
    );
  }
  const { body } = await first.call("/cluster/nodes");
  t.same(
    body.map(({ id, node_id }: Record<string, string>) => id ?? node_id),
    ["first"],
    "the live node was not declared dead, and no refused node joined",
  );
});

t.test(
  "a node with different timing settings can start after the only other node was killed",
  async (t) => {
    const redis = await startRedis(t);
    const settings = { [DEAD_AFTER]: "1500" };
    const first = await launchBroker(t, settingsOf(redis.url, "first", settings));
    await first.ready();
    await first.kill();
    const second = await spawnBroker(t, settingsOf(redis.url, "second", { [DEAD_AFTER]: "2500" }));
    t.equal((await second.call("/readyz")).status, 200);
  },
);

t.test("timing settings can be changed node by node with cluster.acceptNewTimings", async (t) => {
  const redis = await startRedis(t);
  const before = { [DEAD_AFTER]: "4000", JINDOU_STORE_DEDUPE_WINDOW_S: "60" };
  const after = { [DEAD_AFTER]: "6000", JINDOU_STORE_DEDUPE_WINDOW_S: "30", ...ACCEPT };
  const first = await launchBroker(t, settingsOf(redis.url, "first", before));
  await first.ready();
  const second = await launchBroker(t, settingsOf(redis.url, "second", after));
  await second.ready();
  const larger = {
    "cluster.deadAfterMs": 6000,
    "redis.timeoutMs": 3000,
    "store.dedupeWindowS": 60,
  };
  for (const node of [first, second])
    t.same(JSON.parse(await logged(node, DIFFERENT)).timings, larger, "both use the larger value");
  await first.stop("SIGTERM");
  const restarted = await launchBroker(t, settingsOf(redis.url, "first", after));
  await restarted.ready();
  t.same(
    JSON.parse(await logged(second, EQUAL)).timings,
    { ...larger, "store.dedupeWindowS": 30 },
    "the new values apply when all nodes have them",
  );
});

t.test(
  "a node whose `messages.maxPayloadBytes` differs from that of another node logs one warning without secrets",
  async (t) => {
    const redis = await startRedis(t);
    const own = { JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "5000", JINDOU_ADMIN_PASSWORD: "hunter2" };
    await spawnBroker(t, settingsOf(redis.url, "first", { JINDOU_ADMIN_PASSWORD: "hunter3" }));
    const second = await launchBroker(t, settingsOf(redis.url, "second", own));
    await second.ready();
    const line = await logged(second, "Other nodes have different settings");
    t.same(JSON.parse(line).differences, [
      { key: "messages.maxPayloadBytes", here: 5000, there: 65_536, node: "first" },
    ]);
    t.equal(second.output().split("Other nodes have different settings").length, 2);
    t.notMatch(second.output(), /hunter/);
    t.notMatch(await redis.client().hvals("jd:{all}:settings"), /hunter/);
  },
);
