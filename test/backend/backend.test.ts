// Calls of the package `jindou-server`, against a real broker and through a proxy that loses
// replies.

import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type ServerResponse,
} from "node:http";
import type { AddressInfo } from "node:net";
import { buffer } from "node:stream/consumers";
import type { Test } from "tap";
import {
  type Backend,
  createBackend,
  JindouApiError,
  payloadOf,
} from "../../src/backend/backend.ts";
import { startBroker } from "../support/broker.ts";
import { t } from "../support/suite.ts";

const broker = await startBroker(t);
const api = `http://127.0.0.1:${broker.apiPort}`;
const LOBBY = { channel_id: "lobby", channel_type: 2 } as const;
const text = (content: string) => payloadOf({ type: 1, content });

/**
 * Failure of a request: an error status, the error `unavailable`, a reply that the caller does not
 * receive (`lost`), or a connection that is closed before the broker receives the request
 * (`refused`).
 */
type Fault = number | "unavailable" | "lost" | "refused";

/** Starts a server that ends with the test. Returns its URL. */
async function startServer(t: Test, listener: RequestListener): Promise<string> {
  const server = createServer(listener);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/**
 * Starts a proxy in front of the broker. The next requests fail in the ways that `faults` lists.
 */
async function startProxy(t: Test, faults: readonly (Fault | undefined)[]) {
  const remaining = [...faults];
  const bodies: string[] = [];
  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const fault = remaining.shift();
    const body = await buffer(request);
    bodies.push(body.toString());
    if (fault === "refused") return void request.socket.destroy();
    if (typeof fault === "number" || fault === "unavailable") {
      const status = typeof fault === "number" ? fault : 503;
      const code = fault === "unavailable" ? fault : fault === 429 ? "rate_limited" : "overloaded";
      response.writeHead(status, status === 429 ? { "retry-after": "0" } : {});
      return void response.end(JSON.stringify({ error: "later", code, status }));
    }
    const { method = "", url = "" } = request;
    const reply = await fetch(api + url, {
      method,
      headers: { "content-type": "application/json" },
      body: method === "GET" ? null : body,
    });
    if (fault === "lost") return void request.socket.destroy();
    response.writeHead(reply.status, { "content-type": "application/json" });
    response.end(await reply.text());
  }
  const url = await startServer(t, (request, response) => {
    answer(request, response).catch(() => request.socket.destroy());
  });
  return { url, bodies };
}

async function failureOf(call: Promise<unknown>): Promise<string> {
  try {
    await call;
    return "ok";
  } catch (error) {
    if (!(error instanceof JindouApiError)) throw error;
    return `${error.status} ${error.code}`;
  }
}

t.test("calls of jindou-server send body, query and path, and return the reply", async (t) => {
  const jindou = createBackend({ url: `${api}/` });
  await jindou.setUserToken({ uid: "ann", token: "secret", device_flag: 1 });
  t.same(await jindou.createChannel({ ...LOBBY, subscribers: ["ann", "ben"] }), { status: "ok" });
  const sent = await jindou.sendMessage({ ...LOBBY, from_uid: "ann", payload: text("hi") });
  t.equal(sent.message_seq, 1);
  t.match(sent.client_msg_no, /^[0-9a-f-]{36}$/, "the call has a client_msg_no");
  const { messages } = await jindou.listMessages({ ...LOBBY, limit: 5 });
  t.equal(messages.length, 1);
  t.same((await jindou.listChannelMembers(LOBBY)).uids, ["ann", "ben"]);
  t.equal((await jindou.getOnlineStatus(["ann", "zoe"])).length, 2);
  const stream = { ...LOBBY, from_uid: "ann", client_msg_no: "a/b ü?" };
  for (const [type, data] of [
    ["___TextMessageStart", ""],
    ["___TextMessageContent", "It rains."],
    ["___TextMessageEnd", ""],
  ] as const)
    await jindou.sendEvent({ ...stream, event: { type, data } }, { force: "1" });
  const read = await jindou.readStream({ ...LOBBY, client_msg_no: "a/b ü?" });
  t.equal(read?.text, "It rains.");
  t.equal((await jindou.checkLiveness()).status, "ok");
  const conversations = await jindou.listConversations({ uid: "ann" });
  t.equal(conversations.length, 1);
  const path = "/v1/stream/runs/42";
  const { url } = await jindou.signStreamUrl({ path, access: "read", expires_in: 60 });
  t.ok(url.startsWith(`${api}${path}?sig=`));
});

