// A Redis that has no more memory and throws nothing away: sends are refused, what was acknowledged
// stays, and with room they go on.

import t from "tap";
import { startBroker, textPayload } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

const MAX_SENDS = 1000;

t.test("a full Redis refuses, and forgets nothing", async (t) => {
  const redis = await startRedis(t, [
    ...["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"],
  ]);
  const broker = await startBroker(t, { JINDOU_REDIS_URL: redis.url });
  const send = () =>
    broker.call("/message/send", {
      ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
      payload: textPayload("x".repeat(30_000)),
    });
  const kept: number[] = [];
  let refused = await send();
  for (let n = 0; n < MAX_SENDS && refused.status === 200; n++) {
    kept.push(refused.body.message_seq);
    refused = await send();
  }
  t.equal(refused.status, 503);
  t.equal(refused.body.code, "unavailable");
  t.ok(Number(refused.headers.get("retry-after")) >= 1);
  t.ok(kept.length > 10, `${kept.length} messages`);

  await redis.client().config("SET", "maxmemory", "0");
  const next = await send();
  t.equal(next.body.message_seq, kept.length + 1, "a refusal took no number");
  const path = "/channel/messages?channel_id=bob&channel_type=1&uid=alice";
  const { body } = await broker.call(`${path}&limit=500`);
  t.same(
    body.messages.map((one: { message_seq: number }) => one.message_seq),
    [...kept, kept.length + 1],
  );
});
