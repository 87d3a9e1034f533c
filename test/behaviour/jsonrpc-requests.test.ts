// Ids and batches of JSON-RPC requests on a real broker, and messages that are not JSON-RPC.

import { type Json, type JsonRpcClient, openJsonRpc } from "../support/jsonrpc-client.ts";
import { t } from "../support/suite.ts";
import { startWorld } from "./world.ts";

const world = await startWorld(t);
const slow = await startWorld(t, {
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "1",
  JINDOU_CLIENT_FRAME_BURST: "80",
});

/** Connects a new user. */
async function connected(
  test: typeof t,
  target = world,
  form: "extended" | "plain" = "extended",
): Promise<JsonRpcClient> {
  const uid = target.name("ann");
  await target.register(uid);
  const client = await openJsonRpc(test, { port: target.clientPort });
  const protocol = form === "extended" ? { protocol: 1 } : { deviceFlag: 0 };
  await client.request("connect", { ...protocol, uid, token: `token-${uid}` });
  return client;
}

/** Sends a message and returns the server's next message that is not a notification. */
async function answerTo(client: JsonRpcClient, message: string): Promise<string> {
  const { length } = client.texts;
  client.raw(message);
  const isResponse = (text: string) => !("method" in JSON.parse(text));
  await client.waitFor(() => client.texts.slice(length).some(isResponse), "a response");
  return client.texts.slice(length).find(isResponse) ?? "";
}

const ping = (id?: string | number) => ({ jsonrpc: "2.0", method: "ping", ...{ id } });

t.test("a response repeats the id of its request, as a number or a string", async (t) => {
  const client = await connected(t);
  const ids = ["7", "0", "-3", "1.5", "12345678901234567890", "1e3", '"7"', '"\\u00e9\\n"'];
  for (const id of ids) {
    const answer = await answerTo(client, `{"jsonrpc":"2.0","id":${id},"method":"ping"}`);
    const expected = id.startsWith('"')
      ? JSON.stringify(JSON.parse(id))
      : id === "1e3"
        ? "1000"
        : id;
    t.match(answer, `{"jsonrpc":"2.0","id":${expected},"result":`);
    const error = await answerTo(client, `{"jsonrpc":"2.0","id":${id},"method":"nothing"}`);
    t.match(error, `{"jsonrpc":"2.0","id":${expected},"error":`);
  }
});

t.test("a request with an invalid id is refused with an error whose id is null", async (t) => {
  const client = await connected(t);
  for (const id of ["true", "{}", "[1]", '""', "null", JSON.stringify("x".repeat(129))]) {
    const answer = JSON.parse(await answerTo(client, `{"id":${id},"method":"ping"}`));
    t.match(answer, { id: null, error: { code: -32600 } }, id);
  }
  t.ok(await client.request("ping"), "the connection stays open");
});

// Covers [decisions: Values that clients really send]
t.test("null in an optional field counts as an absent field", async (t) => {
  const [uid, peer] = [world.name("ann"), world.name("bob")];
  await world.register(uid);
  const client = await openJsonRpc(t, { port: world.clientPort });
  const device = { deviceFlag: null, deviceId: null, deviceLevel: null };
  await client.request("connect", {
    ...{ protocol: 1, uid, token: `token-${uid}`, ...device },
    ...{ resume: null, session: null },
  });
  const channel = { channelId: peer, channelType: 1 };
  const payload = { type: 1, content: "hello", detail: null };
  const message = { ...channel, payload };
  const labels = { clientMsgNo: null, streamNo: null, tagKey: null, expireS: null };
  for (const header of [null, { noPersist: null, redDot: null, syncOnce: null }])
    t.match(await client.request("send", { ...message, ...labels, header }), {
      messageSeq: Number,
    });
  const range = { before: null, after: null, fromSeq: null, toSeq: null, reverse: null };
  const history = await client.request("history", { ...channel, limit: 10, ...range });
  t.equal((history as Json).messages.length, 2);
  const list = await client.request("conversations", { limit: 10, cursor: null, sinceMs: null });
  t.equal((list as Json).conversations.length, 1);
  t.ok(await client.request("conversation", { ...channel, change: null }));
  const deletion = { ...channel, change: "delete" };
  t.match(await client.request("conversation", { ...deletion, seq: 1 }), { deletedSeq: 1 });
  t.match(await client.request("conversation", { ...deletion, seq: null }), { deletedSeq: 2 });
});

for (const protocol of [1, null])
  t.test(
    `null in jsonrpc, in params and in the id of a notification counts as an absent field, with protocol ${protocol}`,
    async (t) => {
      const uid = world.name("ann");
      await world.register(uid);
      const client = await openJsonRpc(t, { port: world.clientPort });
      await client.request("connect", { protocol, uid, token: `token-${uid}` });
      const acknowledged = { channelType: 2, channelId: "g", messageSeq: 1, messageId: "1" };
      const notification = { jsonrpc: null, id: null, method: "recvack", params: acknowledged };
      client.raw(JSON.stringify(notification));
      const ping = { jsonrpc: null, id: "p", method: "ping", params: null };
      t.match(await client.exchange("p", ping), { result: {} });
      const [, ...later] = client.texts.map((text) => JSON.parse(text));
      t.match(later, [{ id: "p" }], "the recvack has no response");
    },
  );

