// Replacing the JWT of the open session: when the token function is called, and what happens after
// a failure. The server is controlled by the test, and the clock is simulated.

import { mock } from "node:test";
import type { Test } from "tap";
import type { ChannelEvent } from "../../src/broker/model.ts";
import { type ConnectOptions, person } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

type RefreshReply = number | "unauthorized";

async function start(
  t: Test,
  token: ConnectOptions["token"],
  { expiresInS = 100, replies = [] }: { expiresInS?: number; replies?: RefreshReply[] } = {},
) {
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(Math, "random", () => 0.5);
  t.teardown(() => {
    mock.timers.reset();
    mock.restoreAll();
  });
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket, { expiresInS });
    if (operation.kind !== "refresh") return;
    const reply = replies.shift() ?? 100;
    if (typeof reply === "number") acknowledge(operation, socket, { expiresInS: reply });
    else socket.reply(operation, { kind: "error", code: reply, message: "", retryAfterMs: 0 });
  });
  const client = connectTo(t, server, { token });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  return {
    client,
    server,
    errors,
    refreshed: (connection = 0) =>
      (server.sockets[connection]?.all("refresh") ?? []).map((refresh) => refresh.token),
    /** Advances the clock by this time, and lets waiting promises settle. */
    async pass(ms: number) {
      mock.timers.tick(ms);
      for (let turn = 0; turn < 5; turn++) await new Promise((go) => setImmediate(go));
    },
  };
}

const SYSTEM = person("____system");
const EXPIRING: ChannelEvent = {
  ...{ key: "1:ann@____system", channel: SYSTEM, fromUid: SYSTEM.id, clientMsgNo: "" },
  ...{ eventId: "e1", type: "auth.expiring", data: '{"expiresInS":15}' },
  ...{ timestampMs: 1, stream: undefined },
};

t.test("the token function is called after 80% to 90% of the lifetime of each token", async (t) => {
  let tokens = 0;
  const { refreshed, pass, errors } = await start(t, () => `t${++tokens}`, { replies: [200] });
  await pass(84_000);
  t.same(refreshed(), []);
  await pass(1100);
  t.same(refreshed(), ["t2"]);
  await pass(168_000);
  t.equal(refreshed().length, 1, "the next token lives longer");
  await pass(2100);
  t.same(refreshed(), ["t2", "t3"]);
  t.same(errors, []);
});

t.test(
  "the client replaces its token when the server announces that the token expires soon",
  async (t) => {
    let tokens = 0;
    const { client, server, refreshed, pass } = await start(t, () => `t${++tokens}`);
    const events: string[] = [];
    client.on("event", ({ type }) => events.push(type));
    const announce = () =>
      server.sockets[0]?.push({ kind: "event", channel: SYSTEM, event: EXPIRING });
    announce();
    announce();
    await pass(0);
    await pass(10);
    t.same([refreshed(), events], [["t2"], []]);
  },
);

t.test("a token function that fails or whose token is refused is called again", async (t) => {
  let calls = 0;
  const token = async () => {
    calls += 1;
    if (calls === 2) throw new Error("the login page is down");
    return `t${calls}`;
  };
  const { client, refreshed, pass, errors } = await start(t, token, { replies: ["unauthorized"] });
  await pass(85_100);
  t.same([errors, refreshed()], [["token_failed"], []]);
  await pass(1600);
  t.same([errors, refreshed()], [["token_failed", "auth_failed"], ["t3"]]);
  await pass(3100);
  t.same(refreshed(), ["t3", "t4"]);
  t.equal(errors.length, 2);
  t.equal(client.status, "online");
});

t.test("a reconnect during a refresh waits for the same call to the token function", async (t) => {
  let calls = 0;
  let resolve: ((token: string) => void) | undefined;
  const token = () => {
    calls += 1;
    if (calls === 1) return "t1";
    return new Promise<string>((settle) => {
      resolve = settle;
    });
  };
  const { client, server, refreshed, pass } = await start(t, token);
  await pass(85_100);
  t.equal(calls, 2);
  server.sockets[0]?.end(4000);
  await pass(0);
  await pass(10);
  t.equal(calls, 2, "the connect waits for the same token");
  resolve?.("t2");
  await server.socket(1);
  await client.ready();
  t.equal(server.sockets[1]?.all("connect")[0]?.token, "t2");
  t.same([refreshed(0), refreshed(1)], [[], []], "the new session has the new token");
});

t.test(
  "a fixed token is not refreshed, and the client is closed when the token expires",
  async (t) => {
    const { client, server, refreshed, pass, errors } = await start(t, "t1");
    const kicked: string[] = [];
    client.on("kicked", ({ reason }) => kicked.push(reason));
    await pass(100_000);
    t.same(refreshed(), []);
    server.sockets[0]?.end(4103);
    await pass(0);
    t.same([client.status, kicked, errors], ["closed", ["auth_failed"], []]);
  },
);

t.test("a client with a token function reconnects after its token has expired", async (t) => {
  let tokens = 0;
  const { client, server, pass } = await start(t, () => `t${++tokens}`, { expiresInS: 1000 });
  server.sockets[0]?.end(4103);
  await pass(0);
  await pass(1000);
  await server.socket(1);
  await client.ready();
  t.equal(server.sockets[1]?.all("connect")[0]?.token, "t2");
});
