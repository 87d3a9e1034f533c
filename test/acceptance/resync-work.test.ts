// What a node asks Redis when it may have missed events of its users: a little of each user, many
// at once, however many sessions and groups the users have; the rest only where something has
// changed. After a restart of Redis, too. One broker process, commands counted at Redis.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import t from "tap";
import { spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { commandCalls, startRedis } from "../support/redis.ts";

/** Its number, time, microseconds and arguments. */
type SlowCommand = readonly [number, number, number, readonly string[]];

const USERS = 100;
const SESSIONS_EACH = 3;
const GROUPS = 10;
/** Sessions of the two users for whom something has changed. */
const CHANGED = 2 * SESSIONS_EACH;

t.test("a resync asks for what has changed", async (t) => {
  const redis = await startRedis(t);
  const raw = redis.client();
  const node = await spawnBroker(t, {
    ...{ JINDOU_REDIS_URL: redis.url, JINDOU_REDIS_PREFIX: "x" },
    JINDOU_AUTH_CLIENTS: "none",
  });
  const uids = Array.from({ length: USERS }, (_, at) => `u${at}`);
  const groups = Array.from({ length: GROUPS }, (_, at) => `g${at}`);
  for (const [at, id] of groups.entries())
    await node.call("/channel", {
      ...{ channel_id: id, channel_type: 2 },
      subscribers: uids.filter((_, user) => user % (GROUPS / 2) === at % 5),
    });
  await node.call("/channel", {
    ...{ channel_id: "late", channel_type: 2, subscribers: ["writer"] },
  });
  const { clientPort: port } = node;
  const sessions: NativeClient[] = [];
  for (const uid of uids)
    for (let count = 0; count < SESSIONS_EACH; count++)
      sessions.push(await connectNative(t, { port, uid }));
  await quiet(raw);

  // Nobody is told of either.
  const payload = Buffer.from('{"type":1}').toString("base64");
  const message = { from_uid: "writer", payload };
  const userKey = (part: string, uid: string) => `x:{u:${uid}}:${part}`;
  await raw.hset(userKey("groups", "u0"), "late", 0);
  const [perm = ""] = await raw.keys("x:{c*}:permanent:2:late");
  await raw.sadd(perm, "u0");
  const late = { channel_id: "late", channel_type: 2 };
  await node.call("/message/send", { ...message, ...late });
  await node.call("/message/send", {
    ...{ ...message, channel_id: "u2", channel_type: 1 },
    header: { sync_once: 1 },
  });
  const ofUser = (uid: string) => sessions.filter((one) => one.uid === uid);
  for (const one of ofUser("u2")) await one.waitFor(({ commands }) => commands.length === 1);
  await raw.copy(userKey("inbox", "u2"), userKey("inbox", "u1")); // as if it had been told in vain
  await raw.config("RESETSTAT");

  const since = performance.now();
  t.equal(await raw.call("CLIENT", "KILL", "TYPE", "pubsub"), 1);
  for (const one of ofUser("u0")) await one.waitFor(({ messages }) => messages.length === 1);
  for (const one of ofUser("u1")) await one.waitFor(({ commands }) => commands.length === 1);
  await quiet(raw);
  const beats = Math.ceil((performance.now() - since) / 1000);

  const scripts = await commandCalls(raw, "evalsha");
  const lists = (await commandCalls(raw, "hkeys")) + (await commandCalls(raw, "hgetall"));
  t.comment(`${scripts} scripts, ${lists} lists, ${beats} s`);
  const perUser = 2 * Math.ceil(USERS / 50);
  const perSession = Math.ceil((USERS * SESSIONS_EACH) / 50);
  const most = perUser + perSession + 20 * CHANGED + 5 * beats; // a busy node's come in smaller steps
  t.ok(scripts <= most, `${scripts} scripts, ${most} at most`);
  t.ok(lists >= USERS, "the index of each user");
  t.ok(lists <= USERS + 2 * CHANGED, `${lists} lists, hardly any twice`);
});

t.test("after a restart of Redis each session is confirmed once", async (t) => {
  const redis = await startRedis(t, [
    ...["--appendonly", "yes", "--appendfsync", "always"],
    ...["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"],
  ]);
  const node = await spawnBroker(t, {
    ...{ JINDOU_REDIS_URL: redis.url, JINDOU_REDIS_PREFIX: "x" },
    JINDOU_AUTH_CLIENTS: "none",
  });
  const { clientPort: port } = node;
  const sessions: NativeClient[] = [];
  for (let at = 0; at < USERS; at++)
    for (let count = 0; count < SESSIONS_EACH; count++)
      sessions.push(await connectNative(t, { port, uid: `u${at}` }));
  await redis.stop("SIGTERM");
  await redis.restart();
  const raw = redis.client();
  const [first] = sessions;
  const isBack = async () => {
    const answer = await node.call("/message/send", {
      ...{ from_uid: "writer", channel_id: "u0", channel_type: 1 },
      payload: Buffer.from('{"type":1}').toString("base64"),
    });
    return answer.status === 200;
  };
  while (!(await isBack())) await pause(50);
  await first?.waitFor(({ messages }) => messages.length > 0);
  await quiet(raw);
  const log = (await raw.call("SLOWLOG", "GET", -1)) as SlowCommand[];
  const confirmed = log.reduce((sum, [, , , [name, , keys, key = ""]]) => {
    const isConfirm = name === "evalsha" && key.endsWith(":sessions");
    return isConfirm ? sum + Number(keys) : sum;
  }, 0);
  const minutes = sessions.length / 10; // some are confirmed for their minute
  t.ok(confirmed >= sessions.length, `${confirmed} of ${sessions.length}`);
  t.ok(confirmed <= sessions.length + minutes, `${confirmed} once`);
});

/** Resolves when nothing but heartbeats comes to Redis. */
async function quiet(raw: Redis): Promise<void> {
  let before = -1;
  for (;;) {
    const now = await commandCalls(raw, "evalsha");
    if (before >= 0 && now - before <= 10) return;
    before = now;
    await pause(1000);
  }
}
