// Tests the native test client against a WebSocket server that plays a broker with the real codec.

import { once } from "node:events";
import type { AddressInfo } from "node:net";
import type { Test } from "tap";
import { type WebSocket, WebSocketServer } from "ws";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { STREAM_CONTENT } from "../../src/broker/model.ts";
import { createNativeProtocol } from "../../src/protocol/native/native.ts";
import type { Operation, Push, Reply } from "../../src/protocol/protocol.ts";
import { LIMITS } from "../wire/native-codec.ts";
import { ALICE, CHUNK, PERSONAL, RUNNING, STREAMED, TALK } from "../wire/native-sample-values.ts";
import { connectNative, openNative } from "./native-client.ts";
import { textOf } from "./native-session.ts";
import { t } from "./suite.ts";

const TEAM = { type: 2, id: "team" } as const;
const codec = createNativeProtocol(LIMITS).open();

interface Peer {
  reply(reply: Reply): void;
  push(push: Push): void;
  readonly socket: WebSocket;
}

/** Starts a server that passes every operation to `serve`. Returns its port. */
async function startServer(
  t: Test,
  serve: (operation: Operation, peer: Peer) => void,
): Promise<number> {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });
  t.teardown(() => server.close());
  server.on("connection", (socket) => {
    const peer: Peer = {
      socket,
      reply: (reply) => socket.send(codec.encodeReply(reply)),
      push: (push) => socket.send(codec.encodePush(push)),
    };
    socket.on("message", (data: Buffer, isBinary) => {
      for (const operation of codec.decode(data, !isBinary)) serve(operation, peer);
    });
  });
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}

const connack = (ref: number): Reply => ({
  kind: "connack",
  ref,
  version: 1,
  sessionId: "s",
  nodeId: "n",
  serverTimeMs: 1,
  limits: {
    maxFrameBytes: 1,
    maxPayloadBytes: 1,
    idleTimeoutS: 1,
    maxFramesPerSecond: 1,
  },
  resume: [],
  newestId: 1,
});

const message = (messageSeq: number): Push => ({
  kind: "message",
  channel: { type: 1, id: "alice" },
  message: { ...PERSONAL, messageSeq },
});

t.test("each send resolves with its own reply, whatever the order of the replies", async (t) => {
  const sendacks: Reply[] = [];
  const port = await startServer(t, (operation, peer) => {
    if (operation.kind === "connect") peer.reply(connack(operation.ref));
    if (operation.kind !== "send") return;
    const { ref, clientMsgNo } = operation;
    const place = { messageId: ref, messageSeq: 1 };
    sendacks.unshift({ kind: "sendack", ref, clientMsgNo, ...place });
    if (sendacks.length === 2) for (const reply of sendacks) peer.reply(reply);
  });
  const bob = await connectNative(t, { port, uid: "bob" });
  t.equal(bob.connack.sessionId, "s");
  const sent = await Promise.all([
    bob.send(TEAM, "one", { clientMsgNo: "c-1" }),
    bob.send(TEAM, "two", { clientMsgNo: "c-2" }),
  ]);
  t.same(
    sent.map(({ clientMsgNo }) => clientMsgNo),
    ["c-1", "c-2"],
  );
  await bob.close();
  t.match(await bob.closed, { code: 1000 });
});

t.test("an ERROR frame rejects only its request, and the session stays open", async (t) => {
  const port = await startServer(t, ({ kind, ref }, peer) => {
    if (kind === "connect") peer.reply(connack(ref));
    if (kind === "ping") peer.reply({ kind: "pong", ref, serverTimeMs: 5 });
    const refusal = { code: "rate_limited", message: "no" } as const;
    if (kind === "history") peer.reply({ kind: "error", ref, retryAfterMs: 7, ...refusal });
  });
  const bob = await connectNative(t, { port, uid: "bob" });
  const refused = { code: "rate_limited", retryAfterMs: 7 };
  await t.rejects(bob.history(TEAM), refused);
  t.match(bob.errors, [refused]);
  t.match(await bob.ping(), { serverTimeMs: 5 });
});

