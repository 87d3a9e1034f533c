// The event `unread`, with a real broker: after each change, and after time offline, the counts are
// those of the server.

import type { Test } from "tap";
import { WebSocket } from "ws";
import { firstMessageId } from "../../src/broker/model.ts";
import { type Client, connect, group, type JindouError, person } from "../../src/client/index.ts";
import type { ConnectOptions } from "../../src/client/options.ts";
import { type Broker, startBroker } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { message } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

/** A client with the unread counts that its events reported, by channel id. */
interface Badge {
  readonly client: Client;
  readonly counts: Map<string, number>;
  readonly seen: string[];
}

async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5));
}

async function loginTo(
  t: Test,
  broker: Broker,
  uid: string,
  options: Partial<ConnectOptions> = {},
): Promise<Badge> {
  await broker.call("/user/token", { uid, token: "secret", device_flag: 1 });
  const client = connect({
    ...{ url: `ws://127.0.0.1:${broker.clientPort}`, uid, token: "secret" },
    ...{ reconnect: { minMs: 5, maxMs: 10 }, ...options },
  });
  t.teardown(() => client.close());
  const counts = new Map<string, number>();
  const seen: string[] = [];
  client.on("unread", ({ channel, unread }) => {
    counts.set(channel.id, unread);
    seen.push(`${channel.id} ${unread}`);
  });
  await client.ready();
  return { client, counts, seen };
}

const newGroup = (broker: Broker, id: string, subscribers: readonly string[], fields = {}) =>
  broker.call("/channel", { channel_id: id, channel_type: 2, subscribers, ...fields });

t.test("each message and each change of a conversation changes the unread count", async (t) => {
  const broker = await startBroker(t);
  await newGroup(broker, "lobby", ["ann", "ben"]);
  const { client: ann } = await loginTo(t, broker, "ann");
  const { client, seen } = await loginTo(t, broker, "ben");
  const { client: phone } = await loginTo(t, broker, "ben");
  const expected: string[] = [];
  const step = async (text: string, change: () => Promise<unknown>) => {
    await change();
    if (text !== "") expected.push(text);
    await until(() => seen.length >= expected.length);
    t.same(seen, expected, text);
  };
  const lobby = group("lobby");
  await step("lobby 1", () => ann.send(lobby, "one"));
  await step("lobby 2", () => ann.send(lobby, "two"));
  await step("", () => ann.send(lobby, "silent", { redDot: false }));
  await step("", () => ann.send(lobby, "unstored", { noPersist: true }));
  await step("lobby 3", () => ann.send(lobby, "three"));
  await step("ann 1", () => ann.send(person("ben"), "psst"));
  await step("lobby 2", () => client.markRead(lobby, 1));
  await step("lobby 0", () => phone.markRead(lobby, 4));
  await step("lobby 1", () => phone.setUnread(lobby, 1));
  await step("lobby 2", () => ann.send(lobby, "four"));
  await step("lobby 0", () => client.send(lobby, "own message"));
  await step("lobby 1", () => ann.send(lobby, "five"));
  await step("lobby 0", () => phone.send(lobby, "message of the phone"));
  await step("ann 0", () => client.deleteConversation(person("ann")));
  await step("ann 1", () => ann.send(person("ben"), "again"));
  await step("ann 0", () =>
    broker.call("/conversations/clearUnread", { uid: "ben", channel_id: "ann", channel_type: 1 }),
  );
  const { unread } = await client.conversation(person("ann"));
  t.equal(unread, 0);
});

t.test(
  "messages of a large group are not counted, and the client reads the conversation only once",
  async (t) => {
    const broker = await startBroker(t);
    await newGroup(broker, "crowd", ["ann", "ben"], { large: 1 });
    const { client: ann } = await loginTo(t, broker, "ann");
    const { client, seen } = await loginTo(t, broker, "ben");
    let received = 0;
    client.on("message", () => {
      received += 1;
    });
    for (const text of ["one", "two", "three"]) await ann.send(group("crowd"), text);
    await until(() => received === 3 && seen.length > 0);
    t.equal((await client.conversation(group("crowd"))).large, true);
    t.same(seen, ["crowd 0"]);
  },
);

