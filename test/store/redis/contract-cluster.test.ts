// Runs the Store contract for the Redis driver on a Cluster of three primaries, and checks the
// outbox of users, which only a Cluster needs.

import t from "tap";
import { EVENTS_START } from "../../../src/broker/event-ports.ts";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { userTopic } from "../../../src/broker/model.ts";
import { storeContract } from "../../contract/store.ts";
import { logContract } from "../../contract/store-logs.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { redisDriver } from "./contract-driver.ts";
import { redisLogDriver } from "./log-driver.ts";
import { openStore } from "./one-store.ts";

const { url } = await startRedisCluster(t);
storeContract(t, redisDriver("Redis Cluster", url));
logContract(t, redisLogDriver("Redis Cluster", url));

t.test("an event that its node has not moved to the feed is moved later", async (t) => {
  const { store, link } = await openStore(t, url);
  await store.switchFeed(true);
  const bucket = bucketOf(userTopic("ann"));
  const events = link.keys.bucket("events", bucket);
  await link.write("set", events, "a wrong type stops the node between its two scripts");
  const device = { uid: "ann", flag: 0, level: 1, tokenHash: new Uint8Array([1]) } as const;
  await t.rejects(store.putDevice(device));
  await link.write("del", events);
  const anyTime = { leftMs: 0, checkedMs: Number.MAX_SAFE_INTEGER };
  const users = await store.takeOnline({ limit: 64, turnMs: 1, ...anyTime });
  t.strictSame(users, ["ann"], "another node looks at the user");
  await store.endOnline("ann", [], 0);
  const { rows } = await store.readEvents(bucket, EVENTS_START, 9);
  t.match(rows, [{ type: "user.token_changed" }]);
});