t.test("`connectNative` rejects with the code of the ERROR that refuses the login", async (t) => {
  const port = await startServer(t, ({ ref }, { reply, push, socket }) => {
    const refusal = { code: "unauthorized", message: "no" } as const;
    reply({ kind: "error", ref, retryAfterMs: 0, ...refusal });
    push({ kind: "disconnect", reason: "auth_failed" });
    socket.close(CLOSE_REASONS.auth_failed.code);
  });
  await t.rejects(connectNative(t, { port, uid: "bob" }), {
    code: "unauthorized",
  });
});

t.test(
  "`connectNative` rejects with the close code if the connection is closed without an ERROR",
  async (t) => {
    const port = await startServer(t, (_operation, { socket }) => socket.close(4102));
    await t.rejects(connectNative(t, { port, uid: "bob" }), {
      code: "closed_4102",
    });
  },
);

t.test("openNative rejects with the HTTP status of a refused upgrade", async (t) => {
  const server = new WebSocketServer({
    host: "127.0.0.1",
    port: 0,
    verifyClient: (_info, done) => done(false, 503),
  });
  t.teardown(() => server.close());
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  await t.rejects(openNative(t, { port, uid: "bob" }), { code: "http_503" });
});

t.test("pushes are kept in their order, and each `nextPush` returns one of them", async (t) => {
  const port = await startServer(t, ({ kind, ref }, peer) => {
    if (kind === "connect") peer.reply(connack(ref));
    if (kind === "ping") for (const seq of [1, 2, 3]) peer.push(message(seq));
  });
  const bob = await connectNative(t, { port, uid: "bob" });
  const pinged = bob.ping();
  t.match(await bob.nextMessage(), { messageSeq: 1 });
  const third = await bob.nextPush(
    (push) => push.kind === "message" && push.message.messageSeq === 3,
  );
  t.match(third, { kind: "message", channel: { id: "alice" } });
  await bob.waitFor(({ pushes }) => pushes.length === 3);
  t.same(
    bob.messages.map(({ messageSeq }) => messageSeq),
    [1, 2, 3],
  );
  t.equal(textOf(bob.messages[0] ?? PERSONAL), "hi");
  bob.kill();
  t.match(await bob.closed, { code: 1006 });
  await t.rejects(pinged, { code: "closed_1006" });
  await t.rejects(bob.ping(), { code: "closed_1006" });
  await t.rejects(bob.nextPush(), { code: "closed_1006" });
});

t.test("`nextPush` rejects after its timeout if no push arrives", async (t) => {
  const port = await startServer(t, ({ ref }, peer) => peer.reply(connack(ref)));
  const bob = await connectNative(t, { port, uid: "bob", timeoutMs: 20 });
  await t.rejects(bob.nextPush(), /timed out waiting for a push \(bob\)/);
});

t.test("a paused client receives no push until it resumes", async (t) => {
  const peers: Peer[] = [];
  const port = await startServer(t, ({ kind, ref }, peer) => {
    if (kind === "connect") peer.reply(connack(ref));
    if (kind === "recvack") peers.push(peer);
  });
  const bob = await connectNative(t, { port, uid: "bob" });
  bob.pause();
  bob.recvack(TEAM, PERSONAL);
  const carol = await connectNative(t, { port, uid: "carol" });
  carol.recvack(TEAM, PERSONAL);
  const carolIsServed = carol.nextPush();
  while (peers.length < 2) await new Promise((resolve) => setImmediate(resolve));
  for (const peer of peers) peer.push(message(1));
  await carolIsServed;
  t.equal(bob.pushes.length, 0);
  bob.resume();
  await bob.nextPush();
  bob.pause();
  await bob.close();
  t.match(await bob.closed, { code: 1000 });
});

t.test("a frame that cannot be decoded ends the connection with an error", async (t) => {
  const port = await startServer(t, (_operation, { socket }) => socket.send("hello"));
  await t.rejects(connectNative(t, { port, uid: "bob" }), {
    code: "bad_server_frame",
  });
});

