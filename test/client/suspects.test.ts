// Messages after which the connection ends. A message is suspect if it may have caused the loss of
// a connection. A message that a proxy rejects each time must not prevent the delivery of other
// messages, and no message may fail when the broker is restarted.

import { once } from "node:events";
import type { AddressInfo } from "node:net";
import type { Test } from "tap";
import { type RawData, WebSocket, WebSocketServer } from "ws";
import { connect, group, type JindouError, type Sent } from "../../src/client/index.ts";
import { spawnBroker } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { TEAM } from "./messages.ts";
import { startWorld } from "./restartable.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

/** Starts a proxy that ends a connection with `code` when the client sends a frame with `text`. */
async function startCuttingProxy(t: Test, target: string, text: string, code: number) {
  const seen = { cuts: 0 };
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  server.on("connection", (client, { headers }) => {
    const upstream = new WebSocket(target, headers["sec-websocket-protocol"]);
    const isOpen = once(upstream, "open");
    upstream.on("error", () => client.terminate()).on("close", () => client.terminate());
    upstream.on("message", (data: RawData) => client.send(data));
    client.on("close", () => upstream.terminate());
    client.on("message", async (data: Buffer) => {
      if (data.includes(text)) {
        seen.cuts += 1;
        if (code === 1006) client.terminate();
        else client.close(code);
        return;
      }
      await isOpen;
      upstream.send(data);
    });
  });
  await once(server, "listening");
  t.teardown(() => {
    for (const client of server.clients) client.terminate();
    server.close();
  });
  return { url: `ws://127.0.0.1:${(server.address() as AddressInfo).port}`, seen };
}

t.test(
  "a message that made a proxy close the connection twice is rejected, and other messages are delivered",
  async (t) => {
    const broker = await spawnBroker(t);
    await broker.call("/user/token", { uid: "amy", token: "amy-token", device_flag: 1 });
    const ids = ["a", "b", "c"];
    for (const id of ids)
      await broker.call("/channel", { channel_id: id, channel_type: 2, subscribers: ["amy"] });
    for (const code of [1006, 1009, 1007, 1002]) {
      const target = `ws://127.0.0.1:${broker.clientPort}`;
      const { url, seen } = await startCuttingProxy(t, target, "poison", code);
      const reconnect = { minMs: 10, maxMs: 20 };
      const client = connect({ url, uid: "amy", token: "amy-token", reconnect });
      t.teardown(() => client.close());
      const sends = ids.map((id) => client.send(group(id), `first ${code}`));
      const poison = client.send(group("b"), "poison", { clientMsgNo: `poison ${code}` });
      const after = ids.map((id) => client.send(group(id), `last ${code}`));
      await t.rejects(poison, { code: "not_delivered", retry: true });
      await Promise.all([...sends, ...after]);
      t.equal(seen.cuts, 2, `the message was sent twice, each end with ${code}`);
      for (const id of ids) {
        const { messages } = await client.history(group(id), { limit: 2 });
        const texts = messages.map(({ content }) => content?.content);
        t.same(texts, [`last ${code}`, `first ${code}`]);
      }
      await client.close();
    }
  },
);

t.test("a message that may have ended a connection is resent alone, after a pong", async (t) => {
  const log: string[][] = [];
  const server = new ScriptedServer((operation, socket) => {
    const connection = server.sockets.indexOf(socket);
    log[connection] ??= [];
    if (operation.kind === "connect") return acknowledge(operation, socket);
    if (operation.kind !== "conversations") log[connection]?.push(operation.kind);
    if (operation.kind === "ping") socket.reply(operation, { kind: "pong", serverTimeMs: 1 });
    if (operation.kind !== "send") return;
    const { clientMsgNo } = operation;
    if (connection > 0) {
      const messageSeq = log[connection]?.length ?? 1;
      socket.reply(operation, { kind: "sendack", messageId: messageSeq, messageSeq, clientMsgNo });
    } else if (socket.all("send").length === 2) socket.end(1006);
  });
  const client = connectTo(t, server);
  await Promise.all(["a", "b"].map((id) => client.send(group(id), id)));
  t.same(log, [
    ["send", "send"],
    ["ping", "send", "ping", "send"],
  ]);
});

t.test(
  "a message that may have ended a connection is resent even if the server refuses the ping before it",
  async (t) => {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind === "ping")
        socket.reply(operation, {
          ...({ kind: "error", code: "rate_limited", message: "" } as const),
          retryAfterMs: 10,
        });
      if (operation.kind !== "send") return;
      const { clientMsgNo } = operation;
      if (server.sockets.length === 1) socket.end(1006);
      else socket.reply(operation, { kind: "sendack", messageId: 1, messageSeq: 1, clientMsgNo });
    });
    const client = connectTo(t, server, { timeouts: { sendMs: 10_000 } });
    t.equal((await client.send(TEAM, "x")).messageSeq, 1);
    t.equal(server.sockets.length, 2, "the client keeps the connection that refused its ping");
  },
);

t.test(
  "a message is sent again without a ping if the close code cannot be caused by the message",
  async (t) => {
    const codes = [4000, 4100, 1001, 4000, 1012, 4000];
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind !== "send") return;
      const code = codes.shift();
      const { clientMsgNo } = operation;
      if (code !== undefined) socket.end(code);
      else socket.reply(operation, { kind: "sendack", messageId: 1, messageSeq: 1, clientMsgNo });
    });
    const client = connectTo(t, server);
    t.equal((await client.send(TEAM, "x")).messageSeq, 1);
    t.equal(
      server.sockets.reduce((pings, socket) => pings + socket.all("ping").length, 0),
      0,
    );
  },
);

t.test("no message fails while the broker is killed and started five times", async (t) => {
  const world = await startWorld(t);
  await world.post("/user/token", { uid: "amy", token: "amy-token", device_flag: 1 });
  const channels = ["a", "b", "c"].map(group);
  for (const { id } of channels)
    await world.post("/channel", { channel_id: id, channel_type: 2, subscribers: ["amy"] });
  const reconnect = { minMs: 50, maxMs: 100 };
  const client = connect({ url: world.url, uid: "amy", token: "amy-token", reconnect });
  t.teardown(() => client.close());
  const sent: Sent[] = [];
  const failures: JindouError[] = [];
  let isOver = false;
  const writers = channels.map(async (channel) => {
    for (let n = 0; !isOver; n++)
      await client.send(channel, `${n}`).then(
        (ack) => sent.push(ack),
        (error) => failures.push(error),
      );
  });
  for (let round = 0; round < 5; round++) {
    const { length } = sent;
    while (sent.length < length + 20) await new Promise((resolve) => setTimeout(resolve, 5));
    await world.kill();
    await world.start();
  }
  isOver = true;
  await Promise.all(writers);
  t.same(failures, []);
  t.ok(sent.length >= 100);
});
