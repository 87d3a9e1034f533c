// A Redis that rejects writes: it is out of memory and evicts nothing, or it cannot write to its
// disk. Callers get the cause, acknowledged messages stay, and sends succeed again when Redis
// accepts writes.

import { mkdir, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import t from "tap";
import { startBroker, textPayload } from "../support/broker.ts";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { connectNative } from "../support/native-client.ts";
import { startRedis } from "../support/redis.ts";

const MAX_SENDS = 1000;
const SNAPSHOT = "blocked.rdb";

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

/**
 * Makes later snapshots fail, by a folder with the name of the snapshot's file, or succeed again.
 */
async function breakDisk(client: Redis, isBroken: boolean): Promise<void> {
  const [, folder = ""] = await client.config("GET", "dir");
  const snapshot = join(folder, SNAPSHOT);
  await client.config("SET", "save", "3600 1");
  await (isBroken ? mkdir(snapshot) : rmdir(snapshot));
  await client.bgsave();
  const status = `rdb_last_bgsave_status:${isBroken ? "err" : "ok"}`;
  while (!(await client.info("persistence")).includes(status)) await pause(20);
}

const CAUSES = [
  {
    message: "Redis is out of memory; raise its maxmemory, and try again later",
    refuse: (client: Redis) => client.config("SET", "maxmemory", "1mb"),
    accept: (client: Redis) => client.config("SET", "maxmemory", "0"),
  },
  {
    message:
      "Redis cannot write to its disk; check its log, and free space on the disk or repair it. Try again after the next successful save",
    refuse: (client: Redis) => breakDisk(client, true),
    accept: (client: Redis) => breakDisk(client, false),
  },
];

t.test("every caller whose write Redis rejects receives the cause and the remedy", async (t) => {
  const redis = await startRedis(t, ["--dbfilename", SNAPSHOT]);
  const client = redis.client();
  const broker = await startBroker(t, { JINDOU_REDIS_URL: redis.url });
  for (const uid of ["alice", "bob"])
    await broker.call("/user/token", { uid, token: uid, device_flag: 0 });
  const port = broker.clientPort;
  const native = await connectNative(t, { port, uid: "alice", token: "alice" });
  const json = await openJsonRpc(t, { port });
  await json.request("connect", { protocol: 1, uid: "bob", token: "bob" });
  const payload = textPayload("x");
  const message = { channel_id: "carol", channel_type: 1, from_uid: "alice", payload };
  const event = { type: "___TextMessageStart" };
  const calls = {
    "/message/send": message,
    "/event": { ...message, client_msg_no: "answer", event },
    "/channel": { channel_id: "team", channel_type: 2 },
    "/user/token": { uid: "carol", token: "carol", device_flag: 1 },
  };
  const channel = { channelId: "carol", channelType: 1 };
  for (const { message: error, refuse, accept } of CAUSES) {
    await refuse(client);
    for (const [path, body] of Object.entries(calls)) {
      const reply = await broker.call(path, body);
      t.match(reply, { status: 503, body: { code: "unavailable", error } }, path);
    }
    const sending = native.send({ id: "carol", type: 1 }, Buffer.from(payload, "base64"));
    await t.rejects(sending, { code: "unavailable", message: error }, "native");
    const request = json.request("send", { ...channel, payload });
    const data = { name: "unavailable", retry: true };
    await t.rejects(request, { message: new RegExp(error), data }, "JSON");
    await accept(client);
    t.equal((await broker.call("/message/send", message)).status, 200, "Redis accepts writes");
  }
});