/** Returns a broker's reply to an operation on streams, commands, conversations or presence. */
function replyTo(operation: Operation): Reply | undefined {
  const { ref } = operation;
  const presence = [{ uid: "alice", online: true, flag: 0 }] as const;
  switch (operation.kind) {
    case "connect":
      return connack(ref);
    case "stream":
      return { kind: "stream", ref, channel: ALICE, snapshot: RUNNING };
    case "cancel":
      return { kind: "cancel", ref, state: "cancelled" };
    case "conversations":
      return { kind: "conversations", ref, cursor: undefined, conversations: [TALK] };
    case "conversation":
      return { kind: "conversation", ref, conversation: TALK };
    case "commandack":
      return { kind: "commandack", ref, count: operation.inboxSeqs.length };
    case "watch":
      return { kind: "watch", ref, presence };
    default:
      return undefined;
  }
}

t.test("requests of six kinds each resolve with their own reply", async (t) => {
  const operations: Operation[] = [];
  const port = await startServer(t, (operation, peer) => {
    operations.push(operation);
    const reply = replyTo(operation);
    if (reply !== undefined) peer.reply(reply);
  });
  const bob = await connectNative(t, { port, uid: "bob" });
  const { snapshot } = await bob.stream(ALICE, "s-1");
  t.same(snapshot, RUNNING);
  t.match(bob.view(ALICE, "s-1"), { text: RUNNING.text, nextIndex: 4 });
  t.match(await bob.cancel(ALICE, "s-1"), { state: "cancelled" });
  t.match(await bob.conversations({ cursor: "c" }), { conversations: [TALK] });
  const change = { kind: "read", seq: 7 } as const;
  const changed = await bob.changeConversation(ALICE, change);
  t.same(changed.conversation, TALK);
  t.match(await bob.acknowledge([4, 5]), { count: 2 });
  t.match(await bob.watch(["alice"]), { presence: [{ uid: "alice" }] });
  t.match(operations.slice(1), [
    { kind: "stream", channel: ALICE, clientMsgNo: "s-1" },
    { kind: "cancel", channel: ALICE, clientMsgNo: "s-1" },
    { kind: "conversations", limit: 100, cursor: "c" },
    { kind: "conversation", channel: ALICE, change },
    { kind: "commandack", inboxSeqs: [4, 5] },
    { kind: "watch", uids: ["alice"] },
  ]);
});

t.test("pushes can be read by kind, and the text of a stream grows with its events", async (t) => {
  const place = { messageSeq: 8, index: 4, nextIndex: 6, textOffset: 4 };
  const stream = { ...place, state: "active" } as const;
  const event = { ...CHUNK, type: STREAM_CONTENT, data: "!", stream };
  const presence = [{ uid: "alice", online: false, flag: 0 }] as const;
  const pushes: readonly Push[] = [
    { kind: "message", channel: ALICE, message: STREAMED },
    { kind: "event", channel: ALICE, event: event },
    { kind: "command", channel: ALICE, inboxSeq: 3, message: PERSONAL },
    { kind: "conversation", change: "read", conversation: TALK },
    { kind: "presence", presence },
  ];
  const port = await startServer(t, ({ kind, ref }, peer) => {
    if (kind === "connect") peer.reply(connack(ref));
    if (kind === "ping") for (const push of pushes) peer.push(push);
  });
  const bob = await connectNative(t, { port, uid: "bob" });
  bob.ping().catch(() => undefined); // this server sends pushes and no PONG
  await bob.waitFor((client) => client.pushes.length === pushes.length);
  t.same(bob.pushes, pushes);
  t.same(bob.events, [event]);
  t.match(bob.commands, [{ inboxSeq: 3, message: { messageSeq: 7 } }]);
  t.match(bob.pushesOf("presence"), [{ presence }]);
  const view = bob.view(ALICE, "s-1");
  t.match(view, { text: `${RUNNING.text}!`, merged: 1, problems: [] });
  const { streams } = bob;
  const nextClient = await connectNative(t, { port, uid: "bob", streams });
  t.equal(nextClient.view(ALICE, "s-1"), view, "a stream's view is kept for the next connection");
});
