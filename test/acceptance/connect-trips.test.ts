// How many round trips to Redis a connect waits for, one after the other: every answer of Redis is
// late by a fixed time, and the quickest of a few connects took so many of it. And what another
// node changes between them: nothing of that is missed.

import { createConnection, createServer, type Socket } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { spawnBroker } from "../support/broker.ts";
import { type NativeClientOptions, openNative } from "../support/native-client.ts";
import { freePort, startRedis } from "../support/redis.ts";

const LATE_MS = 250;
/** Time for another node to change something while an answer is on its way. */
const VERY_LATE_MS = 800;
const CONNECTS = 4;
const TOKEN = "a-token";

/** Passes all on to Redis at once, and what it answers `lateMs` late, once `lateMs` is set. */
async function lateRedis(t: Test, redisPort: number) {
  const sockets = new Set<Socket>();
  const settings = { lateMs: 0 };
  const server = createServer((near) => {
    const far = createConnection({ host: "127.0.0.1", port: redisPort });
    for (const socket of [near, far]) {
      sockets.add(socket.setNoDelay(true));
      socket.on("error", () => {});
    }
    near.on("data", (data) => far.write(data));
    const waiting: Buffer[] = [];
    let dueMs = 0; // a later answer overtakes none, however late they are
    far.on("data", (data) => {
      waiting.push(data);
      const nowMs = performance.now();
      dueMs = Math.max(dueMs, nowMs + settings.lateMs);
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

/** Node whose answers of Redis are late. */
async function lateNode(t: Test) {
  const redis = await startRedis(t);
  const { url, settings } = await lateRedis(t, redis.port);
  const patient = {
    JINDOU_REDIS_TIMEOUT_MS: "10000",
    JINDOU_CLUSTER_DEAD_AFTER_MS: "60000",
  };
  const node = await spawnBroker(t, {
    ...{ JINDOU_REDIS_URL: url, JINDOU_NODE_ID: "late", ...patient },
  });
  return { redis, node, settings, patient };
}

const group = (uid: string) => ({ id: `of ${uid}`, type: 2 }) as const;
const person = (id: string) => ({ id, type: 1 }) as const;

t.test("a connect waits for three answers of Redis", async (t) => {
  const { node, settings } = await lateNode(t);
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
    return Math.floor(tookMs / LATE_MS);
  };
  const least = async (
    uids: readonly string[],
    resume: (uid: string) => Points = () => [],
  ): Promise<number> => {
    settings.lateMs = LATE_MS;
    const trips: number[] = [];
    for (const uid of uids) trips.push(await tripsOf(uid, resume(uid)));
    settings.lateMs = 0;
    t.comment(`round trips of each: ${trips.join(", ")}`);
    return Math.min(...trips);
  };
  const names = (word: string) => Array.from({ length: CONNECTS }, (_, at) => `${word}-${at}`);
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
    const to = { channel_id: `of ${uid}`, channel_type: 2 };
    const sent = { from_uid: uid, payload };
    await node.call("/message/send", { ...to, ...sent });
    await node.call("/message/send", {
      ...{ ...sent, channel_id: "lone-0", channel_type: 1 },
    });
  }
  const trips = "log in; subscribe; read what changed until then";
  t.equal(await least(lone), 3, trips);
  t.equal(await least(members), 3, trips);
  const points: (uid: string) => Points = (uid) => [
    { channel: group(uid), lastSeq: 1, lastId: 1 },
    { channel: person("lone-0"), lastSeq: 0 },
  ];
  t.equal(await least(resuming, points), 3, "and where channels are resumed");
});

t.test("what changes before the node is subscribed takes effect", async (t) => {
  const { redis, node, settings, patient } = await lateNode(t);
  const other = await spawnBroker(t, {
    ...{ JINDOU_REDIS_URL: redis.url, JINDOU_NODE_ID: "other", ...patient },
  });
  const isOnline = async (uid: string): Promise<boolean> => {
    const { body } = await other.call("/user/onlinestatus", [uid]);
    return body[0].online === 1;
  };
  /** Logs in at the late node, and makes the change as soon as the session is in the store. */
  const connectAmid = async (uid: string, change: () => Promise<unknown>) => {
    const { clientPort: port } = node;
    const client = await openNative(t, { port, uid, token: TOKEN });
    settings.lateMs = VERY_LATE_MS;
    const connecting = client.connect().then(
      () => true,
      () => false,
    );
    while (!(await isOnline(uid))) await pause(10);
    await change();
    t.equal(client.pushes.length, 0);
    const isConnected = await connecting;
    settings.lateMs = 0;
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

  const kicked = await connectAmid("kicked", async () => {
    const { clientPort: port } = other;
    const winner = await openNative(t, { port, uid: "kicked", token: TOKEN });
    await winner.connect();
  });
  t.equal(kicked.isConnected, false, "a later login");
  t.equal((await kicked.client.closed).code, CLOSE_REASONS.kicked.code);

  const changed = await connectAmid("replaced", () => token("replaced", "new"));
  t.equal(changed.isConnected, false, "another token");
  const { code } = await changed.client.closed;
  t.equal(code, CLOSE_REASONS.token_changed.code);

  await members("/channel", "left", "moved");
  await members("/channel", "joined", "nobody");
  const { client, isConnected } = await connectAmid("moved", async () => {
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
  t.same(from, ["joined"], "and nothing of the group that it left");
});
