// Counts the round trips to Redis that a connect waits for. A proxy delays every reply of Redis by
// a fixed time, so the duration of the fastest of several connects shows the number of round trips.
// Also checks that changes made by another node between these round trips are not missed.

import { createConnection, createServer, type Socket } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { spawnBroker } from "../support/broker.ts";
import { type NativeClientOptions, openNative } from "../support/native-client.ts";
import { freePort, startRedis } from "../support/redis.ts";

/** Delay of Redis' replies while round trips are counted. */
const DELAY_MS = 250;
/** Delay that leaves another node time for a change while a reply is on its way. */
const LONG_DELAY_MS = 800;
const CONNECTS = 4;
const TOKEN = "a-token";

/** Starts a proxy that forwards requests to Redis at once and delays each reply by `delayMs`. */
async function delayedRedis(t: Test, redisPort: number) {
  const sockets = new Set<Socket>();
  const settings = { delayMs: 0 };
  const server = createServer((near) => {
    const far = createConnection({ host: "127.0.0.1", port: redisPort });
    for (const socket of [near, far]) {
      sockets.add(socket.setNoDelay(true));
      socket.on("error", () => {});
    }
    near.on("data", (data) => far.write(data));
    const waiting: Buffer[] = [];
    let dueMs = 0; // keeps replies in order when the delay changes
    far.on("data", (data) => {
      waiting.push(data);
      const nowMs = performance.now();
      dueMs = Math.max(dueMs, nowMs + settings.delayMs);
      setTimeout(() => near.write(waiting.shift() ?? ""), dueMs - nowMs);
    });
    near.on("close", () => far.destroy());
    far.on("close", () => near.destroy());
  });
  const port = await freePort();
  await new Promise<void>((done) => server.listen(port, "127.0.0.1", done));
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { url: `redis://127.0.0.1:${port}`, settings };
}

/** Starts a node that receives the replies of Redis after a delay. */
async function delayedNode(t: Test) {
  const redis = await startRedis(t);
  const { url, settings } = await delayedRedis(t, redis.port);
  const longTimeouts = {
    JINDOU_REDIS_TIMEOUT_MS: "10000",
    JINDOU_CLUSTER_DEAD_AFTER_MS: "60000",
  };
  const node = await spawnBroker(t, {
    ...{ JINDOU_REDIS_URL: url, JINDOU_NODE_ID: "delayed", ...longTimeouts },
  });
  return { redis, node, settings, longTimeouts };
}

const group = (uid: string) => ({ id: `of ${uid}`, type: 2 }) as const;
const person = (id: string) => ({ id, type: 1 }) as const;

t.test(
  "a connect takes three round trips to Redis, with and without resumed channels",
  async (t) => {
    const { node, settings } = await delayedNode(t);
    type Points = NativeClientOptions["resume"];
    const tripsOf = async (uid: string, resume: Points): Promise<number> => {
      const { clientPort: port } = node;
      const client = await openNative(t, {
        ...{ port, uid, token: TOKEN },
        ...(resume && { resume }),
      });
      const startMs = performance.now();
      const { resume: results } = await client.connect();
      const tookMs = performance.now() - startMs;
      t.ok(results.every(({ status }) => status === "ok"));
      await client.disconnect();
      return Math.floor(tookMs / DELAY_MS);
    };
    const minTrips = async (
      uids: readonly string[],
      resume: (uid: string) => Points = () => [],
    ): Promise<number> => {
      settings.delayMs = DELAY_MS;
      const trips: number[] = [];
      for (const uid of uids) trips.push(await tripsOf(uid, resume(uid)));
      settings.delayMs = 0;
      t.comment(`round trips of each connect: ${trips.join(", ")}`);
      return Math.min(...trips);
    };
    const names = (prefix: string) =>
      Array.from({ length: CONNECTS }, (_, at) => `${prefix}-${at}`);
    const [lone, members, resuming] = [
      ...[names("lone"), names("member"), names("resuming")],
    ] as const;
    for (const uid of [...lone, ...members, ...resuming])
      await node.call("/user/token", {
        ...{ uid, token: TOKEN, device_flag: 0, device_level: 1 },
      });
    for (const uid of [...members, ...resuming])
      await node.call("/channel", {
        ...{ channel_id: `of ${uid}`, channel_type: 2, subscribers: [uid] },
      });
    const payload = Buffer.from('{"type":1}').toString("base64");
    for (const uid of resuming) {
      const channel = { channel_id: `of ${uid}`, channel_type: 2 };
      const message = { from_uid: uid, payload };
      await node.call("/message/send", { ...channel, ...message });
      await node.call("/message/send", {
        ...{ ...message, channel_id: "lone-0", channel_type: 1 },
      });
    }
    const trips = "a connect logs in, subscribes, and reads what changed in between";
    t.equal(await minTrips(lone), 3, trips);
    t.equal(await minTrips(members), 3, trips);
    const points: (uid: string) => Points = (uid) => [
      { channel: group(uid), lastSeq: 1, lastId: 1 },
      { channel: person("lone-0"), lastSeq: 0 },
    ];
    t.equal(
      await minTrips(resuming, points),
      3,
      "a connect that resumes channels needs no further round trip",
    );
  },
);

