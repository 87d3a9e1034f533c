// The reads of a node that may have missed events of its users. A resync reads little for each
// user, and it reads many users at once, however many sessions and groups the users have. It reads
// more only for users that have changed. The same holds after a restart of Redis. Uses one broker
// process, and counts the commands in Redis.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import t from "tap";
import { spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { commandCalls, LOG_ALL, type SlowCommand, startRedis } from "../support/redis.ts";

const USERS = 100;
const SESSIONS_EACH = 3;
const GROUPS = 10;
/** Number of sessions of the two users for whom something has changed. */
const CHANGED = 2 * SESSIONS_EACH;

t.test(
  "after events were lost, a node reads the full state of only those users whose groups or inbox have changed",
  async (t) => {
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
    await untilQuiet(raw);

    // Changes that are not published: u0 joins a group, and a command for u1 is stored.
    const payload = Buffer.from('{"type":1}').toString("base64");
    const message = { from_uid: "writer", payload };
    const userKey = (part: string, uid: string) => `x:{u:${uid}}:${part}`;
    await raw.hset(userKey("groups", "u0"), "late", 0);
    const [permanentKey = ""] = await raw.keys("x:{c*}:permanent:2:late");
    await raw.sadd(permanentKey, "u0");
    const late = { channel_id: "late", channel_type: 2 };
    await node.call("/message/send", { ...message, ...late });
    await node.call("/message/send", {
      ...{ ...message, channel_id: "u2", channel_type: 1 },
      header: { sync_once: 1 },
    });
    const ofUser = (uid: string) => sessions.filter((session) => session.uid === uid);
    for (const session of ofUser("u2"))
      await session.waitFor(({ commands }) => commands.length === 1);
    await raw.copy(userKey("inbox", "u2"), userKey("inbox", "u1")); // as if the publication had been lost
    await raw.config("RESETSTAT");

    const since = performance.now();
    t.equal(await raw.call("CLIENT", "KILL", "TYPE", "pubsub"), 1);
    for (const session of ofUser("u0"))
      await session.waitFor(({ messages }) => messages.length === 1);
    for (const session of ofUser("u1"))
      await session.waitFor(({ commands }) => commands.length === 1);
    await untilQuiet(raw);
    const heartbeats = Math.ceil((performance.now() - since) / 1000);

    const scripts = await commandCalls(raw, "evalsha");
    const lists = (await commandCalls(raw, "hkeys")) + (await commandCalls(raw, "hgetall"));
    t.comment(`${scripts} scripts and ${lists} lists in ${heartbeats} s`);
    const perUser = 2 * Math.ceil(USERS / 50);
    const perSession = Math.ceil((USERS * SESSIONS_EACH) / 50);
    const maxScripts = perUser + perSession + 20 * CHANGED + 5 * heartbeats; // a busy node sends smaller batches
    t.ok(scripts <= maxScripts, `the resync runs ${scripts} scripts, at most ${maxScripts}`);
    t.ok(lists >= USERS, "the group index of each user is read");
    t.ok(
      lists <= USERS + 2 * CHANGED,
      `the resync reads ${lists} group indexes and lists for ${USERS} users`,
    );
  },
);

t.test(
  "after a restart of Redis, a node confirms each of its sessions once, in addition to the regular confirmations",
  async (t) => {
    const redis = await startRedis(t, [
      ...["--appendonly", "yes", "--appendfsync", "always"],
      ...LOG_ALL,
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
      const response = await node.call("/message/send", {
        ...{ from_uid: "writer", channel_id: "u0", channel_type: 1 },
        payload: Buffer.from('{"type":1}').toString("base64"),
      });
      return response.status === 200;
    };
    while (!(await isBack())) await pause(50);
    await first?.waitFor(({ messages }) => messages.length > 0);
    await untilQuiet(raw);
    const log = (await raw.call("SLOWLOG", "GET", -1)) as SlowCommand[];
    const confirmed = log.reduce((sum, [, , , [name, , keys, key = ""]]) => {
      const isConfirm = name === "evalsha" && key.endsWith(":sessions");
      return isConfirm ? sum + Number(keys) : sum;
    }, 0);
    const regular = sessions.length / 10; // confirmations that are due every minute anyway
    t.ok(
      confirmed >= sessions.length,
      `${confirmed} confirmations are sent for ${sessions.length} sessions`,
    );
    t.ok(
      confirmed <= sessions.length + regular,
      `each session is confirmed about once: ${confirmed}`,
    );
  },
);

/** Resolves when Redis receives only heartbeats. */
async function untilQuiet(raw: Redis): Promise<void> {
  let before = -1;
  for (;;) {
    const now = await commandCalls(raw, "evalsha");
    if (before >= 0 && now - before <= 10) return;
    before = now;
    await pause(1000);
  }
}