/** A WebSocket class whose connections the test can end and refuse. */
function breakableSocket() {
  const open = new Set<WebSocket>();
  const gate = { isOpen: true };
  class Breakable extends WebSocket {
    constructor(url: string, protocols: string | string[]) {
      super(gate.isOpen ? url : "ws://127.0.0.1:1", protocols);
      open.add(this);
    }
  }
  return {
    webSocket: Breakable as unknown as NonNullable<ConnectOptions["webSocket"]>,
    cut() {
      gate.isOpen = false;
      for (const socket of open) socket.terminate();
      open.clear();
    },
    mend() {
      gate.isOpen = true;
    },
  };
}

t.test("a client that was offline reports the counts of all changed conversations", async (t) => {
  const broker = await startBroker(t);
  for (const id of ["quiet", "read", "busy", "left", "marked"])
    await newGroup(broker, id, ["ann", "ben"]);
  const { client: ann } = await loginTo(t, broker, "ann");
  const { webSocket, cut, mend } = breakableSocket();
  const { client, counts, seen } = await loginTo(t, broker, "ben", { webSocket });
  const { client: phone } = await loginTo(t, broker, "ben");
  const send = (id: string) => ann.send(group(id), "hello");
  for (const id of ["quiet", "read", "busy", "left", "marked"]) await send(id);
  await ann.send(person("ben"), "hello");
  await client.markRead(group("marked"), 1);
  await until(() => counts.size === 6 && counts.get("marked") === 0);
  cut();
  await until(() => client.status !== "online");
  seen.length = 0;
  await phone.markRead(group("read"), 1);
  await send("busy");
  await phone.setUnread(group("marked"), 1);
  await phone.deleteConversation(person("ann"));
  const leaving = { channel_id: "left", channel_type: 2, subscribers: ["ben"] };
  await broker.call("/channel/subscriber_remove", leaving);
  await newGroup(broker, "new", ["ann", "ben"]);
  await send("new");
  t.same(seen, []);
  mend();
  const changed = ["ann 0", "busy 2", "left 0", "marked 1", "new 1", "read 0"];
  await until(() => seen.length >= changed.length);
  await client.conversation(group("quiet"));
  t.same(seen.sort(), changed, "each changed count is reported once");
  await send("quiet");
  await until(() => counts.get("quiet") === 2);
});

/** Ignores the rejection of a message whose connection was lost twice, rethrows other errors. */
function exceptSuspects(error: JindouError): void {
  if (error.code !== "not_delivered") throw error;
}

t.test("the counts are correct after random changes and lost connections", async (t) => {
  const broker = await startBroker(t);
  const ids = ["a", "b", "c"];
  for (const id of ids) await newGroup(broker, id, ["ann", "ben"]);
  const { client: ann } = await loginTo(t, broker, "ann");
  const { webSocket, cut, mend } = breakableSocket();
  const { client, counts } = await loginTo(t, broker, "ben", { webSocket });
  const { client: phone } = await loginTo(t, broker, "ben");
  const seed = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
  t.comment(`JINDOU_TEST_SEED=${seed}`);
  const random = new Random(seed);
  const work: Promise<unknown>[] = [];
  for (let n = 0; n < volume(500); n++) {
    const channel = random.below(4) === 0 ? person("ann") : group(random.pick(ids));
    const fromAnn = channel.type === 1 ? person("ben") : channel;
    const device = random.pick([client, phone]);
    const changes = [
      () => ann.send(fromAnn, "x", { redDot: random.below(4) > 0 }),
      () => ann.send(fromAnn, "y"),
      () => device.send(channel, "own"),
      () => device.markRead(channel, random.below(n + 1)),
      () => device.setUnread(channel, random.below(5)),
      () => device.deleteConversation(channel),
    ];
    work.push(random.pick(changes)().catch(exceptSuspects));
    if (random.below(20) === 0) {
      cut();
      mend();
    }
    if (random.below(5) === 0) await work.at(-1);
  }
  await Promise.all(work);
  await client.ready();
  for (const channel of [...ids.map(group), person("ann")]) {
    const isRight = async () => {
      const { unread, headSeq } = await phone.conversation(channel);
      return headSeq === 0 || (counts.get(channel.id) ?? 0) === unread;
    };
    await until(isRight);
  }
  t.pass("all counts equal those of the server");
});