t.test("a refused call rejects with the code, the status and the details", async (t) => {
  const jindou = createBackend({ url: api });
  t.equal(await failureOf(jindou.createChannel(LOBBY)), "409 channel_exists");
  const error = await jindou
    .setUserToken({ uid: "ann", token: "", device_flag: 1 })
    .catch((thrown: unknown) => thrown);
  t.match(error, { code: "bad_request", status: 400, details: [{ path: "token" }] });
  t.equal(
    await failureOf(jindou.sendMessage({ ...LOBBY, from_uid: "eve", payload: text("x") })),
    "403 not_subscriber",
  );
  const wrong = createBackend({ url: "http://127.0.0.1:1", retries: 0 });
  t.equal(await failureOf(wrong.checkLiveness()), "0 unreachable");
  t.throws(() => createBackend({ url: "127.0.0.1:5001" }), TypeError);
});

t.test("a message is sent again and stored once if the reply to it is lost", async (t) => {
  const { url, bodies } = await startProxy(t, ["lost", 503, "refused", undefined]);
  const jindou = createBackend({ url });
  const channel = { channel_id: "once", channel_type: 2 } as const;
  await createBackend({ url: api }).createChannel({ ...channel, subscribers: ["ann"] });
  const sent = await jindou.sendMessage({ ...channel, from_uid: "ann", payload: text("once") });
  t.match(sent, { message_seq: 1, repeated: 1 });
  t.equal(bodies.length, 4);
  t.equal(new Set(bodies).size, 1, "every attempt has the same client_msg_no and payload");
  const { messages } = await jindou.listMessages(channel);
  t.equal(messages.length, 1);
});

t.test(
  "a message to many users is sent again and stored once for each user if the reply to it is lost",
  async (t) => {
    const { url, bodies } = await startProxy(t, ["lost", undefined]);
    const batch = { from_uid: "ann", subscribers: ["ben", "cleo"], payload: text("each") };
    const { fail_uids } = await createBackend({ url }).sendMessageToUsers(batch);
    t.same(fail_uids, []);
    t.equal(bodies.length, 2);
    for (const uid of batch.subscribers) {
      const channel = { channel_id: uid, channel_type: 1, login_uid: "ann" } as const;
      const { messages } = await createBackend({ url: api }).syncMessages({
        ...channel,
        limit: 10,
      });
      t.equal(messages.length, 1, uid);
    }
  },
);

t.test(
  "a client_msg_no that is empty or `undefined` is replaced by a generated id, so that a retry is stored once",
  async (t) => {
    const channel = { channel_id: "unset", channel_type: 2 } as const;
    await createBackend({ url: api }).createChannel({ ...channel, subscribers: ["ann"] });
    for (const client_msg_no of [undefined, ""]) {
      const { url } = await startProxy(t, ["lost", undefined]);
      const message = { ...channel, from_uid: "ann", payload: text("x"), client_msg_no };
      t.match(await createBackend({ url }).sendMessage(message), { repeated: 1 });
    }
  },
);

t.test("an event whose reply is lost is sent again, but added only once", async (t) => {
  const { url } = await startProxy(t, [undefined, "lost", undefined, "lost", undefined]);
  const jindou = createBackend({ url });
  const stream = { ...LOBBY, from_uid: "ann", client_msg_no: "s-1" };
  for (const [type, data] of [
    ["___TextMessageStart", ""],
    ["___TextMessageContent", "once"],
    ["___TextMessageEnd", ""],
  ] as const)
    await jindou.sendEvent({ ...stream, event: { type, data } });
  const read = await jindou.readStream({ ...LOBBY, client_msg_no: "s-1" });
  t.match(read, { text: "once", state: "closed" });
});

