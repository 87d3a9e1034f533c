// `emit` and `typing` of the SDK, with a server that the test controls and a simulated clock.

import { mock } from "node:test";
import type { Test } from "tap";
import { type Client, group, person } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { message } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

const LOBBY = group("lobby");

interface Fixture {
  readonly client: Client;
  readonly server: ScriptedServer;
  /** Changes that the event `typing` reported. */
  readonly changes: readonly string[];
  /** Returns the events that the client has sent on a connection. */
  sent(connection?: number): readonly string[];
  /** Sends an event to the client, and waits until the client has read it. */
  receive(fromUid: string, data?: string): Promise<void>;
  /** Advances the clock by this time. */
  pass(ms: number): void;
}

async function start(t: Test): Promise<Fixture> {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "emit") socket.reply(operation, { kind: "emit" });
  });
  const client = connectTo(t, server);
  await client.ready();
  const changes: string[] = [];
  client.on("typing", ({ channel, uid, isTyping }) =>
    changes.push(`${channel.id} ${uid} ${isTyping ? "types" : "stops"}`),
  );
  let events = 0;
  client.on("event", () => {
    events += 1;
  });
  const startMs = performance.now();
  let passedMs = 0;
  mock.method(performance, "now", () => startMs + passedMs);
  mock.timers.enable({ apis: ["setTimeout"] });
  t.teardown(() => {
    mock.timers.reset();
    mock.restoreAll();
  });
  return {
    client,
    server,
    changes,
    sent: (connection = 0) =>
      (server.sockets[connection]?.all("emit") ?? []).map(
        ({ channel, type, data }) => `${channel.id} ${type} ${data}`,
      ),
    async receive(fromUid, data = "") {
      const expected = events + 1;
      server.sockets[0]?.push({
        ...{ kind: "event", channel: LOBBY },
        event: {
          ...{ key: "2:lobby", channel: LOBBY, fromUid, clientMsgNo: "", eventId: "e" },
          ...{ type: "typing", data, timestampMs: 1, stream: undefined },
        },
      });
      await server.until("the event", () => events >= expected);
    },
    pass(ms) {
      passedMs += ms;
      mock.timers.tick(ms);
      mock.timers.tick(1);
    },
  };
}

t.test("`client.typing` sends at most one event every 3 seconds in each channel", async (t) => {
  const { client, sent, pass } = await start(t);
  for (let key = 0; key < 10; key++) client.typing(LOBBY);
  client.typing(person("ben"));
  t.same(sent(), ["lobby typing ", "ben typing "]);
  pass(2900);
  client.typing(LOBBY);
  t.equal(sent().length, 2);
  pass(200);
  client.typing(LOBBY);
  t.same(sent().slice(2), ["lobby typing "]);
});

t.test(
  "a stop event is sent only if typing was reported, and typing is reported again at once after a message is sent",
  async (t) => {
    const { client, sent } = await start(t);
    client.typing(LOBBY, false);
    t.same(sent(), []);
    client.typing(LOBBY);
    client.typing(LOBBY, false);
    client.typing(LOBBY, false);
    t.same(sent(), ["lobby typing ", "lobby typing stop"]);
    client.typing(LOBBY);
    client.send(LOBBY, "hi").catch(() => undefined);
    client.typing(LOBBY);
    t.same(sent().slice(2), ["lobby typing ", "lobby typing "]);
  },
);

t.test("a user no longer counts as typing after 6 seconds without an event", async (t) => {
  const { changes, receive, pass } = await start(t);
  await receive("ben");
  pass(4000);
  await receive("ben");
  await receive("carl");
  pass(4000);
  t.same(changes, ["lobby ben types", "lobby carl types"], "a further event extends the time");
  pass(2100);
  t.same(changes.slice(2), ["lobby ben stops", "lobby carl stops"]);
  await receive("ben");
  t.same(changes.slice(4), ["lobby ben types"]);
});

t.test("a user counts as typing until a stop event or a message from that user", async (t) => {
  const { client, server, changes, receive, pass } = await start(t);
  await receive("ben");
  await receive("ben", "stop");
  await receive("ben", "stop");
  await receive("carl");
  let messages = 0;
  client.on("message", () => {
    t.equal(changes.length, 4, "typing ends before the message is delivered");
    messages += 1;
  });
  server.sockets[0]?.push({
    ...{ kind: "message", channel: LOBBY },
    message: message(1, { channel: LOBBY, fromUid: "carl" }),
  });
  await server.until("the message", () => messages > 0);
  t.same(changes, ["lobby ben types", "lobby ben stops", "lobby carl types", "lobby carl stops"]);
  pass(10_000);
  t.equal(changes.length, 4);
});

t.test("events of the user's other devices do not count as typing", async (t) => {
  const { client, changes, receive } = await start(t);
  await receive(client.uid);
  t.same(changes, []);
});

t.test(
  "`client.emit` rejects while the client is not online, and an event without a reply is not sent again",
  async (t) => {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
    });
    const client = connectTo(t, server);
    client.typing(LOBBY);
    t.equal(await codeOfEmit(client), "connection_lost", "before the session is open");
    await client.ready();
    const emitted = codeOfEmit(client);
    await server.received("emit");
    server.sockets[0]?.end(1006);
    t.equal(await emitted, "connection_lost");
    await server.socket(1);
    await client.ready();
    const [second] = [server.sockets[1]];
    client.typing(LOBBY);
    await server.received("emit", 0, 1);
    t.equal(second?.all("emit").length, 1, "only the new event is sent");
  },
);

async function codeOfEmit(client: Client): Promise<string> {
  try {
    await client.emit(LOBBY, "cursor");
    return "ok";
  } catch (error) {
    return (error as { code: string }).code;
  }
}
