// Calls for operators: why a client was closed, which channels are busy, and which configuration is
// in effect [feature: Console; decisions: Roles and permissions].

import { once } from "node:events";
import { WebSocket } from "ws";
import { spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { t } from "../support/suite.ts";
import { endingOf, eventually, range, startWorld, type World } from "./world.ts";

const world = await startWorld(t);

interface Closed {
  readonly uid: string;
  readonly reason: string;
  readonly [field: string]: unknown;
}

/**
 * Waits until the list contains closed sessions or refused connects of the user, and returns them,
 * newest first.
 */
async function closedOf(uid: string, query = "", node: World = world): Promise<readonly Closed[]> {
  let closed: readonly Closed[] = [];
  await eventually(async () => {
    const { body } = await node.call(`/connz?state=closed&limit=100&uid=${uid}${query}`);
    closed = body.connections;
    return closed.length > 0;
  });
  return closed;
}

t.test(
  "GET /connz?state=closed reports why a user's session was ended, and on which node",
  async (t) => {
    const [kicked, left, lost] = ["kicked", "left", "lost"].map((name) => world.name(name));
    const { uid, ...device } = { uid: kicked ?? "", flag: 1, deviceId: "browser-7" } as const;
    const client = await world.join(t, uid, device);
    const { body } = await world.call(`/user/devices?uid=${uid}`);
    const [{ session_id: id, node_id }] = body.sessions;
    await world.ok("/conn/kick", { uid, conn_id: id });
    t.equal(await endingOf(client), "kicked 4200");
    t.match(await closedOf(uid), [
      {
        ...{ id, uid, node_id, reason: "kicked", code: 4200, refused: 0, ip: "127.0.0.1" },
        ...{ device: "web", device_flag: 1, device_id: "browser-7", listener: "client" },
        message: /Another main device logged in, or a backend ended the session/,
        ended: /^20\d\d-/,
      },
    ]);
    const leaving = await world.join(t, left ?? "");
    await leaving.close();
    t.match(await closedOf(left ?? ""), [{ reason: "left", refused: 0 }]);
    const dropped = await world.join(t, lost ?? "");
    dropped.kill();
    t.match(await closedOf(lost ?? ""), [{ reason: "lost", code: 1006 }]);
  },
);

t.test(
  "GET /connz?state=closed lists refused connects with the error, and never a token",
  async (t) => {
    const uid = world.name("stranger");
    await world.register(uid);
    const attempt = connectNative(t, { port: world.clientPort, uid, token: "wrong-secret-1" });
    await t.rejects(attempt);
    const closed = await closedOf(uid);
    t.match(closed, [
      { uid, refused: 1, reason: "auth_failed", code: 4201, error: "unauthorized" },
    ]);
    t.notMatch(JSON.stringify(closed), /wrong-secret|token-/);
    t.same(
      (await world.call(`/connz?uid=${uid}`)).body.connections,
      [],
      "the list of open sessions does not contain the session",
    );
  },
);

t.test(
  "the list of GET /connz?state=closed can be filtered by user, address, client and reason, sorted, and read in pages",
  async (t) => {
    const node = await startWorld(t, { JINDOU_CLIENT_KEEP_CLOSED: "3" });
    for (const uid of ["ann", "ben", "cid", "dan"]) {
      const client = await node.join(t, uid, { flag: uid === "dan" ? 2 : 0 });
      await node.ok("/user/device_quit", { uid, device_flag: -1 });
      await endingOf(client);
    }
    const uids = async (query: string) => {
      const { body } = await node.call(`/connz?state=closed&${query}`);
      return [body.total, ...body.connections.map(({ uid }: Closed) => uid)];
    };
    await eventually(async () => (await uids(""))[1] === "dan");
    t.same(await uids(""), [3, "dan", "cid", "ben"], "the oldest closed session was dropped");
    t.same(await uids("sort=end&limit=2"), [3, "ben", "cid"]);
    t.same(await uids("offset=2"), [3, "ben"]);
    t.same(await uids("client=desktop"), [1, "dan"]);
    t.same(await uids("ip=127.0.0&uid=ci"), [1, "cid"]);
    t.same(await uids("ip=192.0.2"), [0]);
    t.same(await uids("reason=logged"), [3, "dan", "cid", "ben"]);
    t.same(await uids("reason=kicked"), [0]);
    t.equal((await node.call("/connz?state=closed&sort=id")).status, 400);
    t.equal((await node.call("/connz?sort=endDesc")).status, 400);
    t.equal((await node.call("/connz?state=any")).status, 400);
  },
);

t.test(
  "refused connects of strangers do not displace closed sessions from the list, and the list is empty if client.keepClosed is 0",
  async (t) => {
    const settings = { JINDOU_CLIENT_KEEP_CLOSED: "2", JINDOU_CLIENT_AUTH_TIMEOUT_MS: "1000" };
    const node = await startWorld(t, settings);
    const client = await node.join(t, "ann");
    await node.ok("/user/device_quit", { uid: "ann", device_flag: -1 });
    await endingOf(client);
    const strangers = range(1, 5).map(() => new WebSocket(`ws://127.0.0.1:${node.clientPort}/`));
    await Promise.all(strangers.map((socket) => once(socket, "close")));
    const { body } = await node.call("/connz?state=closed");
    t.same(body.connections.map(({ uid, reason }: Closed) => `${uid} ${reason}`).sort(), [
      " auth_timeout",
      " auth_timeout",
      "ann logged_out",
    ]);
    const forgetful = await startWorld(t, { JINDOU_CLIENT_KEEP_CLOSED: "0" });
    const other = await forgetful.join(t, "ann");
    await forgetful.ok("/user/device_quit", { uid: "ann", device_flag: -1 });
    await endingOf(other);
    t.same((await forgetful.call("/connz?state=closed")).body.connections, []);
  },
);

t.test(
  "GET /connz?state=closed names the origin of a web page whose handshake was refused",
  async (t) => {
    const node = await startWorld(t, {
      JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example",
      JINDOU_CLIENT_KEEP_CLOSED: "10",
    });
    const origin = "https://other.example";
    const socket = new WebSocket(`ws://127.0.0.1:${node.clientPort}/`, { origin });
    await once(socket, "error");
    const { body } = await node.call("/connz?state=closed&reason=origin");
    t.match(body.connections, [
      { origin, reason: "origin_refused", code: 403, refused: 1, ip: "127.0.0.1" },
    ]);
  },
);

t.test(
  "GET /channels/busiest counts the messages and events that were sent through the node, but neither retries nor refused sends",
  async (t) => {
    const node = await startWorld(t, { JINDOU_API_LISTEN: "127.0.0.1:0" });
    const busy = await node.newGroup(["ann"]);
    const quiet = await node.newGroup(["ann"]);
    for (const text of ["a", "b", "c"]) await node.send("ann", busy, text);
    const number = { client_msg_no: "n" };
    for (let at = 0; at < 3; at += 1) await node.send("ann", quiet, "x", number);
    await node.send("eve", quiet, "refused");
    await node.send("ann", { id: "ben", type: 1 }, "hello");
    await node.send("ben", { id: "ann", type: 1 }, "hello");
    const event = { client_msg_no: "s", channel_id: busy.id, channel_type: 2, from_uid: "ann" };
    await node.ok("/event", { ...event, event: { type: "typing" } });
    const { body } = await node.call("/channels/busiest");
    t.match(body, { window_s: 900, node_id: /./ });
    t.same(body.channels, [
      { channel_id: busy.id, channel_type: 2, messages: 3, events: 1 },
      { channel_id: "ben", channel_type: 1, uid: "ann", messages: 2, events: 0 },
      { channel_id: quiet.id, channel_type: 2, messages: 1, events: 0 },
    ]);
    t.equal((await node.call("/channels/busiest?limit=1")).body.channels.length, 1);
    for (const limit of ["0", "1001", "x"])
      t.equal((await node.call(`/channels/busiest?limit=${limit}`)).status, 400);
  },
);

t.test(
  "GET /admin/config returns settings and whether they are set, but not the values of secrets",
  async (t) => {
    const secret = "a-very-long-secret-token";
    const node = await startWorld(t, {
      JINDOU_API_TOKEN: secret,
      JINDOU_ADMIN_PASSWORD: `${secret}-2`,
      JINDOU_CLUSTER_CLIENT_ADDRESS: "chat.example.com:5200",
    });
    t.equal((await node.call("/admin/config")).status, 401);
    const { body } = await node.call("/admin/config", undefined, { token: secret });
    const setting = (name: string) =>
      body.settings.find(({ key }: { readonly key: string }) => key === name);
    t.match(setting("cluster.clientAddress"), { value: "chat.example.com:5200", is_set: 1 });
    t.match(setting("client.idleTimeoutS"), { value: 56, is_set: 0, unit: "seconds" });
    t.match(setting("api.token"), { is_secret: 1, is_set: 1 });
    t.notOk("value" in setting("api.token"));
    t.notMatch(JSON.stringify(body), new RegExp(secret));
    t.match(body, { version: "test", node_id: /./ });
  },
);

t.test(
  "GET /admin/errors returns a warning that the node has logged, with its level, count and time",
  async (t) => {
    const node = await spawnBroker(t, {
      JINDOU_AUTH_CLIENTS: "none",
      JINDOU_CLIENT_LISTEN: "0.0.0.0:0",
      JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example.com",
    });
    const { status, body } = await node.call("/admin/errors");
    t.equal(status, 200);
    const errors: { readonly message: string }[] = body.errors;
    t.match(
      errors.find(({ message }) => message.startsWith("auth.clients is none")),
      { level: "warn", count: 1, fields: { listen: "0.0.0.0:0" }, time: /^\d{4}-/ },
    );
    t.equal(body.node_id, (await node.call("/varz")).body.server_id);
  },
);

t.test(
  "in the wukongim dialect, a call with the header Jindou-Dialect: jindou gets the body and status of the specification",
  async (t) => {
    const node = await startWorld(t, {
      JINDOU_API_DIALECT: "wukongim",
      JINDOU_ADMIN_PASSWORD: "right",
      JINDOU_AUTH_API: "required",
    });
    const plain = { "jindou-dialect": "jindou" };
    const account = { username: "admin", password: "right" };
    const { body: login } = await node.call("/manager/login", account, plain);
    t.match(login, { token: /./, expire: 86_400, user: { role: "admin", permissions: ["*"] } });
    const { body: own } = await node.call("/manager/login", account);
    t.match(own, { username: "admin", exp: Number, permissions: "*" });
    const authorization = `Bearer ${login.token}`;
    const missing = "/channel/state?channel_id=nowhere&channel_type=2";
    const { status, body } = await node.call(missing, undefined, { ...plain, authorization });
    t.match({ status, body }, { status: 404, body: { code: "channel_not_found", status: 404 } });
    const dialect = await node.call(missing, undefined, { authorization });
    t.match(dialect, { status: 400, body: { msg: String, status: 400 } });
    const unknown = await node.call("/nowhere", undefined, { ...plain, authorization });
    t.match(unknown, { status: 404, body: { code: "not_found" } });
    const { body: document } = await node.call("/openapi.json", undefined, {
      ...plain,
      authorization,
    });
    t.ok(document.paths["/manager/login"].post.responses[200].content);
    t.match(JSON.stringify(document.components.schemas.Error), /code/);
    const other = await node.call(missing, undefined, { "jindou-dialect": "x", authorization });
    t.equal(other.status, 400, "a different value has no effect");
  },
);

t.test(
  "GET /channel/readers reports each member's read position and whether the member has read the given message",
  async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const channel = await world.newGroup([ann, ben]);
    for (const text of ["a", "b"]) await world.send(ann, channel, text);
    const conversation = { uid: ben, channel_id: channel.id, channel_type: 2 };
    await world.ok("/conversations/clearUnread", conversation);
    await world.send(ann, channel, "c");
    const readers = async (seq: number, query = `channel_id=${channel.id}&channel_type=2`) =>
      (await world.call(`/channel/readers?${query}&message_seq=${seq}`)).body;
    const [annSeq] = (await readers(1)).readers.map((r: { read_seq: number }) => r.read_seq);
    t.same(await readers(2), {
      readers: [
        { uid: ann, read_seq: annSeq, has_read: annSeq >= 2 ? 1 : 0 },
        { uid: ben, read_seq: 2, has_read: 1 },
      ],
      cursor: "",
    });
    t.match((await readers(3)).readers[1], { uid: ben, has_read: 0 });
    await world.send(ann, { id: ben, type: 1 }, "hello");
    const personal = await readers(1, `channel_id=${ben}&channel_type=1&uid=${ann}`);
    t.same(personal.readers.map(({ uid }: Closed) => uid).sort(), [ann, ben].sort());
    const missing = await world.call(`/channel/readers?channel_id=${ben}&channel_type=1`);
    t.equal(missing.status, 400, "message_seq is required");
  },
);

t.test("POST /stream/cancel ends an active stream as cancelled and keeps its text", async (t) => {
  const channel = await world.newGroup([world.name("ann")]);
  const stream = { client_msg_no: "s", channel_id: channel.id, channel_type: 2 };
  const post = (type: string, data = "") =>
    world.ok("/event", { ...stream, event: { type, data } });
  await post("___TextMessageStart");
  await post("___TextMessageContent", "half");
  const cancelled = { status: "ok", stream: { state: "cancelled" } };
  t.same(await world.ok("/stream/cancel", stream), cancelled);
  t.same(await world.ok("/stream/cancel", stream), cancelled, "a repetition changes nothing");
  const { body } = await world.call(`/channel/messages?channel_id=${channel.id}&channel_type=2`);
  t.match(body.messages[0].stream, { state: "cancelled", text: "half" });
  t.equal(
    await world.refusal("/stream/cancel", { ...stream, client_msg_no: "x" }),
    "404 stream_unknown",
  );
  const personal = { ...stream, channel_type: 1 };
  t.equal(await world.refusal("/stream/cancel", personal), "400 bad_request");
});
