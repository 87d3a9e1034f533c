// The event `unread`, with a real broker: after each change, and after time offline, the counts are
// those of the server.

import type { Test } from "tap";
import { WebSocket } from "ws";
import { type Conversation, firstMessageId, type Message } from "../../src/broker/model.ts";
import { type Client, connect, group, type JindouError, person } from "../../src/client/index.ts";
import type { ConnectOptions } from "../../src/client/options.ts";
import { type Broker, startBroker } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { message, TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

/** A client with the unread counts that its events reported, by channel id. */
interface Badge {
  readonly client: Client;
  readonly counts: Map<string, number>;
  readonly seen: string[];
}

const DEADLINE_MS = 30_000;

async function until(holds: () => boolean | Promise<boolean>, what = "the counts"): Promise<void> {
  const deadline = Date.now() + DEADLINE_MS;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`timed out waiting for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
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

t.test(
  "the unread count is updated by each stored message with a red dot and by each change to a conversation",
  async (t) => {
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
  },
);

t.test(
  "messages of a large group are not counted, and its unread count is reported only once, as 0",
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

/** Starts a broker with a group of ann and ben, to which ann has sent six messages. */
async function startLobby(t: Test) {
  const broker = await startBroker(t);
  const lobby = group("lobby");
  await newGroup(broker, lobby.id, ["ann", "ben"]);
  const { client: ann } = await loginTo(t, broker, "ann");
  for (let n = 0; n < 6; n++) await ann.send(lobby, "hello");
  return { broker, lobby };
}

t.test("a markRead delayed by a lost connection does not undo a newer change", async (t) => {
  const { broker, lobby } = await startLobby(t);
  const { webSocket, cut, mend } = breakableSocket();
  const { client } = await loginTo(t, broker, "ben", { webSocket });
  const { client: phone } = await loginTo(t, broker, "ben");
  cut();
  await until(() => client.status !== "online");
  const back = client.markRead(lobby, 2);
  await phone.markRead(lobby, 5);
  mend();
  t.equal((await back).readSeq, 5, "another device has read more in the meantime");
  cut();
  await until(() => client.status !== "online");
  const changes = [client.markRead(lobby, 6), client.setUnread(lobby, 3)];
  mend();
  await Promise.all(changes);
  t.equal((await client.conversation(lobby)).unread, 3, "a later call of the client");
  t.equal((await client.markRead(lobby, 2)).readSeq, 2, "an online client moves it back");
});

t.test("a setUnread with 0 does not undo a setUnread that is called after it", async (t) => {
  const { broker, lobby } = await startLobby(t);
  const { client } = await loginTo(t, broker, "ben");
  await Promise.all([client.setUnread(lobby, 0), client.setUnread(lobby, 3)]);
  t.equal((await client.conversation(lobby)).unread, 3);
  t.equal((await client.setUnread(lobby, 0)).unread, 0);
});

/** Ignores the rejection of a message whose connection was lost twice, rethrows other errors. */
function exceptSuspects(error: JindouError): void {
  if (error.code !== "not_delivered") throw error;
}

/** The first seed that is tested, from JINDOU_TEST_SEED. */
const FIRST_SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);

for (let seed = FIRST_SEED; seed < FIRST_SEED + volume(80); seed++)
  t.test(
    `the unread counts are correct after random changes and lost connections, seed ${seed}`,
    async (t) => {
      const broker = await startBroker(t);
      const ids = ["a", "b", "c"];
      for (const id of ids) await newGroup(broker, id, ["ann", "ben"]);
      const { client: ann } = await loginTo(t, broker, "ann");
      const { webSocket, cut, mend } = breakableSocket();
      const { client, counts } = await loginTo(t, broker, "ben", { webSocket });
      const { client: phone } = await loginTo(t, broker, "ben");
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
        await until(isRight, `the count of ${channel.id}`);
      }
      t.pass("all counts equal those of the server");
    },
  );

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

/** Returns the state of a conversation with `headSeq` messages. */
function stateOf(headSeq: number, unread: number): Conversation {
  const position = { readSeq: 0, deletedSeq: 0, changedAtMs: 0, last: undefined };
  return { channel: TEAM, headSeq, unread, ...position };
}

/**
 * Connects a client that records its unread counts. The server lists no changed conversations. On
 * the second connection, messages up to the seq `missedSeq` count as missed.
 */
async function scriptedBadge(t: Test, missedSeq = 0) {
  const server = new ScriptedServer((operation, socket) => {
    const newestId = server.sockets.length === 1 ? 1000 : 1000 + missedSeq;
    if (operation.kind === "connect") acknowledge(operation, socket, { newestId });
    if (operation.kind === "conversations")
      socket.reply(operation, { kind: "conversations", cursor: undefined, conversations: [] });
  });
  const client = connectTo(t, server);
  const seen: number[] = [];
  client.on("unread", ({ unread }) => seen.push(unread));
  await client.ready();
  return {
    client,
    server,
    /** Pushes a message on the newest connection. */
    push(seq: number, changes: Partial<Message> = {}) {
      const pushed = message(seq, changes);
      server.sockets.at(-1)?.push({ kind: "message", channel: TEAM, message: pushed });
    },
    /** Answers read number `n` of a connection. */
    async answer(n: number, conversation: Conversation, connection = 0) {
      const request = await server.received("conversation", n, connection);
      server.sockets[connection]?.reply(request, { kind: "conversation", conversation });
    },
    async sees(...counts: number[]) {
      await server.until(`the counts ${counts.join()}`, () => seen.length >= counts.length);
      t.same(seen, counts);
    },
  };
}

t.test(
  "a conversation is requested again if the reply is older than a pushed message",
  async (t) => {
    const { server, push, answer, sees } = await scriptedBadge(t);
    push(2);
    push(3); // after the state was read, and before the reply
    await answer(0, stateOf(2, 1));
    await answer(1, stateOf(3, 2));
    await sees(2);
    t.equal(server.sockets[0]?.all("conversation").length, 2);
  },
);

t.test(
  "a markRead delayed only by the rate limit may still move the read position back",
  async (t) => {
    const server = new ScriptedServer();
    const client = connectTo(t, server);
    await client.ready();
    const socket = await server.socket();
    void client.conversation(TEAM).catch(() => undefined);
    const refused = await server.received("conversation");
    const refusal = { code: "rate_limited", message: "", retryAfterMs: 50 } as const;
    socket.reply(refused, { kind: "error", ...refusal });
    await new Promise(setImmediate);
    await new Promise(setImmediate);
    void client.markRead(TEAM, 2).catch(() => undefined);
    t.equal(socket.all("conversation").length, 1, "the call waits");
    const { change } = await server.received("conversation", 2);
    t.same(change, { kind: "read", seq: 2 });
  },
);

t.test("a conversation is requested only after a handler for `unread` is added", async (t) => {
  const server = new ScriptedServer();
  const client = connectTo(t, server);
  await client.ready();
  const socket = await server.socket();
  socket.push({ kind: "message", channel: TEAM, message: message(1) });
  await server.until("the message", () => client.cursors()[0]?.lastSeq === 1);
  t.equal(socket.all("conversation").length, 0, "without a handler nothing is read");
  const seen: number[] = [];
  client.on("unread", ({ unread }) => seen.push(unread));
  socket.push({ kind: "message", channel: TEAM, message: message(2) });
  const request = await server.received("conversation");
  socket.reply(request, { kind: "conversation", conversation: stateOf(2, 2) });
  await server.until("the count", () => seen.length > 0);
  t.same(seen, [2]);
});

t.test("a missed message is not counted after its conversation was deleted", async (t) => {
  const { server, push, answer, sees } = await scriptedBadge(t, 2);
  push(1);
  await answer(0, stateOf(1, 0));
  await sees(0);
  server.sockets[0]?.end(1006);
  // The conversation was deleted, so it is not in the list of changed conversations.
  await server.received("conversations", 0, 1);
  push(2);
  await answer(0, stateOf(2, 0), 1);
  push(3);
  await sees(0, 1);
});

t.test(
  "a conversation whose first request was lost is requested again after the reconnect",
  async (t) => {
    const { server, push, answer, sees } = await scriptedBadge(t, 1);
    push(1);
    await server.received("conversation");
    server.sockets[0]?.end(1006);
    await answer(0, stateOf(1, 1), 1); // the conversation is not in the list of changes
    push(2);
    await sees(1, 2);
  },
);

t.test(
  "messages earlier than one of the user's own messages are not counted, even if its SENDACK is late",
  async (t) => {
    const { client, server, push, answer, sees } = await scriptedBadge(t);
    push(1);
    await answer(0, stateOf(1, 1));
    const sent = client.send(TEAM, "own", { clientMsgNo: "own" });
    const request = await server.received("send");
    push(2, { fromUid: "me", clientMsgNo: "own" });
    push(3);
    const ack = { messageId: 1002, messageSeq: 2, clientMsgNo: "own" };
    server.sockets[0]?.reply(request, { kind: "sendack", ...ack });
    await sent;
    await answer(1, stateOf(3, 1));
    await sees(1, 2, 1);
  },
);

t.test(
  "if a pushed state has the same time as the client's state, the conversation is requested again before the count changes",
  async (t) => {
    const { server, push, answer, sees } = await scriptedBadge(t);
    push(2);
    await answer(0, stateOf(2, 1));
    await sees(1);
    // the states do not show which of the two changes is newer
    const older = stateOf(2, 0);
    server.sockets[0]?.push({ kind: "conversation", change: "read", conversation: older });
    // a third change arrives before the reply, which is older
    await server.received("conversation", 1);
    const newest = stateOf(2, 2);
    server.sockets[0]?.push({ kind: "conversation", change: "unread", conversation: newest });
    await answer(1, older);
    await answer(2, newest);
    push(3);
    await sees(1, 2, 3);
  },
);

t.test(
  "a change that arrives in the same packet as the reply to a request for its conversation is not lost",
  async (t) => {
    const { server, push, answer, sees } = await scriptedBadge(t);
    push(2);
    const request = await server.received("conversation");
    const socket = await server.socket();
    socket.together(() => {
      socket.reply(request, { kind: "conversation", conversation: stateOf(2, 2) });
      push(3);
      // the user's phone has read message 2 before message 3 was sent
      socket.push({ kind: "conversation", change: "read", conversation: stateOf(2, 0) });
    });
    await answer(1, stateOf(3, 1));
    await sees(2, 3, 1);
  },
);

t.test("a refused request for conversation changes is sent again after a reconnect", async (t) => {
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
