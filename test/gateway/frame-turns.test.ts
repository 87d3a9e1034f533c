// The queue of frames that must not delay other clients. From outside, only durations show the
// order of the queue, so the queue is tested separately. Its bounds are tested on a real node.

import { setImmediate } from "node:timers/promises";
import { FrameTurns } from "../../src/gateway/frame-turns.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { startBroker } from "../support/broker.ts";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { connectNative } from "../support/native-client.ts";
import { t } from "../support/suite.ts";
import { connectWkproto } from "../support/wkproto-client.ts";

const range = (length: number) => Array.from({ length }, (_, i) => i);

/** Adds a frame with this work for each key. Returns the keys in the order of their turns. */
function queue(keys: readonly string[], work: number) {
  const turns = new FrameTurns();
  const order: string[] = [];
  for (const key of keys) {
    const processNext = () => {
      order.push(key);
      return work;
    };
    if (!turns.add(key, { processNext }, 10)) order.push("refused");
  }
  return { turns, order };
}

t.test("users with waiting frames take turns", async (t) => {
  const { order } = queue(["eve", "eve", "eve", "bob", "eve", "carol"], 0);
  while (order.length < 6) await setImmediate();
  t.equal(order.slice(0, 3).toSorted().join(), "bob,carol,eve");
  t.same(order.slice(3), ["eve", "eve", "eve"]);
});

t.test("each expensive frame is processed in its own turn of the event loop", async (t) => {
  const { order } = queue(["eve", "bob", "carol"], 40);
  t.same(order, [], "no frame is processed at once");
  for (const expected of [1, 2, 3]) {
    await setImmediate();
    t.equal(order.length, expected);
  }
});

t.test("frames of one user fill at most half of the free space for waiting frames", async (t) => {
  const turns = new FrameTurns();
  let processed = 0;
  const mebibyte = 1024 * 1024;
  const client = {
    processNext() {
      processed += 1;
      return 0;
    },
  };
  const accepted = (key: string) =>
    range(100).filter(() => turns.add(key, client, mebibyte)).length;
  t.equal(accepted("eve"), 32, "the first user may use half of 64 MiB");
  t.equal(accepted("mallory"), 16, "a second user may use half of the remaining room");
  t.equal(accepted("alice"), 8, "another user's frames find room");
  while (processed < 56) await setImmediate();
  t.equal(accepted("eve"), 32, "the room is free again");
});

t.test(
  "900 requests that are sent together are answered in the order in which they were sent",
  async (t) => {
    const broker = await startBroker(t, { JINDOU_AUTH_CLIENTS: "none" });
    const client = await connectNative(t, { port: broker.clientPort, uid: "alice" });
    const refs: number[] = [];
    await Promise.all(range(900).map((i) => client.ping().then(() => refs.push(i))));
    t.same(refs, range(900));
  },
);

t.test("a client with more than 4,096 waiting frames is closed with 4100", async (t) => {
  const broker = await startBroker(t, {
    JINDOU_AUTH_CLIENTS: "none",
    JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "100",
    JINDOU_CLIENT_FRAME_BURST: "100000",
  });
  const client = await connectNative(t, { port: broker.clientPort, uid: "eve" });
  const ping = encodeOperation({ kind: "ping", ref: 1 });
  for (const _ of range(60_000)) client.raw(ping);
  t.equal((await client.closed).code, 4100);
});

t.test("a JSON-RPC request with more than 20,000 values is refused with too_large", async (t) => {
  const broker = await startBroker(t, { JINDOU_AUTH_CLIENTS: "none" });
  const client = await openJsonRpc(t, { port: broker.clientPort });
  await client.request("connect", { uid: "alice", token: "", protocol: 1 });
  const request = (id: string, values: number) =>
    `{"params":{"x":[${"0,".repeat(values)}0]},"jsonrpc":"2.0","method":"ping","id":"${id}"}`;
  const { error } = await client.exchange("many", request("many", 20_001));
  t.equal(error?.data.name, "too_large");
  t.ok(
    (await client.exchange("fewer", request("fewer", 19_000))).result,
    "a request with fewer values is accepted",
  );
});

t.test(
  "every WKProto packet that arrives in two frames is answered, even while some packets are refused",
  async (t) => {
    const PACKETS = 40;
    const broker = await startBroker(t, {
      JINDOU_AUTH_CLIENTS: "none",
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "1",
      JINDOU_CLIENT_FRAME_BURST: "60",
    });
    const client = await connectWkproto(t, { port: broker.clientPort, uid: "eve" });
    for (const clientSeq of range(PACKETS)) {
      const fields = { clientSeq, clientMsgNo: `n${clientSeq}`, channelId: "bob", channelType: 1 };
      const packet = client.encode("SEND", { ...fields, plain: '{"type":1}' });
      client.writeBytes(packet.subarray(0, 9));
      client.writeBytes(packet.subarray(9));
    }
    await client.nth(PACKETS, ({ packet }) => packet === "SENDACK");
    const acks = client.received.filter(({ packet }) => packet === "SENDACK");
    const seqs = acks.map(({ fields }) => Number(fields.clientSeq));
    t.same(
      seqs.toSorted((a, b) => a - b),
      range(PACKETS),
      "every packet is answered",
    );
    const refused = acks.filter(({ fields }) => fields.reasonCode !== 1).length;
    t.ok(refused > 0 && refused < PACKETS, `${refused} packets are refused`);
  },
);
