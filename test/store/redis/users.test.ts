// Users' devices on Redis, in addition to the contract, and how many calls are sent at once for
// many users.

import t from "tap";
import { codeOf } from "../../contract/store-fixture.ts";
import { startRedis, startRedisCluster } from "../../support/redis.ts";
import { startControl } from "./control.ts";
import { openStore } from "./one-store.ts";

t.test("devices are stored on a single Redis server", async (t) => {
  const server = await startRedis(t);
  t.test("a device of a newer format is rejected", async (t) => {
    const { store, keys } = await startControl(t, server.url);
    const client = server.client();
    await client.hset(keys.user("devices", "a"), "0", Buffer.from([3, 0, 1]));
    t.equal(await codeOf(store.device("a", 0)), "internal");
  });

  t.test("calls after `close` are rejected with `unavailable`", async (t) => {
    const { store } = await startControl(t, server.url);
    await store.close();
    const device = { uid: "a", flag: 0, level: 0 } as const;
    const put = store.putDevice({ ...device, tokenHash: new Uint8Array(32) });
    t.equal(await codeOf(put), "unavailable");
    t.equal(await codeOf(store.device("a", 0)), "unavailable");
  });
});

t.test(
  "20 concurrent reads, each of the states of 100 users, succeed on a Redis Cluster",
  async (t) => {
    const { url } = await startRedisCluster(t);
    const settings = { maxInFlight: 300, timeoutMs: 30_000 };
    const { store } = await openStore(t, url, { settings });
    const uids = Array.from({ length: 100 }, (_, at) => `u${at}`);
    const reads = uids.slice(0, 20).map(() => store.userStates(uids));
    const states = (await Promise.all(reads)).flat();
    t.equal(states.length, 2000);
  },
);
