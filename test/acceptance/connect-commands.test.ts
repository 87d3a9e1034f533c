// Counts the work of Redis for the connect of a user in many groups, with Redis' own statistics:
// few calls, one exact check of each membership, and no work that the client did not ask for.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { startRedis } from "../support/redis.ts";

const GROUPS = 600;
const USERS = ["alice", "bob", "carol"];
/** Calls allowed for heartbeats and other work of the node. */
const OTHER_CALLS = 40;
const OTHER_BYTES = 40_000;
/**
 * Bytes per group that a later login may send to Redis. The first login may send three times as
 * many. A key name alone has about 30 bytes.
 */
const BYTES_PER_GROUP = 100;

const redis = await startRedis(t);
const client = redis.client();
const node = await spawnBroker(t, {
  ...{ JINDOU_REDIS_URL: redis.url, JINDOU_AUTH_CLIENTS: "none" },
});
for (let at = 0; at < GROUPS; at += 50)
  await Promise.all(
    Array.from({ length: 50 }, (_, index) =>
      node.call("/channel", {
        ...{ channel_id: `g${at + index}`, channel_type: 2, subscribers: USERS },
      }),
    ),
  );

/** Connects the user, waits until the session is live, and returns what Redis did. */
async function connect(uid: string) {
  await client.config("RESETSTAT");
  const session = await connectNative(t, { uid, port: node.clientPort });
  while (!(await isJoined())) await pause(5);
  const commands = await client.info("commandstats");
  const stats = await client.info("stats");
  const callsOf = (command: string): number =>
    Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(commands)?.[1] ?? 0);
  const inputBytes = Number(/total_net_input_bytes:(\d+)/.exec(stats)?.[1]);
  return { session, callsOf, inputBytes };
}

async function isJoined(): Promise<boolean> {
  const page = await fetch(`http://127.0.0.1:${node.apiPort}/metrics`);
  return /^\w*sessions_joining\S* 0$/m.test(await page.text());
}

t.test("a login of a user with 600 groups runs fewer than 40 scripts in Redis", async (t) => {
  const { session, callsOf, inputBytes } = await connect("alice");
  t.ok(callsOf("evalsha") < OTHER_CALLS, `${callsOf("evalsha")} scripts`);
  t.ok(callsOf("ssubscribe") < OTHER_CALLS, `${callsOf("ssubscribe")} subscriptions`);
  t.ok(inputBytes < GROUPS * 3 * BYTES_PER_GROUP + OTHER_BYTES, `${inputBytes} bytes`);
  const { status } = await node.call("/message/send", {
    ...{ channel_id: `g${GROUPS - 1}`, channel_type: 2, from_uid: "bob" },
    payload: Buffer.from('{"type":1}').toString("base64"),
  });
  t.equal(status, 200);
  await session.waitFor(({ messages }) => messages.length === 1);
});

t.test(
  "if a node is already subscribed to all groups of a user, a login of that user checks each membership but reads no messages of the groups",
  async (t) => {
    const { callsOf, inputBytes } = await connect("bob");
    t.ok(callsOf("evalsha") < OTHER_CALLS, `${callsOf("evalsha")} scripts`);
    t.ok(callsOf("sismember") >= GROUPS, "each membership is checked in the group itself");
    t.ok(callsOf("xrange") + callsOf("xrevrange") < OTHER_CALLS, "the logs are not read");
    t.ok(inputBytes < GROUPS * BYTES_PER_GROUP + OTHER_BYTES, `${inputBytes} bytes`);
  },
);
