// How many round trips to Redis a connect waits for, one after the other: every answer of Redis is late by a fixed time, and the quickest of a few
// connects took so many of it. One broker process.

import { createConnection, createServer, type Socket } from "node:net";
import t, { type Test } from "tap";
import { spawnBroker } from "../support/broker.ts";
import { openNative } from "../support/native-client.ts";
import { freePort, startRedis } from "../support/redis.ts";

const LATE_MS = 250;
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
    far.on("data", (data) => {
      setTimeout(() => near.write(data), settings.lateMs);
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

t.test("a connect waits for few answers of Redis", async (t) => {
  const redis = await startRedis(t);
  const { url, settings } = await lateRedis(t, redis.port);
  const node = await spawnBroker(t, {
    JINDOU_REDIS_URL: url,
    JINDOU_REDIS_TIMEOUT_MS: "10000",
    JINDOU_CLUSTER_DEAD_AFTER_MS: "60000",
  });
  const tripsOf = async (uid: string): Promise<number> => {
    const { clientPort: port } = node;
    const client = await openNative(t, { port, uid, token: TOKEN });
    const startMs = performance.now();
    await client.connect();
    const tookMs = performance.now() - startMs;
    await client.goodbye();
    return Math.floor(tookMs / LATE_MS);
  };
  const least = async (uids: readonly string[]): Promise<number> => {
    settings.lateMs = LATE_MS;
    const trips: number[] = [];
    for (const uid of uids) trips.push(await tripsOf(uid));
    settings.lateMs = 0;
    t.comment(`round trips of each: ${trips.join(", ")}`);
    return Math.min(...trips);
  };
  const names = (word: string) =>
    Array.from({ length: CONNECTS }, (_, at) => `${word}-${at}`);
  const [lone, members] = [names("lone"), names("member")];
  for (const uid of [...lone, ...members])
    await node.call("/user/token", {
      ...{ uid, token: TOKEN, device_flag: 0, device_level: 1 },
    });
  for (const uid of members)
    await node.call("/channel", {
      ...{ channel_id: `of ${uid}`, channel_type: 2, subscribers: [uid] },
    });
  t.equal(await least(lone), 3, "subscribe, login, groups");
  t.equal(await least(members), 6, "and membership, subscribe, positions");
});
