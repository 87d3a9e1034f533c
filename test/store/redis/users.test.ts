// Users' devices on Redis, beside the contract.

import t from "tap";
import { codeOf } from "../../contract/store-bench.ts";
import { startRedis } from "../../support/redis.ts";
import { startControl } from "./control.ts";

t.test("one server", async (t) => {
  const server = await startRedis(t);
  t.test("a device of a newer format is refused, not misread", async (t) => {
    const { store, keys } = await startControl(t, server.url);
    const client = server.client();
    await client.hset(keys.user("dev", "a"), "0", Buffer.from([2, 0, 1]));
    t.equal(await codeOf(store.device("a", 0)), "internal");
  });

  t.test("after close calls are unavailable", async (t) => {
    const { store } = await startControl(t, server.url);
    await store.close();
    const device = { uid: "a", flag: 0, level: 0 } as const;
    const put = store.putDevice({ ...device, tokenHash: new Uint8Array(32) });
    t.equal(await codeOf(put), "unavailable");
    t.equal(await codeOf(store.device("a", 0)), "unavailable");
  });
});
