// Calls of the app: repeated after a lost connection, limited in time and number, and without
// memory leaks.

import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import type { Client } from "../../src/client/api.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { t } from "../support/suite.ts";
import { TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

setFlagsFromString("--expose-gc");
const collectGarbage: () => void = runInNewContext("gc");

t.test("a call without a reply is repeated on the next connection", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "presence" && server.sockets.length === 3)
      socket.reply(operation, { kind: "presence", presence: [] });
  });
  const client = connectTo(t, server);
  const presence = client.presence(["a"]);
  for (const n of [0, 1]) {
    await server.received("presence", 0, n);
    server.sockets[n]?.end(1006);
  }
  t.same(await presence, []);
  t.equal(server.sockets[2]?.all("presence").length, 1);
});

t.test("a repeated deleteConversation or setUnread does not affect newer messages", async (t) => {
  const calls = {
    delete: (client: Client) => client.deleteConversation(TEAM),
    read: (client: Client) => client.setUnread(TEAM, 0),
  } as const;
  const conversation = {
    ...{ channel: TEAM, headSeq: 8, readSeq: 0, unread: 8, deletedSeq: 0, changedAtMs: 1 },
    last: undefined,
  };
  for (const kind of ["delete", "read"] as const) {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind !== "conversation") return;
      if (operation.change !== undefined && server.sockets.length === 1) return socket.end(1006);
      const headSeq = server.sockets.length === 1 ? 8 : 9; // a message has arrived meanwhile
      socket.reply(operation, { kind: "conversation", conversation: { ...conversation, headSeq } });
    });
    const client = connectTo(t, server);
    await calls[kind](client);
    const changes = server.sockets.flatMap((socket) =>
      socket.all("conversation").flatMap(({ change }) => change ?? []),
    );
    const change = { kind, seq: 8 } as const;
    t.same(changes, [change, change]);
  }
});

t.test("a call refused with `rate_limited` waits and is repeated", async (t) => {
  let refusals = 3;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "presence") return;
    if (refusals-- > 0)
      socket.reply(operation, {
        ...({ kind: "error", code: "rate_limited" } as const),
        ...{ message: "slow down", retryAfterMs: 5 },
      });
    else socket.reply(operation, { kind: "presence", presence: [] });
  });
  const client = connectTo(t, server);
  const answers = [client.presence(["a"]), client.presence(["b"])];
  t.same(await Promise.all(answers), [[], []]);
  t.equal(
    server.sockets[0]?.all("presence").length,
    5,
    "the two calls are sent five times in total",
  );
});

t.test("a rate-limited call waits no longer than its timeout", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "presence")
      socket.reply(operation, {
        ...({ kind: "error", code: "rate_limited" } as const),
        ...{ message: "slow down", retryAfterMs: 60_000 },
      });
  });
  const client = connectTo(t, server, { timeouts: { requestMs: 20 } });
  await t.rejects(client.presence(["a"]), { code: "timeout" });
});

t.test(
  "a call times out after `requestMs`, and calls over `maxQueued` are rejected with `queue_full`",
  async (t) => {
    const server = new ScriptedServer(() => undefined);
    const client = connectTo(t, server, { maxQueued: 2, timeouts: { requestMs: 20 } });
    const waiting = [client.presence(["a"]), client.presence(["b"])];
    await t.rejects(client.presence(["c"]), { code: "queue_full" });
    for (const call of waiting) await t.rejects(call, { code: "timeout" });
    await t.rejects(client.presence(["d"]), { code: "timeout" });
  },
);

t.test("timed-out calls are garbage collected", async (t) => {
  const server = new ScriptedServer(() => undefined);
  const client = connectTo(t, server, { timeouts: { requestMs: 1 } });
  const errors: WeakRef<Error>[] = [];
  const calls = Array.from({ length: 1000 }, async () => {
    await client.presence(["a"]).catch((error) => {
      errors.push(new WeakRef(error));
    });
  });
  await Promise.all(calls);
  t.equal(errors.length, 1000);
  let retained = errors.length;
  for (let n = 0; n < 20 && retained > 10; n++) {
    await new Promise(setImmediate);
    collectGarbage();
    retained = errors.filter((error) => error.deref() !== undefined).length;
  }
  t.ok(retained <= 10, `${retained} of 1000 errors are not collected`);
});

t.test("calls that wait after `rate_limited` are sent at once on a new connection", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "presence") return;
    if (server.sockets.length > 1)
      return socket.reply(operation, { kind: "presence", presence: [] });
    const refusal = { kind: "error", code: "rate_limited", message: "" } as const;
    socket.reply(operation, { ...refusal, retryAfterMs: 60_000 });
  });
  const client = connectTo(t, server, { timeouts: { requestMs: 10_000 } });
  const refused = client.presence(["a"]);
  await server.received("presence");
  await new Promise(setImmediate); // the refusal arrives
  const waiting = client.presence(["b"]);
  server.sockets[0]?.end(1006);
  t.same(await Promise.all([refused, waiting]), [[], []], "the calls that waited are sent");
  t.same(await client.presence(["c"]), [], "a later call is sent");
  const uids = server.sockets.flatMap((socket) => socket.all("presence").map(({ uids }) => uids));
  t.same(uids, [["a"], ["a"], ["b"], ["c"]], "each call is sent once on the new connection");
});

t.test("a reply of the wrong kind rejects its call, and the connection stays open", async (t) => {
  const wrong: Partial<Record<Operation["kind"], Parameters<ScriptedSocket["reply"]>[1]>> = {
    presence: { kind: "watch", presence: [] },
    history: { kind: "commandack", count: 1 },
    send: { kind: "cancel", state: "closed" },
  };
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    const reply = wrong[operation.kind];
    if (reply !== undefined) socket.reply(operation, reply);
  });
  const client = connectTo(t, server, { timeouts: { requestMs: 10_000, sendMs: 50 } });
  await client.ready();
  await t.rejects(client.presence(["a"]), { code: "internal" });
  await t.rejects(client.history(TEAM, { limit: 1 }), { code: "internal" });
  await t.rejects(client.send(TEAM, "x"), { code: "timeout" });
  t.equal(client.status, "online");
  t.equal(server.sockets.length, 1, "the client keeps its connection");
});
