// Counts the calls to Redis for the chunks of AI streams, with Redis' own statistics: a chunk is
// one call, and chunks that arrive together share calls.

import t, { type Test } from "tap";
import { spawnBroker } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

const redis = await startRedis(t);
const client = redis.client();
const node = await spawnBroker(t, { JINDOU_REDIS_URL: redis.url });
const channel = { channel_type: 2, from_uid: "bot" };

async function post(
  t: Test,
  { id, no, type, data = "" }: { id: string; no: string; type: string; data?: string },
): Promise<void> {
  const event = { type, data };
  const { status } = await node.call("/event", {
    ...{ ...channel, channel_id: id, client_msg_no: no, event },
  });
  if (status !== 200) t.fail(`${type} is answered with ${status}`);
}

/** Runs `work` and returns how many functions and scripts were called while it ran. */
async function callsDuring(work: () => Promise<unknown>) {
  await client.config("RESETSTAT");
  await work();
  const stats = await client.info("commandstats");
  const callsOf = (command: string): number =>
    Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0);
  return { functions: callsOf("fcall"), scripts: callsOf("evalsha") };
}

t.test(
  "a chunk of a stream costs one call to Redis, which also checks whether the producer may send",
  async (t) => {
    await node.call("/channel", { ...channel, channel_id: "g", subscribers: ["bot"] });
    await post(t, { id: "g", no: "s", type: "___TextMessageStart" });
    const { functions, scripts } = await callsDuring(async () => {
      for (let n = 0; n < 100; n++)
        await post(t, { id: "g", no: "s", type: "___TextMessageContent", data: `${n} ` });
    });
    t.equal(functions, 100);
    t.ok(scripts < 50, `${scripts} scripts were called, for heartbeats and sweeps`);
  },
);

t.test("chunks of different streams that arrive together share calls to Redis", async (t) => {
  const streams = Array.from({ length: 64 }, (_, at) => ({ id: `g${at}`, no: `s${at}` }));
  for (const { id } of streams)
    await node.call("/channel", { ...channel, channel_id: id, subscribers: ["bot"] });
  for (const stream of streams) await post(t, { ...stream, type: "___TextMessageStart" });
  const { functions } = await callsDuring(async () => {
    for (let n = 0; n < 10; n++)
      await Promise.all(
        streams.map((stream) => post(t, { ...stream, type: "___TextMessageContent", data: "x" })),
      );
  });
  t.ok(functions < 640, `${functions} calls for 640 chunks`);
  t.comment(`${functions} calls for 640 chunks, 64 in flight`);
});
