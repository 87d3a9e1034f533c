// Errors of a client: each is a JindouError whose message describes the problem. An error of a
// handler becomes an uncaught exception if there is no `error` handler. Imports the table of the
// SDK's messages, because some of its codes occur on other platforms only.

import type { Test } from "tap";
import { CLIENT_MESSAGES, type ClientErrorCode } from "../../src/client/errors.ts";
import { type Client, connect, group, JindouError } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { message, TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

/** Accepts everything that an app in JavaScript may pass. */
type Untyped = Record<keyof Client, (...args: readonly unknown[]) => Promise<unknown>>;

t.test("an invalid argument is rejected with a JindouError that names the problem", async (t) => {
  const server = new ScriptedServer();
  const client = connectTo(t, server);
  await client.ready();
  const untyped = client as unknown as Untyped;
  const cycle: Record<string, unknown> = { type: 1 };
  cycle.self = cycle;
  const throwing = {
    type: 1,
    toJSON() {
      throw new RangeError("no");
    },
  };
  const cases: readonly [call: () => Promise<unknown>, code: string, message: RegExp][] = [
    [() => client.send(TEAM, cycle as never), "bad_payload", /content .* JSON: .*circular/i],
    [() => client.send(TEAM, { type: 1, n: 1n }), "bad_payload", /BigInt/],
    [() => client.send(TEAM, throwing), "bad_payload", /RangeError: no/],
    [() => untyped.send(TEAM), "bad_payload", /undefined/],
    [() => untyped.send(TEAM, () => undefined), "bad_payload", /function/],
    [() => untyped.send("lobby", "hi"), "bad_option", /group\("lobby"\) or person\("lobby"\)/],
    [() => untyped.send(undefined, "hi"), "bad_option", /group\("lobby"\).*undefined/],
    [() => untyped.send({ id: "x" }, "hi"), "bad_option", /must be group/],
    [() => untyped.send(TEAM, "hi", null), "bad_option", /must be an object/],
    [() => untyped.history("lobby"), "bad_option", /group\("lobby"\)/],
    [() => untyped.markRead("lobby", 1), "bad_option", /group\("lobby"\)/],
    [() => untyped.setUnread(null, 1), "bad_option", /group\("lobby"\)/],
    [() => untyped.deleteConversation(), "bad_option", /group\("lobby"\)/],
    [() => untyped.cancel({}), "bad_option", /group\("lobby"\)/],
    [() => untyped.presence("bob"), "bad_option", /uids must be a list/],
    [() => client.send(TEAM, new Uint8Array(200_000)), "too_large", /200\d+ bytes.* 131072/],
  ];
  for (const [call, code, message] of cases) {
    const error = await call().catch((error: unknown) => error);
    t.type(error, JindouError);
    t.match(error, { code, message });
  }
  t.throws(() => (client.stream as (target: unknown) => unknown)({ channel: "lobby" }), {
    code: "bad_option",
    message: /group\("lobby"\)/,
  });
});

const SENTENCE = /^[A-Z]\w* \w/;

t.test("the message of an error is never just its code", async (t) => {
  const server = new ScriptedServer();
  const client = connectTo(t, server);
  await client.ready();
  const errors: JindouError[] = [];
  client.on("error", (error) => errors.push(error));
  (await server.socket()).bytes(Uint8Array.of(0xc1));
  await server.until("an error", () => errors.length > 0);
  t.match(errors[0], {
    code: "malformed_frame",
    message: /^Cannot decode a frame from the server/,
  });
  for (const code of Object.keys(CLIENT_MESSAGES) as ClientErrorCode[])
    t.match(new JindouError(code).message, SENTENCE, code);
  const offline = connectTo(t, new ScriptedServer(() => {}), { maxQueued: 1 });
  offline.send(TEAM, "x", { clientMsgNo: "1" }).catch(() => {});
  for (const [code, options] of [
    ["client_msg_no_reused", { clientMsgNo: "1" }],
    ["queue_full", {}],
  ] as const)
    await t.rejects(offline.send(TEAM, "y", options), { code, message: SENTENCE }, code);
});

/** Resolves with the next uncaught exception of this process. */
function uncaught(t: Test): Promise<unknown> {
  return new Promise((resolve) => {
    process.once("uncaughtException", resolve);
    t.teardown(() => process.off("uncaughtException", resolve));
  });
}

t.test(
  "a command handler that fails causes an uncaught exception if there is no error handler",
  async (t) => {
    const server = new ScriptedServer();
    const client = connectTo(t, server);
    const bug = new TypeError("a bug");
    const thrown = uncaught(t);
    client.on("command", () => Promise.reject(bug));
    await client.ready();
    const command = { kind: "command", channel: TEAM, inboxSeq: 1, message: message(1) } as const;
    (await server.socket()).push(command);
    t.equal(await thrown, bug);
    t.equal((await server.socket()).all("commandack").length, 0);
  },
);

t.test("a client whose WebSocket throws an error in `send` reconnects", async (t) => {
  for (const failing of ["connect", "ping", "history"]) {
    let failures = 0;
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === failing && failures++ === 0) throw new Error("InvalidStateError");
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind === "ping") socket.reply(operation, { kind: "pong", serverTimeMs: 1 });
      if (operation.kind === "history")
        socket.reply(operation, {
          ...{ kind: "history", channel: TEAM, headSeq: 0, more: false, messages: [] },
        });
    });
    const client = connectTo(t, server, { timeouts: { pingMs: 20 } });
    const errors: JindouError[] = [];
    client.on("error", (error) => errors.push(error));
    await client.history(TEAM);
    await server.received(failing === "ping" ? "ping" : "connect", 0, 1);
    t.match(errors[0], { code: "connection_lost", cause: { message: "InvalidStateError" } });
  }
});

t.test("if the connection is refused, the first error names the address", async (t) => {
  const client = connect({ url: "ws://127.0.0.1:1", uid: "amy", reconnect: { minMs: 600_000 } });
  t.teardown(() => client.close());
  const error = await new Promise<JindouError>((resolve) => client.on("error", resolve));
  t.equal(error.code, "connection_lost");
  t.match(error.message, /ws:\/\/127\.0\.0\.1:1.*ECONNREFUSED.*client listener, not of the API/);
});

t.test(
  "the client's own messages are emitted as `sent` events with the server's time",
  async (t) => {
    const messageId = 373_348_562_493_440;
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind === "send")
        socket.reply(operation, {
          ...{ kind: "sendack", messageId, messageSeq: 3, clientMsgNo: operation.clientMsgNo },
        });
    });
    const client = connectTo(t, server);
    const events: unknown[] = [];
    client.on("message", () => events.push("message"));
    client.on("sent", (message) => events.push(message));
    const sent = await client.send(group("g"), "hello", { tagKey: "x" });
    const { clientMsgNo, timestampMs } = sent;
    t.same(sent, { messageId, messageSeq: 3, clientMsgNo, timestampMs: 1_795_216_751_390 });
    t.match(events, [
      {
        ...{
          channel: group("g"),
          messageId,
          messageSeq: 3,
          clientMsgNo,
          timestampMs,
          fromUid: "me",
        },
        ...{ redDot: true, noPersist: false, expireS: 0, tagKey: "x", stream: undefined },
        content: { type: 1, content: "hello" },
      },
    ]);
  },
);
