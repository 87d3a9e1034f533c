// Tests the cost of many requests in one message, of requests that are expensive to parse, and of
// refused requests. With JINDOU_TEST_QUIET=1, on a machine that does nothing else, the CPU time of
// expensive messages is compared with the work that is charged for them.

import { readFileSync } from "node:fs";
import t, { type Test } from "tap";
import { PERSON_CHANNEL } from "../../src/broker/model.ts";
import { type ChildBroker, spawnBroker } from "../support/broker.ts";
import { type Json, type JsonRpcClient, openJsonRpc } from "../support/jsonrpc-client.ts";
import { openWkproto } from "../support/wkproto-client.ts";

const IS_QUIET = process.env.JINDOU_TEST_QUIET === "1";
/** Work that a connection may request at once. This budget grows by only 1 per second. */
const BURST = 120;
/**
 * Number of earlier requests after which fewer than half of the `REQUESTS` requests in a message
 * are admitted.
 */
const SPENT = 80;
/** Maximum number of requests in one JSON message. */
const REQUESTS = 100;
/** Documented CPU time of one unit of work, in milliseconds. */
const FRAME_MS = 0.025;
const MESSAGE_BYTES = 160_000;
const RATE_LIMITED = 4100;
const PROTOCOL = { extended: { protocol: 1 }, wukongim: {} } as const;

t.setTimeout(180_000);

const broker = await spawnBroker(t, {
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "1",
  JINDOU_CLIENT_FRAME_BURST: String(BURST),
  JINDOU_CLIENT_USER_RATE_FACTOR: "2",
});

async function login(
  t: Test,
  uid: string,
  form: keyof typeof PROTOCOL = "extended",
  node: ChildBroker = broker,
): Promise<JsonRpcClient> {
  await node.call("/user/token", { uid, token: "t", device_flag: 1 });
  const client = await openJsonRpc(t, { port: node.clientPort });
  await client.request("connect", { uid, token: "t", deviceFlag: 1, ...PROTOCOL[form] });
  return client;
}

/** JSON with more values than the whole budget of a connection pays for. */
const VALUES = `[${"[],".repeat(20_000)}0]`;

const request = (method: string, id: string, params: Json = {}) =>
  JSON.stringify({ jsonrpc: "2.0", method, id, params });
const send = { channelId: "bob", channelType: PERSON_CHANNEL, payload: { type: 1, content: "x" } };

/** Sends the requests as one message. Returns how many were executed and how many were refused. */
async function sendTogether(client: JsonRpcClient, method: string, params: Json) {
  client.raw(Array.from({ length: SPENT }, (_, i) => request("ping", `${i}`)).join(""));
  const before = client.texts.length;
  const ids = Array.from({ length: REQUESTS }, (_, i) => `${method}-${i}`);
  client.raw(ids.map((id) => request(method, id, params)).join(""));
  const responses = () =>
    client.texts
      .slice(before)
      .map((text) => JSON.parse(text))
      .filter(({ id }) => ids.includes(id));
  await client.waitFor(() => responses().length === REQUESTS, "a response to each request");
  const refused = responses().filter(
    ({ error, result }) => error?.data?.name === "rate_limited" || result?.reasonCode === 22,
  );
  return { executed: REQUESTS - refused.length, refused: refused.length };
}

t.test("each of 100 requests in one WebSocket message counts towards the rate limit", async (t) => {
  const history = { channelId: "bob", channelType: PERSON_CHANNEL, limit: 100 };
  const cases = [
    ["extended", "send", send, REQUESTS / 2 + 10],
    ["wukongim", "send", send, REQUESTS / 2 + 10],
    ["extended", "ping", {}, REQUESTS / 2 + 10],
    ["extended", "history", history, 10],
  ] as const;
  for (const [form, method, params, most] of cases) {
    const client = await login(t, `many-${form}-${method}`, form);
    const { executed, refused } = await sendTogether(client, method, params);
    t.ok(
      executed > 0 && executed < most,
      `${executed} of ${method} (${form}) are executed, less than ${most}`,
    );
    t.equal(executed + refused, REQUESTS, "each request has one response");
    client.kill();
  }
});

t.test("each WKProto packet in one WebSocket message counts towards the rate limit", async (t) => {
  await broker.call("/user/token", { uid: "wk", token: "t", device_flag: 1 });
  const client = await openWkproto(t, { port: broker.clientPort, uid: "wk", token: "t" });
  await client.connect();
  const fields = { channelId: "bob", channelType: PERSON_CHANNEL, plain: '{"type":1}' };
  const packets = Array.from({ length: REQUESTS }, (_, i) =>
    client.encode("SEND", { ...fields, clientSeq: i, clientMsgNo: `n${i}` }),
  );
  for (let i = 0; i < SPENT; i++) client.write("PING");
  client.writeBytes(Buffer.concat(packets));
  const acks = () => client.received.filter(({ packet }) => packet === "SENDACK");
  await client.nth(REQUESTS, ({ packet }) => packet === "SENDACK");
  const stored = acks().filter(({ fields }) => fields.reasonCode === 1);
  t.ok(
    stored.length > 0 && stored.length < REQUESTS / 2 + 10,
    `${stored.length} of ${REQUESTS} are stored`,
  );
});

