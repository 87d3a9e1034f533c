// A Redis that is out of memory and evicts nothing: sends are rejected, acknowledged messages stay,
// and sends succeed again when there is memory.

import t from "tap";
import { startBroker, textPayload } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

const MAX_SENDS = 1000;

t.test(
  "a Redis without free memory rejects sends and keeps every acknowledged message",
  async (t) => {
    const redis = await startRedis(t, [
      ...["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"],
    ]);
    const broker = await startBroker(t, { JINDOU_REDIS_URL: redis.url });
    const send = () =>
      broker.call("/message/send", {
        ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
        payload: textPayload("x".repeat(30_000)),
      });
    const storedSeqs: number[] = [];
    let response = await send();
    for (let n = 0; n < MAX_SENDS && response.status === 200; n++) {
      storedSeqs.push(response.body.message_seq);
      response = await send();
    }
    t.equal(response.status, 503);
    t.equal(response.body.code, "unavailable");
    t.ok(Number(response.headers.get("retry-after")) >= 1);
    t.ok(storedSeqs.length > 10, `${storedSeqs.length} messages were stored`);

    await redis.client().config("SET", "maxmemory", "0");
    const next = await send();
    t.equal(next.body.message_seq, storedSeqs.length + 1, "the rejected send used no seq");
    const path = "/channel/messages?channel_id=bob&channel_type=1&uid=alice";
    const { body } = await broker.call(`${path}&limit=500`);
    t.same(
      body.messages.map(({ message_seq }: { message_seq: number }) => message_seq),
      [...storedSeqs, storedSeqs.length + 1],
    );
  },
);
