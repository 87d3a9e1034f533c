// `close()`: nothing is delivered after the call, its promise resolves when the socket is closed,
// and a new client of the same user waits until then.

import type { Cursor, JindouError } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { live, message, messages, range, SampleStream, TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

t.test("after `close` nothing is delivered and no cursor moves", async (t) => {
  const pushes = {
    range: [range(1, 200)],
    "single messages": messages(2, 200).map(live),
    "unstored messages": [1, 2, 3].map((id) => live(message(0, { messageId: 5000 + id }))),
  };
  for (const [name, frames] of Object.entries(pushes)) {
    const server = new ScriptedServer();
    const cursors = [{ channel: TEAM, lastSeq: 1, lastId: 1001 }];
    const client = connectTo(t, server, { cursors });
    const calls: string[] = [];
    let atClose: readonly Cursor[] = [];
    client.on("message", ({ messageSeq }) => {
      calls.push(`first ${messageSeq}`);
      void client.close();
      atClose = client.cursors();
    });
    client.on("message", ({ messageSeq }) => calls.push(`second ${messageSeq}`));
    await client.ready();
    const socket = await server.socket();
    socket.together(() => {
      for (const frame of frames) socket.push(frame);
    });
    await server.until("the close", () => client.status === "closed");
    await new Promise(setImmediate);
    t.equal(calls.length, 1, `one handler is called once: ${name}`);
    t.same(client.cursors(), atClose, `the cursor stays: ${name}`);
  }
});

t.test(
  "if a handler calls `close`, the later handlers of the same event are not called",
  async (t) => {
    const sample = new SampleStream(["a", "b"]);
    const pushes = {
      command: { kind: "command", channel: TEAM, inboxSeq: 1, message: message(1) },
      event: { kind: "event", channel: TEAM, event: { ...sample.at(1), stream: undefined } },
      stream: { kind: "stream", channel: TEAM, snapshot: sample.snapshot(2) },
      presence: { kind: "presence", presence: [{ uid: "you", online: true, flag: 1 }] },
    } as const;
    for (const [event, push] of Object.entries(pushes)) {
      const server = new ScriptedServer((operation, socket) => {
        if (operation.kind === "connect") acknowledge(operation, socket);
        if (operation.kind === "watch") socket.reply(operation, { kind: "watch", presence: [] });
      });
      const client = connectTo(t, server);
      const calls: string[] = [];
      for (const handler of ["first", "second"]) {
        const called = () => {
          calls.push(handler);
          void client.close();
        };
        if (event === "presence") client.watchPresence(["you"], called);
        else client.on(event as keyof typeof pushes, called);
      }
      await client.ready();
      if (event === "presence") await server.received("watch");
      (await server.socket()).push(push);
      await server.until("the close", () => client.status === "closed");
      await new Promise(setImmediate);
      t.same(calls, ["first"], event);
      t.equal((await server.socket()).all("commandack").length, 0);
    }
  },
);

t.test("`close` waits for the CONNACK, and the user's next client waits for `close`", async (t) => {
  const log: string[] = [];
  const server = new ScriptedServer((operation, socket) => {
    const n = server.sockets.indexOf(socket);
    if (operation.kind === "disconnect" || operation.kind === "connect")
      log.push(`${operation.kind} ${n}`);
    if (operation.kind === "connect" && n > 0) acknowledge(operation, socket);
  });
  const first = connectTo(t, server);
  const connect = await server.received("connect");
  let isClosed = false;
  const closed = first.close().then(() => {
    isClosed = true;
  });
  const second = connectTo(t, server);
  const other = connectTo(t, server, { uid: "other" });
  await other.ready();
  t.notOk(isClosed, "the CONNECT is not answered yet");
  t.equal(server.sockets.length, 2, "only the client of another user has connected");
  acknowledge(connect, await server.socket());
  await closed;
  await second.ready();
  t.same(log, ["connect 0", "connect 1", "disconnect 0", "connect 2"]);
});

t.test("`close` resolves after three seconds if CONNECT is never answered", async (t) => {
  const server = new ScriptedServer(() => undefined);
  const client = connectTo(t, server);
  await server.received("connect");
  await Promise.all([client.close(), client.close()]);
  t.ok((await server.socket()).isDropped);
});

t.test(
  "`close` causes no unhandled rejection, even if a sent message is not awaited",
  async (t) => {
    const unhandled: unknown[] = [];
    const note = (error: unknown) => unhandled.push(error);
    process.on("unhandledRejection", note);
    t.teardown(() => process.off("unhandledRejection", note));
    const server = new ScriptedServer();
    const client = connectTo(t, server);
    void client.send(TEAM, "fire and forget");
    await client.ready();
    const awaited = client.send(TEAM, "awaited").catch((error: JindouError) => error.code);
    await client.close();
    t.equal(await awaited, "closed");
    await new Promise((resolve) => setTimeout(resolve, 20));
    t.same(unhandled, []);
  },
);
