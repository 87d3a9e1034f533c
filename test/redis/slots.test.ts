// Slots of keys, compared with CLUSTER KEYSLOT of Redis.

import t from "tap";
import { slotOf } from "../../src/redis/slots.ts";
import { startRedis } from "../support/redis.ts";

t.test("slotOf returns the slot that CLUSTER KEYSLOT returns", async (t) => {
  const server = await startRedis(t, ["--cluster-enabled", "yes"]);
  const client = server.client();
  const keys = [
    ...["", "a", "jd:{c7}:log:2:g", "jd:{c7}:head", "jd:{u:älice}:peers"],
    ...["{}tail", "a{}b", "{{x}}y", "{x", "x}{y}", "jd:{u:a{b}:topic", "\n{\n}"],
  ];
  for (const key of keys) t.equal(slotOf(key), await client.call("CLUSTER", "KEYSLOT", key), key);
});