t.test(
  "an `unread` handler that is added again gets a count that includes the messages since its removal",
  async (t) => {
    const broker = await startBroker(t);
    await newGroup(broker, "lobby", ["ann", "ben"]);
    const { client: ann } = await loginTo(t, broker, "ann");
    await broker.call("/user/token", { uid: "ben", token: "secret", device_flag: 1 });
    const url = `ws://127.0.0.1:${broker.clientPort}`;
    const ben = connect({ url, uid: "ben", token: "secret" });
    t.teardown(() => ben.close());
    let received = 0;
    ben.on("message", () => {
      received += 1;
    });
    await ben.ready();
    const seen: number[] = [];
    const send = async () => {
      const expected = received + 1;
      await ann.send(group("lobby"), "hello");
      await until(() => received === expected);
    };
    const remove = ben.on("unread", ({ unread }) => seen.push(unread));
    await send();
    await until(() => seen.length === 1);
    remove();
    await send();
    await send();
    ben.on("unread", ({ unread }) => seen.push(unread));
    await send();
    await until(() => seen.length === 2);
    t.same(seen, [1, 4]);
  },
);

t.test("a conversation is read again if its reply is older than a pushed message", async (t) => {
  let reads = 0;
  const channel = group("team");
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "conversation") return;
    reads += 1;
    // the third message is pushed after the state was read, and before the reply
    if (reads === 1) socket.push({ kind: "message", channel, message: message(3, { channel }) });
    const state = reads === 1 ? { headSeq: 2, unread: 1 } : { headSeq: 3, unread: 2 };
    const position = { readSeq: 0, deletedSeq: 0, changedAtMs: 0, last: undefined };
    socket.reply(operation, {
      kind: "conversation",
      conversation: { channel, ...state, ...position },
    });
  });
  const client = connectTo(t, server);
  const seen: number[] = [];
  await client.ready();
  const socket = await server.socket();
  socket.push({ kind: "message", channel, message: message(1, { channel }) });
  await server.until("the message", () => client.cursors()[0]?.lastSeq === 1);
  t.equal(socket.all("conversation").length, 0, "without a handler nothing is read");
  client.on("unread", ({ unread }) => seen.push(unread));
  socket.push({ kind: "message", channel, message: message(2, { channel }) });
  await server.until("the count", () => seen.length > 0);
  t.same(seen, [2]);
  t.equal(socket.all("conversation").length, 2);
});

t.test("changes whose list was refused are listed after the next connect", async (t) => {
  const startMs = Date.UTC(2030, 0, 1);
  const newestIds = [0, 100_000, 200_000].map((ms) => firstMessageId(startMs + ms));
  const missed = { channel: group("team"), changedAtMs: startMs + 50_000, unread: 3 };
  const rest = { headSeq: 3, readSeq: 0, deletedSeq: 0, last: undefined };
  const refusal = { kind: "error", message: "", retryAfterMs: 0 } as const;
  const server = new ScriptedServer((operation, socket) => {
    const isRefusing = server.sockets.length === 2;
    const newestId = newestIds[server.sockets.length - 1] ?? 0;
    if (operation.kind === "connect") acknowledge(operation, socket, { newestId });
    if (operation.kind !== "conversations") return;
    const { sinceMs = 0 } = operation;
    const conversations = missed.changedAtMs >= sinceMs ? [{ ...missed, ...rest }] : [];
    if (isRefusing) socket.reply(operation, { ...refusal, code: "bad_request" });
    else socket.reply(operation, { kind: "conversations", cursor: undefined, conversations });
  });
  const client = connectTo(t, server);
  const seen: string[] = [];
  client.on("unread", ({ channel, unread }) => seen.push(`${channel.id} ${unread}`));
  await client.ready();
  server.sockets[0]?.end(1006);
  await server.received("conversations", 0, 1);
  t.same(seen, []);
  server.sockets[1]?.end(1006);
  await until(() => seen.length > 0);
  t.same(seen, ["team 3"]);
});