t.test(
  "the work charged for a JSON message grows with the number of its values, even if the message is refused",
  async (t) => {
    for (const [name, message] of Object.entries({
      accepted: `{"jsonrpc":"2.0","id":"1","method":"ping","params":{"x":${VALUES}}}`,
      "without a method": `{"jsonrpc":"2.0","id":"1","x":${VALUES}}`,
      "not JSON": `{"jsonrpc":"2.0","id":"1","x":${VALUES}`,
    })) {
      const client = await login(t, `values-${name.slice(0, 3)}`);
      client.raw(message);
      const { error } = await client.exchange("2", request("ping", "2"));
      t.equal(error?.data?.name, "rate_limited", `the ping after the message is refused: ${name}`);
      client.kill();
    }
  },
);

t.test(
  "a refused request is answered with its id, however the id is written, and notifications are not answered",
  async (t) => {
    const client = await login(t, "in-debt");
    client.raw(`{"id":"costly","method":"ping","params":{"x":${VALUES}}}`);
    await client.exchange("fast", request("ping", "fast"));
    const before = client.texts.length;
    client.raw(
      '{"method":"recvack","params":{"messageSeq":1,"messageId":1}}{"id":true,"method":"ping"}',
    );
    for (const [id, text] of [
      ["plain", '{"id":"plain","method":"ping"}'],
      ["escaped", '{"\\u0069d":"esc\\u0061ped","method":"ping"}'],
      ["last", '{"id":"first","method":"ping","params":{"id":"inner"},"id":"last"}'],
      ["x".repeat(128), `{"id":"${"\\u0078".repeat(128)}","method":"ping"}`],
      ["not valid", '{"id":"not valid","method":"ping","params":[[[}'],
    ] as const) {
      const { error } = await client.exchange(id, text);
      t.equal(error?.data?.name, "rate_limited", `the request ${id.slice(0, 20)} is refused`);
    }
    t.equal(client.texts.length, before + 5, "nothing else is answered");
  },
);

t.test(
  "a connection is closed if all connections of its user together keep sending over the rate limit",
  async (t) => {
    const clients = [];
    for (let i = 0; i < 6; i++) clients.push(await login(t, "crowd"));
    // Each connection stays below the limit at which a single connection is closed.
    for (const client of clients)
      client.raw(Array.from({ length: 100 }, (_, i) => request("ping", `${i}`)).join(""));
    const { code } = await Promise.race(clients.map(({ closed }) => closed));
    t.equal(code, RATE_LIMITED, "a connection is closed");
  },
);

t.test(
  "expensive messages use at most three times the CPU time for which they are charged",
  { skip: !IS_QUIET && "measures CPU time: set JINDOU_TEST_QUIET=1" },
  async (t) => {
    const open = await spawnBroker(t, { JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0" });
    const client = await login(t, "eve", "extended", open);
    const cpuMs = () =>
      Number.parseInt(readFileSync(`/proc/${open.process.pid}/schedstat`, "utf8"), 10) / 1e6;
    const costOf = async (message: string) => {
      const rounds = 20;
      const beforeMs = cpuMs();
      for (let i = 0; i < rounds; i++) {
        client.raw(message);
        await client.exchange("after", request("ping", "after"));
      }
      return (cpuMs() - beforeMs) / rounds;
    };
    const baseMs = await costOf("");
    const fill = (unit: string, before: string, after: string) =>
      before + unit.repeat((MESSAGE_BYTES - before.length - after.length) / unit.length) + after;
    const ping = '{"id":"1","method":"ping","params":{"x":';
    const payload =
      '{"id":"1","method":"send","params":{"channelId":"bob","channelType":9,"payload":{"x":';
    const messages = {
      "nested lists": fill("[", ping, ""),
      "nested objects": fill('{"a":', ping, ""),
      "empty lists": fill("[],", `${ping}[`, "0]}}"),
      "empty objects": fill("{},", `${ping}[`, "0]}}"),
      numbers: fill("1e300,", `${ping}[`, "0]}}"),
      names: fill('"a":1,', `${ping}{`, '"b":1}}}'),
      "names that differ": `${ping}{${Array.from({ length: 14_000 }, (_, i) => `"n${i}":1`)}}}}`,
      "an object payload": fill("[],", `${payload}[`, "0]}}}"),
      "a long text": fill("x", `${ping}"`, '"}}'),
      "a long text that is not ASCII": fill("é", `${ping}"`, '"}}').slice(0, MESSAGE_BYTES / 2),
      "100 documents": '{"id":"1","method":"x"}'.repeat(100),
      "6,000 documents": fill('{"id":"1","method":"x"}', "", ""),
      "no JSON": fill("x", "{", "}"),
    };
    for (const [name, message] of Object.entries(messages)) {
      await costOf(message);
      const ms = (await costOf(message)) - baseMs;
      const values = message.replaceAll(/"[^"]*"/g, "").replaceAll(/[^{[,]/g, "").length;
      const documents = Math.min(100, message.split('{"id"').length - 1);
      const work = documents + Buffer.byteLength(message) / 4096 + values / 200;
      t.comment(
        `${name}: ${ms.toFixed(2)} ms, charged ${work.toFixed(0)} frames = ${(work * FRAME_MS).toFixed(2)} ms`,
      );
      t.ok(ms <= 3 * work * FRAME_MS + 1, `${name} costs at most 3 times what it is charged`);
    }
  },
);
