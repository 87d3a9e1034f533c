// Redis servers whose clock shows a time after 2080, and counters of message ids at their limit.
// Message ids must stay below 2^53 and differ from each other.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { MAX_MESSAGE_ID } from "../../src/broker/model.ts";
import { type Broker, spawnBroker, textPayload } from "../support/broker.ts";
import { startRedis, startRedisCluster } from "../support/redis.ts";
import { NO_SHIFTED_REDIS, startShiftedRedis } from "../support/shifted-redis.ts";

const COUNTER = "jd:{all}:messageIds";
const BUCKET_COUNTER = "jd:{c7}:messageIds";
/** Returns the time from now until a year begins, in milliseconds. */
const until = (year: number) => Date.UTC(year, 0, 1) - Date.now();

const message = {
  ...{ from_uid: "a", channel_id: "b", channel_type: 1, payload: textPayload("hello") },
};
const send = (node: Broker, fields = {}) => node.call("/message/send", { ...message, ...fields });

async function gauge(node: Broker): Promise<string | undefined> {
  const { body } = await node.call("/metrics");
  return /^jindou_clock_invalid (\d)$/m.exec(body)?.[1];
}

t.test(
  "a node does not start while the clock of Redis shows a time after 2080",
  { skip: NO_SHIFTED_REDIS },
  async (t) => {
    const { redis, shiftTo } = await startShiftedRedis(t);
    for (const year of [2081, 2100]) {
      shiftTo(until(year));
      await t.rejects(spawnBroker(t, { JINDOU_REDIS_URL: redis.url }), {
        message: /Redis cannot be used: its clock shows 2\d{3}-.*Set the clock of its machine/,
      });
    }
    shiftTo(until(2079));
    const node = await spawnBroker(t, { JINDOU_REDIS_URL: redis.url });
    t.equal((await send(node)).status, 200, "an earlier time is used");
  },
);

t.test(
  "while the clock of Redis shows a time after 2080, a running node rejects writes and names the clock",
  { skip: NO_SHIFTED_REDIS },
  async (t) => {
    const { redis, shiftTo } = await startShiftedRedis(t);
    const node = await spawnBroker(t, { JINDOU_REDIS_URL: redis.url });
    const ids = [(await send(node)).body.message_id];
    t.equal(await gauge(node), "0");
    shiftTo(until(2100));
    const names = /Redis cannot be used: its clock shows 2100-.*Set the clock of its machine/;
    // A write that was sent before the node has read the new time arrives after its deadline.
    let refusal = await send(node);
    while (!names.test(JSON.stringify(refusal.body))) {
      t.equal(refusal.status, 503);
      await pause(50);
      refusal = await send(node);
    }
    t.equal(refusal.status, 503);
    t.equal(await gauge(node), "1");
    t.match(node.output(), /"level":"error".*The clock of Redis shows a time after 2080/);
    // The node counts as cut off when its heartbeats have been rejected for `cluster.deadAfterMs`.
    const ready = async () => node.call("/readyz");
    while (!/its clock shows 2100-/.test(JSON.stringify((await ready()).body))) await pause(50);
    shiftTo(0);
    while ((await send(node)).status !== 200) await pause(50);
    while ((await ready()).status !== 200) await pause(50);
    t.equal(await gauge(node), "0");
    for (let i = 0; i < 20; i++) ids.push((await send(node)).body.message_id);
    t.same(
      ids,
      [...new Set(ids)].sort((a, b) => a - b),
      "the ids differ and grow",
    );
  },
);

t.test(
  "a node does not start on a Redis whose counter of message ids is at its limit",
  async (t) => {
    const redis = await startRedis(t);
    const client = redis.client();
    const settings = { JINDOU_REDIS_URL: redis.url };
    for (const id of ["9800000000000000", String(MAX_MESSAGE_ID)]) {
      await client.set(COUNTER, id);
      await t.rejects(spawnBroker(t, settings), {
        message: /Redis cannot be used: it has message ids above 9007199254740990.*older backup/,
      });
    }
    await client.set(COUNTER, String(MAX_MESSAGE_ID - 1));
    const node = await spawnBroker(t, settings);
    t.equal((await send(node)).body.message_id, MAX_MESSAGE_ID);

    const cluster = await startRedisCluster(t);
    const clustered = { JINDOU_REDIS_URL: cluster.url, JINDOU_REDIS_CLUSTER: "true" };
    await Promise.any(
      cluster.primaries.map((primary) => primary.client().set(BUCKET_COUNTER, "9800000000000000")),
    );
    await t.rejects(spawnBroker(t, clustered), {
      message: /it has message ids above .*jd:\{c7\}:messageIds/,
    });
  },
);

t.test(
  "a write whose message id would exceed the limit is refused and changes nothing",
  async (t) => {
    const redis = await startRedis(t);
    const client = redis.client();
    const node = await spawnBroker(t, { JINDOU_REDIS_URL: redis.url });
    await send(node);
    const stored = async () =>
      (
        await node.call("/channel/messagesync", {
          ...{ login_uid: "a", channel_id: "b", channel_type: 1, limit: 100 },
        })
      ).body.messages.length;
    const before = await stored();
    for (const counter of [String(MAX_MESSAGE_ID), "9800000000000000"]) {
      await client.set(COUNTER, counter);
      const writes = [
        send(node),
        send(node, { client_msg_no: "first" }),
        send(node, { header: { sync_once: 1 } }),
        send(node, { header: { no_persist: 1 } }),
        node.call("/conversations/setUnread", {
          ...{ uid: "b", channel_id: "a", channel_type: 1, unread: 0 },
        }),
        node.call("/event", {
          ...{
            from_uid: "a",
            channel_id: "b",
            channel_type: 1,
            client_msg_no: `stream-${counter}`,
          },
          event: { type: "___TextMessageStart" },
        }),
      ];
      for (const [at, { status, body }] of (await Promise.all(writes)).entries()) {
        t.equal(status, 503, `${at}`);
        t.match(JSON.stringify(body), /No message ids are left in Redis/);
      }
      t.equal(await client.get(COUNTER), counter);
      t.equal(await stored(), before);
    }
    await client.del(COUNTER);
    t.equal((await send(node, { client_msg_no: "first" })).status, 200);
  },
);
