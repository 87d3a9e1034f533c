// Measures the cost of delivery with Redis' own statistics. A message to a group with members on
// three nodes is published once, whichever node publishes the message, and a fourth node without a
// member receives nothing. A personal message reaches only the nodes of the two users.

import t from "tap";
import { Keys } from "../../src/redis/keys.ts";
import { textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { CALM, ClusterNodes } from "./cluster-nodes.ts";
import { eventually } from "./logins.ts";

const MESSAGES = 100;
const BYTES = 20_000;
const TIMEOUT_MS = 120_000;
const MEMBERS = ["ann", "ben", "cat"];
const STRANGER = "dan";
const HALL = { channel_id: "hall", channel_type: 2 };
/**
 * Bytes allowed for other traffic: Redis' replies and the nodes' messages about their own state.
 */
const OTHER_BYTES = 200_000;
/** Bytes per second allowed for heartbeats. */
const OTHER_BYTES_PER_S = 30_000;

const keys = new Keys("jd");
const redis = await startRedis(t);
const client = redis.client();
const nodes = await ClusterNodes.start(t, {
  ...{ redisUrl: redis.url, random: new Random(1), count: 4 },
  settings: CALM,
});
await nodes.createGroup(HALL.channel_id, MEMBERS);
const sockets = await Promise.all(
  [...MEMBERS, STRANGER].map((uid, at) =>
    connectNative(t, {
      ...{ uid, port: nodes.clientPortOf(at), timeoutMs: TIMEOUT_MS },
    }),
  ),
);

interface Statistics {
  readonly seconds: number;
  readonly publishes: number;
  readonly outputBytes: number;
}

async function statistics(): Promise<Statistics> {
  const commands = await client.info("commandstats");
  const stats = await client.info("stats");
  const publishes = /cmdstat_spublish:calls=(\d+)/.exec(commands)?.[1] ?? 0;
  const outputBytes = /total_net_output_bytes:(\d+)/.exec(stats)?.[1];
  return {
    seconds: performance.now() / 1000,
    publishes: Number(publishes),
    outputBytes: Number(outputBytes),
  };
}

/**
 * Returns the number of topics a node is subscribed to. The node's own topic, by which it checks
 * its subscriber connection, is not counted.
 */
async function topicsOf(at: number): Promise<number> {
  const list = String(await client.client("LIST"));
  const name = `name=jindou-n${at}-subscriber `;
  const line = list.split("\n").find((text) => text.includes(name));
  return Number(/ ssub=(\d+)/.exec(line ?? "")?.[1]) - 1;
}

async function subscriberCount(topic: string): Promise<number> {
  const [, count] = await client.pubsub("SHARDNUMSUB", topic);
  return Number(count);
}

/**
 * Sends `MESSAGES` messages from a node, waits until all receivers have them, and returns the cost.
 */
async function measureCost(
  from: number,
  { channel, receivers }: { channel: object; receivers: readonly string[] },
): Promise<Statistics> {
  const members = sockets.filter(({ uid }) => receivers.includes(uid));
  const counts = members.map(({ messages }) => messages.length);
  const before = await statistics();
  for (let count = 0; count < MESSAGES; count++) {
    const body = {
      ...channel,
      from_uid: "ann",
      payload: textPayload("x".repeat(BYTES)),
    };
    const { status } = await nodes.callOf(from, "/message/send", body);
    if (status !== 200) throw new Error(String(status));
  }
  for (const [at, member] of members.entries())
    await member.waitFor(({ messages }) => messages.length === (counts[at] ?? 0) + MESSAGES);
  const after = await statistics();
  return {
    seconds: after.seconds - before.seconds,
    publishes: after.publishes - before.publishes,
    outputBytes: after.outputBytes - before.outputBytes,
  };
}

/**
 * Returns true if each message was published exactly `times` times. Allows one further publication
 * per node and second, the node's heartbeat to itself.
 */
function isPublishedTimes(times: number, { publishes, seconds }: Statistics): boolean {
  const heartbeats = nodes.count * Math.ceil(seconds + 1);
  const least = times * MESSAGES;
  return publishes >= least && publishes <= least + heartbeats;
}

/**
 * Returns true if Redis sent the payload of each message about `times` times. Payloads are base64
 * only in the HTTP request, not in Redis.
 */
function isSentTimes(times: number, cost: Statistics): boolean {
  const extraBytes = cost.outputBytes - times * MESSAGES * BYTES;
  return extraBytes >= 0 && extraBytes < OTHER_BYTES + cost.seconds * OTHER_BYTES_PER_S;
}

t.test(
  "a node subscribes only to the topics of its connected users and of their groups",
  async (t) => {
    await eventually("the subscriptions are complete", async () => {
      const counts = [0, 1, 2, 3].map((at) => topicsOf(at));
      const [first, , , last] = await Promise.all(counts);
      return first === 2 && last === 1;
    });
    t.equal(await subscriberCount(keys.topic("g:hall")), 3);
    for (const uid of [...MEMBERS, STRANGER])
      t.equal(await subscriberCount(keys.topic(`u:${uid}`)), 1);
  },
);

for (const [from, sender] of [
  [0, "a node with a member"],
  [3, "a node without a member"],
] as const)
  t.test(`a group message is published to Redis once if ${sender} sends it`, async (t) => {
    const receivers = ["ben", "cat"];
    const messageCost = await measureCost(from, { channel: HALL, receivers });
    t.comment(JSON.stringify(messageCost));
    t.ok(isPublishedTimes(1, messageCost));
    t.ok(isSentTimes(3, messageCost), "Redis sends the message to three nodes");
  });

t.test(
  "a personal message is sent only to the nodes of its sender and its recipient",
  async (t) => {
    const messageCost = await measureCost(2, {
      channel: { channel_id: "ben", channel_type: 1 },
      receivers: ["ben"],
    });
    t.comment(JSON.stringify(messageCost));
    t.ok(isPublishedTimes(2, messageCost));
    t.ok(isSentTimes(2, messageCost), "Redis sends the message to two nodes");
  },
);

t.test("a message to a group without online members is not sent to any node", async (t) => {
  await nodes.createGroup("cellar", ["ann", "eve"]);
  await sockets[0]?.disconnect();
  await eventually("ann is offline", async () => (await topicsOf(0)) === 0);
  const { outputBytes } = await measureCost(0, {
    channel: { channel_id: "cellar", channel_type: 2 },
    receivers: [],
  });
  t.ok(outputBytes < OTHER_BYTES, `Redis sent ${outputBytes} bytes`);
});