t.test(
  "a call that cannot succeed twice is not repeated after an attempt that may have succeeded",
  async (t) => {
    const channel = { channel_id: "new", channel_type: 2 } as const;
    const lost = await startProxy(t, ["lost"]);
    t.equal(await failureOf(createBackend(lost).createChannel(channel)), "0 unreachable");
    t.equal(lost.bodies.length, 1);
    const removal = { ...channel, subscribers: ["zoe"] };
    for (const [fault, code] of [
      ["unavailable", "unavailable"],
      [503, "overloaded"],
    ] as const) {
      const uncertain = await startProxy(t, [fault, undefined]);
      t.equal(
        await failureOf(createBackend(uncertain).removeSubscribers(removal)),
        `503 ${code}`,
        "the broker may have made the change",
      );
      t.equal(uncertain.bodies.length, 1);
    }
    const busy = await startProxy(t, [429, 429]);
    t.equal(await failureOf(createBackend(busy).createChannel(channel)), "409 channel_exists");
    t.equal(busy.bodies.length, 3, "a call that has changed nothing is repeated");
    const gone = await startProxy(t, [503, 503]);
    t.equal(
      await failureOf(createBackend({ ...gone, retries: 1 }).getOnlineStatus(["ann"])),
      "503 overloaded",
      "the last failure is thrown",
    );
  },
);

t.test("a call whose attempt takes longer than timeoutMs rejects with timeout", async (t) => {
  const url = await startServer(t, () => undefined);
  const jindou = createBackend({ url, retries: 0, timeoutMs: 50 });
  t.equal(await failureOf(jindou.checkLiveness()), "0 timeout");
});

t.test(
  "an error reply that is not the broker's rejects with bad_reply and its status",
  async (t) => {
    let body = "";
    let requests = 0;
    const url = await startServer(t, (_, response) => {
      requests += 1;
      response.writeHead(400).end(body);
    });
    const jindou = createBackend({ url });
    for (body of ["null", "1", '"no"', "[]", "{}", '{"code":5}', "<html>", ""])
      t.equal(await failureOf(jindou.checkLiveness()), "400 bad_reply", body);
    t.equal(requests, 8, "no call is repeated");
    body = '{"code":"bad_request","error":{},"details":1}';
    await t.rejects(jindou.checkLiveness(), { code: "bad_request", details: [] });
  },
);

t.test("createWebhook returns the secret, and is not repeated if its reply is lost", async (t) => {
  const jindou = createBackend({ url: api });
  await jindou.setEventFeed({ feed: "on" });
  const webhook = { url: "https://8.8.8.8/hook", enabled: 0 } as const; // is never called
  const { id, secret } = await jindou.createWebhook(webhook);
  t.match(secret, /^whsec_/);
  const idsOf = async () => (await jindou.listWebhooks()).webhooks.map((listed) => listed.id);
  t.same(await idsOf(), [id]);
  const lost = createBackend(await startProxy(t, ["lost", undefined]));
  t.equal(await failureOf(lost.createWebhook(webhook)), "0 unreachable");
  t.equal((await idsOf()).length, 2, "the call without a reply is not repeated");
  for (const call of [
    (jindou: Backend) => jindou.sendWebhookFailure({ id, event_id: "1" }),
    (jindou: Backend) => jindou.deleteWebhook({ id }),
    (jindou: Backend) => jindou.rotateSigningKey(),
    (jindou: Backend) => jindou.logout(),
  ]) {
    const proxy = await startProxy(t, ["lost", undefined]);
    t.equal(await failureOf(call(createBackend(proxy))), "0 unreachable");
    t.equal(proxy.bodies.length, 1, `${call} is not repeated`);
  }
});