t.test(
  "a later login, a new token or a change of membership on another node takes effect on a client that is still connecting",
  async (t) => {
    const { redis, node, settings, longTimeouts } = await delayedNode(t);
    const other = await spawnBroker(t, {
      ...{ JINDOU_REDIS_URL: redis.url, JINDOU_NODE_ID: "other", ...longTimeouts },
    });
    const isOnline = async (uid: string): Promise<boolean> => {
      const { body } = await other.call("/user/onlinestatus", [uid]);
      return body[0].online === 1;
    };
    /**
     * Logs in at the delayed node and makes the change as soon as the store contains the session.
     */
    const connectDuring = async (uid: string, change: () => Promise<unknown>) => {
      const { clientPort: port } = node;
      const client = await openNative(t, { port, uid, token: TOKEN });
      settings.delayMs = LONG_DELAY_MS;
      const connecting = client.connect().then(
        () => true,
        () => false,
      );
      while (!(await isOnline(uid))) await pause(10);
      await change();
      t.equal(client.pushes.length, 0);
      const isConnected = await connecting;
      settings.delayMs = 0;
      return { client, isConnected };
    };
    const token = (uid: string, value: string) =>
      other.call("/user/token", {
        ...{ uid, token: value, device_flag: 0, device_level: 1 },
      });
    const members = async (path: string, id: string, uid: string) => {
      const { status } = await other.call(path, {
        ...{ channel_id: id, channel_type: 2, subscribers: [uid] },
      });
      t.equal(status, 200, path);
    };
    for (const uid of ["kicked", "replaced", "moved"]) await token(uid, TOKEN);

    const kicked = await connectDuring("kicked", async () => {
      const { clientPort: port } = other;
      const winner = await openNative(t, { port, uid: "kicked", token: TOKEN });
      await winner.connect();
    });
    t.equal(kicked.isConnected, false, "a later login of the device makes the connect fail");
    t.equal((await kicked.client.closed).code, CLOSE_REASONS.kicked.code);

    const changed = await connectDuring("replaced", () => token("replaced", "new"));
    t.equal(changed.isConnected, false, "a new token of the device makes the connect fail");
    const { code } = await changed.client.closed;
    t.equal(code, CLOSE_REASONS.token_changed.code);

    await members("/channel", "left", "moved");
    await members("/channel", "joined", "nobody");
    const { client, isConnected } = await connectDuring("moved", async () => {
      await members("/channel/subscriber_remove", "left", "moved");
      await members("/channel/subscriber_add", "joined", "moved");
      await members("/channel/subscriber_add", "left", "nobody");
    });
    t.equal(isConnected, true);
    const payload = Buffer.from('{"type":1}').toString("base64");
    for (const id of ["left", "joined"]) {
      const { status } = await other.call("/message/send", {
        ...{ channel_id: id, channel_type: 2, from_uid: "nobody", payload },
      });
      t.equal(status, 200, id);
    }
    await client.waitFor(({ messages }) => messages.length > 0);
    await client.ping();
    const from = client.messages.map(({ channel }) => channel.id);
    t.same(from, ["joined"], "the client receives nothing from the group it was removed from");
  },
);

t.test("a client that resumes many groups misses no message sent during the resume", async (t) => {
  const { redis, node, settings, longTimeouts } = await delayedNode(t);
  const other = await spawnBroker(t, {
    ...{ JINDOU_REDIS_URL: redis.url, JINDOU_NODE_ID: "other", ...longTimeouts },
  });
  // The positions of more than 200 groups are read one part after another.
  const ids = Array.from({ length: 300 }, (_, at) => `group-${at}`);
  await other.call("/user/token", { uid: "ann", token: TOKEN, device_flag: 0, device_level: 1 });
  const payload = Buffer.from('{"type":1}').toString("base64");
  const sendToAll = () =>
    Promise.all(
      ids.map(async (id) => {
        const channel = { channel_id: id, channel_type: 2 };
        const { status } = await other.call("/message/send", {
          ...{ ...channel, from_uid: "ben", payload },
        });
        t.equal(status, 200);
      }),
    );
  for (const id of ids)
    await other.call("/channel", { channel_id: id, channel_type: 2, subscribers: ["ann", "ben"] });
  await sendToAll();

  const { clientPort: port } = node;
  const resume = ids.map((id) => ({ channel: { id, type: 2 } as const, lastSeq: 1 }));
  const client = await openNative(t, { port, uid: "ann", token: TOKEN, resume });
  settings.delayMs = LONG_DELAY_MS;
  const connecting = client.connect();
  const requestsOf = async () =>
    Number(/cmdstat_ssubscribe:calls=(\d+)/.exec(await info())?.[1] ?? 0);
  const raw = redis.client();
  const info = () => raw.info("commandstats");
  const before = await requestsOf();
  while ((await requestsOf()) === before) await pause(5);
  // Meanwhile the subscription completes, and the state and the first positions are read.
  await pause(LONG_DELAY_MS * 1.5);
  await sendToAll();
  await connecting;
  settings.delayMs = 0;
  await client.waitFor(({ messages }) => messages.length === ids.length);
  t.same(new Set(client.messages.map(({ messageSeq }) => messageSeq)), new Set([2]));
});