t.test(
  "a first text message that is not JSON is answered with a JSON-RPC parse error, and the socket is closed",
  async (t) => {
    for (const text of ["hello", "GET / HTTP/1.1", "\u0010", "", "<xml/>"]) {
      const client = await openJsonRpc(t, { port: world.clientPort });
      client.raw(text);
      t.match(await client.closed, { code: 4205 });
      const [answer = "{}"] = client.texts;
      t.match(JSON.parse(answer), { jsonrpc: "2.0", id: null, error: { code: -32700 } }, text);
    }
  },
);

t.test(
  "a batch that is sent as the first message is refused with a JSON-RPC error, and the socket is closed",
  async (t) => {
    const client = await openJsonRpc(t, { port: world.clientPort });
    client.raw(JSON.stringify([{ id: 1, method: "connect", params: { protocol: 1, uid: "x" } }]));
    t.match(await client.closed, { code: 4205 });
    t.match(JSON.parse(client.texts[0] ?? "{}"), { id: null, error: { code: -32600 } });
  },
);

t.test("the responses to a batch are sent in one array", async (t) => {
  const client = await connected(t);
  const channel = await world.newGroup([world.name("ben")]);
  const send = { channelType: 2, channelId: channel.id, payload: { type: 1 } };
  const requests = [
    ping(1),
    { jsonrpc: "2.0", method: "recvack", params: { ...send, messageSeq: 1, messageId: 1 } },
    { jsonrpc: "2.0", id: "s", method: "send", params: send },
    { jsonrpc: "2.0", id: 2, method: "nothing" },
    7,
    { jsonrpc: "2.0", id: 3, method: "history", params: { ...send, limit: 1 } },
    ping("last"),
  ];
  const answers: Json[] = JSON.parse(await answerTo(client, JSON.stringify(requests)));
  const byId = answers.map(({ id, error }) => `${id} ${error?.data.name ?? "ok"}`).sort();
  t.same(byId, [
    "1 ok",
    "2 malformed_frame",
    "3 not_in_channel",
    "last ok",
    "null malformed_frame",
    "s not_subscriber",
  ]);
});

t.test("a batch of notifications has no response", async (t) => {
  const client = await connected(t);
  const ack = {
    method: "recvack",
    params: { channelType: 1, channelId: "x", messageSeq: 1, messageId: 1 },
  };
  client.raw(JSON.stringify([ack, ack]));
  const answer = JSON.parse(await answerTo(client, JSON.stringify(ping("next"))));
  t.equal(answer.id, "next");
});

t.test("a batch that is invalid or too long is refused as a whole", async (t) => {
  const client = await connected(t);
  const commands = '{"id":1,"method":"ping"}';
  const rows = [
    ["[]", -32600],
    [JSON.stringify(Array(101).fill(ping(1))), -32600],
    [`[${commands},{"id":2`, -32700],
    [`[${commands},]`, -32700],
    [`[${commands} ${commands}]`, -32700],
  ] as const;
  for (const [batch, code] of rows) {
    const answer = JSON.parse(await answerTo(client, batch));
    t.match(answer, { id: null, error: { code } }, batch.slice(0, 40));
  }
  const most = JSON.parse(await answerTo(client, JSON.stringify(Array(100).fill(ping(1)))));
  t.equal(most.length, 100);
});

t.test("every request in a batch counts towards the rate limit", async (t) => {
  const client = await connected(t, slow);
  const answers: Json[] = JSON.parse(
    await answerTo(client, JSON.stringify(Array(100).fill(ping(1)))),
  );
  t.equal(answers.length, 100, "every request has a response");
  const refused = answers.filter(({ error }) => error?.data.name === "rate_limited");
  t.ok(refused.length > 10, `${refused.length} of 100 requests are refused`);
});

for (const form of ["extended", "plain"] as const)
  t.test(
    `a large request over the rate limit is refused with its id, and a notification gets no response (${form} form)`,
    async (t) => {
      const client = await connected(t, slow, form);
      await Promise.all(Array.from({ length: 80 }, () => client.request("ping").catch(() => {})));
      const params = { filler: "x".repeat(2000), id: "inner" };
      const end = "x".repeat(1024);
      for (const [request, id] of [
        [{ id: "first", method: "ping", params }, "first"],
        [{ method: "ping", params, id: 'é"\\' }, 'é"\\'],
        [{ method: "ping", params, id: 7, end }, 7],
      ] as const) {
        const answer = JSON.parse(await answerTo(client, JSON.stringify(request, null, 1)));
        const error = form === "plain" ? {} : { data: { name: "rate_limited" } };
        t.match(answer, { id, error }, `id ${id}`);
      }
      const { length } = client.texts;
      const notification = { method: "recvack", params, id: null };
      client.raw(JSON.stringify(notification));
      client.raw(JSON.stringify([notification, { ...notification, id: undefined }]));
      const next = { id: "next", method: "ping", params };
      t.match(JSON.parse(await answerTo(client, JSON.stringify(next))), { id: "next" });
      t.equal(client.texts.length, length + 1);
    },
  );
