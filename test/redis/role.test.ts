// Tests of nodes whose server is a replica that accepts writes. Such a replica would acknowledge
// messages and delete them when it synchronizes with its primary.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { type ApiResponse, type Broker, startBroker, textPayload } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

const WRITABLE = ["--replica-read-only", "no"];
const SILENT = { JINDOU_LOG_LEVEL: "silent" };
const GROUP = { channel_id: "team", channel_type: 2 };

async function readyzWith(broker: Broker, status: number): Promise<ApiResponse> {
  for (;;) {
    const response = await broker.call("/readyz");
    if (response.status === status) return response;
    await pause(50);
  }
}

function send(broker: Broker): Promise<ApiResponse> {
  const message = { from_uid: "alice", payload: textPayload("hello") };
  return broker.call("/message/send", { ...GROUP, ...message });
}

t.test("a node does not use a writable replica as its primary", async (t) => {
  const primary = await startRedis(t);
  const replica = await startRedis(t, ["--replicaof", `127.0.0.1 ${primary.port}`, ...WRITABLE]);
  const settings = { JINDOU_REDIS_URL: replica.url, JINDOU_START_WAIT_FOR_STORE_S: "0" };
  await t.rejects(
    startBroker(t, { ...SILENT, ...settings }),
    /the server is a replica, .*REPLICAOF NO ONE/,
  );
});

for (const isReconnecting of [false, true])
  t.test(
    `a node stops using a server that becomes a writable replica ${isReconnecting ? "before the node reconnects" : "while the node is connected"}`,
    async (t) => {
      const other = await startRedis(t);
      const redis = await startRedis(t, WRITABLE);
      const client = redis.client();
      const broker = await startBroker(t, { ...SILENT, JINDOU_REDIS_URL: redis.url });
      await broker.call("/channel", { ...GROUP, subscribers: ["alice"] });
      t.equal((await send(broker)).status, 200);
      await client.call("REPLICAOF", "127.0.0.1", `${other.port}`);
      if (isReconnecting) await client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
      while (!/the server is a replica,/.test((await readyzWith(broker, 503)).body.error))
        await pause(50);
      t.equal((await send(broker)).status, 503);
      await client.call("REPLICAOF", "NO", "ONE");
      await readyzWith(broker, 200);
      t.equal((await send(broker)).status, 200);
    },
  );
