// Users' devices on Redis, in addition to the contract, and the number of calls that are sent at
// once for many users.

import t from "tap";
import { LOGOUT_TTL_MS } from "../../../src/broker/ports.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { startBroker } from "../../support/broker.ts";
import { startRedis, startRedisCluster } from "../../support/redis.ts";
import { startControl } from "./control.ts";
import { openStore } from "./one-store.ts";

t.test("devices are stored on a single Redis server", async (t) => {
  const server = await startRedis(t);
  t.test("a read of a device in a newer format is rejected", async (t) => {
    const { store, keys } = await startControl(t, server.url);
    const client = server.client();
    await client.hset(keys.user("devices", "a"), "0", Buffer.from([3, 0, 1]));
    t.equal(await codeOf(store.device("a", 0)), "internal");
  });

  t.test(
    "a user's devices are removed a day after the logout of the last device, unless the user is banned",
    async (t) => {
      const { store, link } = await openStore(t, server.url);
      const key = link.keys.user("devices", "a");
      const put = (flag: 0 | 1, token: string) =>
        store.putDevice({ uid: "a", flag, level: 0, tokenHash: Buffer.from(token) });
      const leftMs = async () => Number(await link.call("pttl", key));
      const isExpiring = async () => {
        const ms = await leftMs();
        return ms > LOGOUT_TTL_MS / 2 && ms <= LOGOUT_TTL_MS;
      };
      await put(0, "token");
      await put(1, "");
      t.equal(await leftMs(), -1, "a device has a token");
      await put(0, "");
      t.ok(await isExpiring());
      await store.putBan("a", true);
      t.equal(await leftMs(), -1, "a ban does not expire");
      await store.putBan("a", false);
      t.ok(await isExpiring());
      await put(1, "token");
      t.equal(await leftMs(), -1);
      await store.putBan("b", true);
      await store.putBan("b", false);
      t.notOk(await store.isBanned("b"));
    },
  );

  t.test("a logout is stored until no JWT that was issued before it can be valid", async (t) => {
    const days = (count: number) => count * 86_400;
    const broker = await startBroker(t, {
      JINDOU_REDIS_URL: server.url,
      JINDOU_REDIS_PREFIX: "logouts",
      ...{ JINDOU_AUTH_JWT_MAX_AGE_S: `${days(30)}`, JINDOU_AUTH_JWT_CLOCK_TOLERANCE_S: "60" },
    });
    await broker.call("/user/token", { uid: "a", token: "token", device_flag: 0 });
    await broker.call("/user/device_quit", { uid: "a", device_flag: 0 });
    const client = server.client();
    const [key = ""] = (await client.keys("logouts*")).filter((name) => name.endsWith("devices"));
    const leftS = Math.ceil((await client.pttl(key)) / 1000);
    t.ok(leftS > days(30) && leftS <= days(30) + 2 * 60, `${leftS} s`);
  });

  t.test("calls on devices after `close` are rejected with `unavailable`", async (t) => {
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
