// Messages that arrived while the client was offline, in channels that its CONNECT did not name.

import type { Test } from "tap";
import type { ErrorCode } from "../../src/broker/errors.ts";
import type { ChannelRef, Message } from "../../src/broker/model.ts";
import { type Client, group, person } from "../../src/client/index.ts";
import type { ConnectOptions } from "../../src/client/options.ts";
import { t } from "../support/suite.ts";
import { message, TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

/** A client and a server that stores channels. */
interface CatchUpFixture {
  readonly server: ScriptedServer;
  readonly client: Client;
  readonly seen: string[];
  /** Stores a message in a channel of the server. */
  store(channel: ChannelRef, messageSeq: number, changes?: Partial<Message>): Message;
}

/**
 * Connects a client to a server that stores channels and lists them two per page, newest message
 * first. The server refuses the first conversation lists with the codes of `refusals`.
 */
async function start(
  t: Test,
  options: Partial<ConnectOptions> = {},
  refusals: ErrorCode[] = [],
): Promise<CatchUpFixture> {
  const channels = new Map<string, Message[]>();
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "history") {
      const { channel, fromSeq, toSeq, limit, reverse } = operation;
      const inRange = (channels.get(channel.id) ?? []).filter(
        ({ messageSeq }) => messageSeq >= fromSeq && (toSeq === 0 || messageSeq <= toSeq),
      );
      const messages = reverse ? inRange.reverse() : inRange;
      const page = messages.slice(0, Math.min(limit, 2));
      const more = page.length < messages.length;
      const headSeq = inRange.length;
      socket.reply(operation, {
        kind: "history",
        channel,
        headSeq,
        more,
        messages: page,
      });
    }
    const refusal = { kind: "error", message: "", retryAfterMs: 1 } as const;
    const isList = operation.kind === "conversations";
    const code = isList ? refusals.shift() : undefined;
    if (code !== undefined) socket.reply(operation, { ...refusal, code });
    else if (isList) {
      const all = [...channels.values()].sort((a, b) => idOf(b) - idOf(a));
      const from = Number(operation.cursor ?? 0);
      const page = all.slice(from, from + 2);
      const next = from + page.length;
      socket.reply(operation, {
        kind: "conversations",
        cursor: next < all.length ? String(next) : undefined,
        conversations: page.map((stored) => ({
          channel: stored[0]?.channel ?? TEAM,
          headSeq: stored.at(-1)?.messageSeq ?? 0,
          readSeq: 0,
          unread: 0,
          deletedSeq: 0,
          changedAtMs: 0,
          last: stored.at(-1),
        })),
      });
    }
  });
  const client = connectTo(t, server, options);
  const seen: string[] = [];
  client.on("message", ({ channel, messageSeq }) => seen.push(`${channel.id} ${messageSeq}`));
  await client.ready();
  const store: CatchUpFixture["store"] = (channel, messageSeq, changes = {}) => {
    const stored = message(messageSeq, { channel, ...changes });
    channels.set(channel.id, [...(channels.get(channel.id) ?? []), stored]);
    return stored;
  };
  return { server, client, seen, store };
}

/** Returns the id of the newest message. */
const idOf = (stored: readonly Message[]) => stored.at(-1)?.messageId ?? 0;

/** Returns changes that make a message older than the first CONNACK of the scripted server. */
const old = (messageSeq: number) => ({ messageId: 500 + messageSeq });

async function reconnect({ server, client }: CatchUpFixture): Promise<void> {
  const next = server.sockets.length;
  server.sockets.at(-1)?.end(1006);
  await server.received("connect", 0, next);
  await client.ready();
}

t.test(
  "in a channel without a cursor, the messages since the first connect are read after a reconnect",
  async (t) => {
    const fixture = await start(t);
    const { server, seen, store } = fixture;
    store(group("silent"), 1, old(1));
    store(group("old"), 1, old(1));
    for (const seq of [2, 3, 4, 5, 6]) store(group("old"), seq);
    const peter = { fromUid: "peter" };
    store(person("peter"), 1, peter);
    await reconnect(fixture);
    await server.until("all messages are delivered", () => seen.length === 6);
    t.same(
      seen.filter((entry) => entry.startsWith("old")),
      ["old 2", "old 3", "old 4", "old 5", "old 6"],
    );
    t.ok(seen.includes("peter 1"));
    t.notOk(seen.includes("silent 1"));
  },
);

t.test(
  "live messages of a channel without a cursor are delivered after the earlier missed messages",
  async (t) => {
    const fixture = await start(t);
    const { server, seen, store } = fixture;
    for (const seq of [1, 2, 3]) store(group("new"), seq);
    const live = message(4, { channel: group("new") });
    const next = server.sockets.length;
    server.sockets.at(-1)?.end(1006);
    await server.received("connect", 0, next);
    const socket = await server.socket(next);
    socket.push({ kind: "message", channel: live.channel, message: live });
    await server.until("all messages are delivered", () => seen.length === 4);
    t.same(seen, ["new 1", "new 2", "new 3", "new 4"]);
  },
);

t.test(
  "after the first connect, only live messages are delivered in a channel without a cursor",
  async (t) => {
    const { server, seen, store } = await start(t);
    for (const seq of [1, 2]) store(TEAM, seq);
    const socket = await server.socket();
    const live = message(3);
    socket.push({ kind: "message", channel: TEAM, message: live });
    await server.until("the message is delivered", () => seen.length === 1);
    t.same(seen, ["team 3"]);
    t.equal(socket.all("conversations").length, 0);
  },
);

