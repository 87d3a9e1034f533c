// Issue 4, line 4, by Redis' own statistics: a message to a group with members on three nodes is
// published once, whoever sends it, and a fourth node, without a member, is told nothing. One
// user's message costs the nodes of the two users, no others.

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
const PATIENCE_MS = 120_000;
const MEMBERS = ["ann", "ben", "cat"];
const STRANGER = "dan";
const HALL = { channel_id: "hall", channel_type: 2 };
/** What Redis answers and what nodes say of themselves meanwhile. */
const OTHER_BYTES = 200_000;
/** Of signs of life, in each second. */
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
      ...{ uid, port: nodes.clientPortOf(at), timeoutMs: PATIENCE_MS },
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
 * To how many topics a node is subscribed; one more name is its own, by which it knows that it
 * hears.
 */
async function topicsOf(at: number): Promise<number> {
  const list = String(await client.client("LIST"));
  const name = `name=jindou-n${at}-subscriber `;
  const line = list.split("\n").find((one) => one.includes(name));
  return Number(/ ssub=(\d+)/.exec(line ?? "")?.[1]) - 1;
}

async function listeners(topic: string): Promise<number> {
  const [, count] = await client.pubsub("SHARDNUMSUB", topic);
  return Number(count);
}

/** What so many messages from a node cost once everybody has them. */
async function cost(
  from: number,
  { channel, receivers }: { channel: object; receivers: readonly string[] },
): Promise<Statistics> {
  const all = sockets.filter(({ uid }) => receivers.includes(uid));
  const had = all.map(({ messages }) => messages.length);
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
  for (const [at, one] of all.entries())
    await one.waitFor(({ messages }) => messages.length === (had[at] ?? 0) + MESSAGES);
  const after = await statistics();
  return {
    seconds: after.seconds - before.seconds,
    publishes: after.publishes - before.publishes,
    outputBytes: after.outputBytes - before.outputBytes,
  };
}

/**
 * So many for each message, and beside that at most one a second by each node: a sign of life to
 * itself.
 */
function isForEach(times: number, { publishes, seconds }: Statistics): boolean {
  const signs = nodes.count * Math.ceil(seconds + 1);
  const least = times * MESSAGES;
  return publishes >= least && publishes <= least + signs;
}

/** A message's text is base64 on its way in, plain bytes from then on. */
function isAboutTimes(times: number, found: Statistics): boolean {
  const more = found.outputBytes - times * MESSAGES * BYTES;
  return more >= 0 && more < OTHER_BYTES + found.seconds * OTHER_BYTES_PER_S;
}

t.test("nodes listen to what their sessions are concerned with", async (t) => {
  await eventually("all are settled", async () => {
    const counts = [0, 1, 2, 3].map((at) => topicsOf(at));
    const [first, , , last] = await Promise.all(counts);
    return first === 2 && last === 1;
  });
  t.equal(await listeners(keys.topic("g:hall")), 3);
  for (const uid of [...MEMBERS, STRANGER]) t.equal(await listeners(keys.topic(`u:${uid}`)), 1);
});

for (const [from, who] of [
  [0, "a node with a member"],
  [3, "a node without"],
] as const)
  t.test(`a message to the group by ${who} is published once`, async (t) => {
    const receivers = ["ben", "cat"];
    const found = await cost(from, { channel: HALL, receivers });
    t.comment(JSON.stringify(found));
    t.ok(isForEach(1, found));
    t.ok(isAboutTimes(3, found), "it goes to three nodes");
  });

t.test("a personal message goes to the two users' nodes", async (t) => {
  const found = await cost(2, {
    channel: { channel_id: "ben", channel_type: 1 },
    receivers: ["ben"],
  });
  t.comment(JSON.stringify(found));
  t.ok(isForEach(2, found));
  t.ok(isAboutTimes(2, found), "it goes to two nodes");
});

t.test("a message to a group of nobody who is here goes nowhere", async (t) => {
  await nodes.createGroup("cellar", ["ann", "eve"]);
  await sockets[0]?.disconnect();
  await eventually("ann is gone", async () => (await topicsOf(0)) === 0);
  const { outputBytes } = await cost(0, {
    channel: { channel_id: "cellar", channel_type: 2 },
    receivers: [],
  });
  t.ok(outputBytes < OTHER_BYTES, `${outputBytes} bytes of Redis`);
});
