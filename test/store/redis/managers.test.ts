// Managers' passwords and tokens, and leases on Redis, in addition to the contract: a token ends at
// its stored time, and its key expires later. A lease has one owner.

import t from "tap";
import { codeOf } from "../../contract/store-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { startControl } from "./control.ts";
import { openStore } from "./one-store.ts";

const HOUR_MS = 3_600_000;

t.test("passwords and access tokens are stored on a single Redis server", async (t) => {
  const server = await startRedis(t);
  t.test("an access token is valid until its stored expiry time, to the millisecond", async (t) => {
    let nowMs = Date.UTC(2026, 0, 1);
    const clock = () => nowMs;
    const { store, keys } = await startControl(t, server.url, { clock });
    const hash = new Uint8Array(32).fill(1);
    await store.putAccessToken(hash, "line\nbreak", nowMs + HOUR_MS);
    nowMs += HOUR_MS - 1;
    t.equal(await store.accessTokenOwner(hash), "line\nbreak");
    nowMs += 1;
    t.equal(await store.accessTokenOwner(hash), undefined);
    const key = keys.shared(`tokens:${"01".repeat(32)}`);
    const remainingMs = await server.client().pttl(key);
    t.ok(
      remainingMs > HOUR_MS && remainingMs <= HOUR_MS + 60_000,
      `the key expires after ${remainingMs} ms`,
    );
  });

  t.test("an access token that has already expired is invalid", async (t) => {
    const { store } = await startControl(t, server.url);
    const hash = new Uint8Array(32);
    await store.putAccessToken(hash, "admin", 1);
    t.equal(await store.accessTokenOwner(hash), undefined);
  });

  t.test("`putPasswordOnce` is rejected if the stored password has a newer format", async (t) => {
    const { store, keys } = await startControl(t, server.url);
    const client = server.client();
    await client.hset(keys.shared("managers"), "admin", "2\nhash");
    const put = store.putPasswordOnce("admin", { passwordHash: "mine" });
    t.equal(await codeOf(put), "internal");
  });

  t.test("`accessTokenOwner` is rejected with `unavailable` after `close`", async (t) => {
    const { store } = await startControl(t, server.url);
    await store.close();
    const owner = store.accessTokenOwner(new Uint8Array(32));
    t.equal(await codeOf(owner), "unavailable");
  });
});

t.test(
  "a lease can be released only with its token, and tokens keep increasing after Redis was emptied",
  async (t) => {
    const server = await startRedis(t);
    const { store } = await openStore(t, server.url);
    const first = await store.acquireLease("task", "one", 60_000);
    if (first === undefined) throw new Error("the lease is held by another owner");
    t.equal(await store.acquireLease("task", "two", 60_000), undefined, "the lease has an owner");
    await store.releaseLease({ ...first, token: first.token - 1 }, "one");
    t.equal(
      await store.acquireLease("task", "two", 60_000),
      undefined,
      "a release with a different token has no effect",
    );
    await store.releaseLease(first, "one");
    const second = await store.acquireLease("task", "two", 60_000);
    t.ok((second?.token ?? 0) > first.token, "another owner has the lease");
    await server.client().flushall();
    const third = await store.acquireLease("task", "three", 60_000);
    t.ok(
      (third?.token ?? 0) > (second?.token ?? 0),
      "the tokens that were lost are not used again",
    );
  },
);