t.test(
  "after a reconnect, the client reads the missed messages of channels beyond the 1,000 that a CONNECT can name",
  async (t) => {
    const cursors = Array.from({ length: 1002 }, (_, n) => ({
      channel: group(`g${n}`),
      lastSeq: 1,
    }));
    const idle = await start(t, { cursors });
    const connect = await idle.server.received("connect");
    t.equal(connect.resume.length, 1000);
    t.same(idle.seen, []);

    const fixture = await start(t, { cursors });
    for (const id of ["g0", "g1", "g1001"])
      for (const seq of [1, 2, 3]) fixture.store(group(id), seq, old(seq));
    await reconnect(fixture);
    await fixture.server.until("both channels are caught up", () => fixture.seen.length === 4);
    t.same(
      fixture.seen.sort(),
      ["g0 2", "g0 3", "g1 2", "g1 3"],
      "the client reads only the two channels that the server did not resume",
    );
  },
);

t.test("a conversation list that is refused temporarily is requested again", async (t) => {
  const refusals: ErrorCode[] = ["overloaded", "unavailable", "internal"];
  const fixture = await start(t, { maxQueued: 1 }, refusals);
  const { server, client, seen, store } = fixture;
  for (const seq of [1, 2, 3]) store(group("new"), seq);
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  const unanswered = client.presence(["someone"]); // uses up the limit of the app's calls
  unanswered.catch(() => undefined);
  server.sockets.at(-1)?.end(1006);
  const socket = await server.socket(1);
  const live = store(group("new"), 4);
  await server.received("conversations", 0, 1);
  socket.push({ kind: "message", channel: live.channel, message: live });
  await server.until("all messages are delivered", () => seen.length === 4);
  t.same(seen, ["new 1", "new 2", "new 3", "new 4"]);
  t.same(refusals, []);
  t.same(errors, []);
});

t.test(
  "after a reconnect, the client reads the missed messages of channels that do not fit into a CONNECT because their ids are long",
  async (t) => {
    const cursorsWithIds = (length: number) => {
      const channel = (n: number) => group(`${n}-`.padEnd(length, "x"));
      return Array.from({ length: 1000 }, (_, n) => ({
        channel: channel(n),
        lastSeq: 1,
      }));
    };
    const usual = await start(t, { cursors: cursorsWithIds(36) });
    t.equal((await usual.server.received("connect")).resume.length, 1000);

    const cursors = cursorsWithIds(128);
    const fixture = await start(t, { cursors });
    const { resume } = await fixture.server.received("connect");
    t.ok(
      resume.length > 600 && resume.length < 1000,
      `the CONNECT names ${resume.length} of 1000 channels`,
    );
    const newest = cursors.at(-1)?.channel ?? TEAM;
    t.same(resume[0]?.channel, newest);
    const omitted = cursors[999 - resume.length]?.channel ?? TEAM;
    for (const channel of [omitted, newest])
      for (const seq of [1, 2]) fixture.store(channel, seq, old(seq));
    await reconnect(fixture);
    await fixture.server.until("the omitted channel is read", () => fixture.seen.length > 0);
    t.same(fixture.seen, [`${omitted.id} 2`], "the server resumes the newest channel");
  },
);

t.test(
  "a missed message older than one of the client's own messages is delivered even if the connection ends during the catch-up",
  async (t) => {
    let lists = 0;
    const missed = message(1, { messageId: 1001 });
    const server = new ScriptedServer((operation, socket) => {
      const newestId = server.sockets.length === 1 ? 1000 : 1001;
      if (operation.kind === "connect") acknowledge(operation, socket, { newestId });
      if (operation.kind === "send") {
        const ack = { messageId: 1002, messageSeq: 2, clientMsgNo: operation.clientMsgNo };
        socket.reply(operation, { kind: "sendack", ...ack });
      }
      if (operation.kind === "history") {
        const page = { channel: TEAM, headSeq: 2, more: false };
        const messages = [missed].filter(({ messageSeq }) => messageSeq >= operation.fromSeq);
        socket.reply(operation, { kind: "history", ...page, messages });
      }
      if (operation.kind !== "conversations" || lists++ === 0) return;
      const last = message(2, { messageId: 1002, fromUid: "me" });
      const position = { readSeq: 0, deletedSeq: 0, changedAtMs: 0, unread: 0 };
      const conversations = [{ channel: TEAM, headSeq: 2, last, ...position }];
      socket.reply(operation, { kind: "conversations", cursor: undefined, conversations });
    });
    const client = connectTo(t, server);
    const seen: number[] = [];
    client.on("message", ({ messageSeq }) => seen.push(messageSeq));
    await client.ready();
    server.sockets[0]?.end(1006);
    await server.socket(1);
    await client.send(TEAM, "own");
    await server.received("conversations", 0, 1); // the catch-up has begun, and gets no reply
    server.sockets[1]?.end(1006);
    const connect = await server.received("connect", 0, 2);
    t.same(connect.resume, [], "the channel's position is not known");
    await server.until("the missed message", () => seen.length > 0);
    t.same(seen, [1]);
  },
);
