// Slots of keys, against values of Redis' own CLUSTER KEYSLOT.

import t from "tap";
import { slotOf } from "../../src/redis/slots.ts";
import { startRedis } from "../support/redis.ts";

t.test("a key is in the slot that Redis says", async (t) => {
  const server = await startRedis(t, ["--cluster-enabled", "yes"]);
  const client = server.client();
  const keys = [
    ...["", "a", "jd:{c7}:log:2:g", "jd:{c7}:head", "jd:{u:älice}:peers"],
    ...["{}tail", "a{}b", "{{x}}y", "{x", "x}{y}", "jd:{u:a{b}:topic", "\n{\n}"],
  ];
  for (const key of keys) t.equal(slotOf(key), await client.call("CLUSTER", "KEYSLOT", key), key);
});
