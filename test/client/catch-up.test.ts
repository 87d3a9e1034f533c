// What came while the client was away in channels its connect could not name.

import type { Test } from "tap";
import type { ErrorCode } from "../../src/broker/errors.ts";
import type { ChannelRef, Message } from "../../src/broker/model.ts";
import { type Client, group, person } from "../../src/client/index.ts";
import type { ConnectOptions } from "../../src/client/options.ts";
import { t } from "../support/suite.ts";
import { message, TEAM } from "./messages.ts";
import { acknowledge, play, ScriptedServer } from "./scripted.ts";

interface Played {
  readonly server: ScriptedServer;
  readonly client: Client;
  readonly seen: string[];
  /** Puts a message into a channel of the server. */
  store(channel: ChannelRef, messageSeq: number, changes?: Partial<Message>): Message;
}

/**
 * A server that keeps channels, and lists them newest message first, two to a page; `refusals` of
 * the list come first.
 */
async function start(
  t: Test,
  options: Partial<ConnectOptions> = {},
  refusals: ErrorCode[] = [],
): Promise<Played> {
  const channels = new Map<string, Message[]>();
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "history") {
      const { channel, fromSeq, toSeq, limit, reverse } = operation;
      const found = (channels.get(channel.id) ?? []).filter(
        ({ messageSeq }) => messageSeq >= fromSeq && (toSeq === 0 || messageSeq <= toSeq),
      );
      const messages = reverse ? found.reverse() : found;
      const page = messages.slice(0, Math.min(limit, 2));
      const more = page.length < messages.length;
      const headSeq = found.length;
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
      const all = [...channels.values()].sort((a, b) => timeOf(b) - timeOf(a));
      const page = all.slice(operation.offset, operation.offset + 2);
      socket.reply(operation, {
        kind: "conversations",
        more: operation.offset + page.length < all.length,
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
  const client = play(t, server, options);
  const seen: string[] = [];
  client.on("message", ({ channel, messageSeq }) => seen.push(`${channel.id} ${messageSeq}`));
  await client.ready();
  const store: Played["store"] = (channel, messageSeq, changes = {}) => {
    const stored = message(messageSeq, { channel, ...changes });
    channels.set(channel.id, [...(channels.get(channel.id) ?? []), stored]);
    return stored;
  };
  return { server, client, seen, store };
}

const timeOf = (stored: readonly Message[]) => stored.at(-1)?.timestampMs ?? 0;

/** Before the scripted connack's server time. */
const OLD = { timestampMs: 500 };

async function comeBack({ server, client }: Played): Promise<void> {
  const next = server.sockets.length;
  server.sockets.at(-1)?.end(1006);
  await server.heard("connect", 0, next);
  await client.ready();
}

t.test(
  "a channel whose first message came meanwhile is read from there, and only from there",
  async (t) => {
    const played = await start(t);
    const { server, seen, store } = played;
    store(group("silent"), 1, OLD);
    store(group("old"), 1, OLD);
    for (const seq of [2, 3, 4, 5, 6]) store(group("old"), seq);
    const peter = { fromUid: "peter" };
    store(person("peter"), 1, peter);
    await comeBack(played);
    await server.until("all", () => seen.length === 6);
    t.same(
      seen.filter((one) => one.startsWith("old")),
      ["old 2", "old 3", "old 4", "old 5", "old 6"],
    );
    t.ok(seen.includes("peter 1"));
    t.notOk(seen.includes("silent 1"));
  },
);

t.test("live messages of such a channel wait for what came before them", async (t) => {
  const played = await start(t);
  const { server, seen, store } = played;
  for (const seq of [1, 2, 3]) store(group("new"), seq);
  const live = message(4, { channel: group("new") });
  const next = server.sockets.length;
  server.sockets.at(-1)?.end(1006);
  await server.heard("connect", 0, next);
  const socket = await server.socket(next);
  socket.push({ kind: "message", channel: live.channel, message: live });
  await server.until("all", () => seen.length === 4);
  t.same(seen, ["new 1", "new 2", "new 3", "new 4"]);
});

t.test("the first connect looks for nothing: channels begin with live messages", async (t) => {
  const { server, seen, store } = await start(t);
  for (const seq of [1, 2]) store(TEAM, seq);
  const socket = await server.socket();
  const live = message(3);
  socket.push({ kind: "message", channel: TEAM, message: live });
  await server.until("the message", () => seen.length === 1);
  t.same(seen, ["team 3"]);
  t.equal(socket.all("conversations").length, 0);
});

t.test("channels beyond what a connect may name are read on", async (t) => {
  const cursors = Array.from({ length: 1002 }, (_, n) => ({
    channel: group(`g${n}`),
    lastSeq: 1,
  }));
  const server = await start(t, { cursors });
  const connect = await server.server.heard("connect");
  t.equal(connect.resume.length, 1000);
  t.same(server.seen, []);

  const played = await start(t, { cursors });
  for (const id of ["g0", "g1", "g1001"])
    for (const seq of [1, 2, 3]) played.store(group(id), seq, OLD);
  await comeBack(played);
  await played.server.until("both", () => played.seen.length === 4);
  t.same(played.seen.sort(), ["g0 2", "g0 3", "g1 2", "g1 3"], "the server resumes the others");
});

t.test("a list that is refused for now is asked for again", async (t) => {
  const refusals: ErrorCode[] = ["overloaded", "unavailable", "internal"];
  const played = await start(t, { maxQueued: 1 }, refusals);
  const { server, client, seen, store } = played;
  for (const seq of [1, 2, 3]) store(group("new"), seq);
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  const unanswered = client.presence(["someone"]); // all the places of the app's calls
  unanswered.catch(() => undefined);
  server.sockets.at(-1)?.end(1006);
  const socket = await server.socket(1);
  const live = store(group("new"), 4);
  await server.heard("conversations", 0, 1);
  socket.push({ kind: "message", channel: live.channel, message: live });
  await server.until("all", () => seen.length === 4);
  t.same(seen, ["new 1", "new 2", "new 3", "new 4"]);
  t.same(refusals, []);
  t.same(errors, []);
});

t.test("channels whose long names do not fit into a connect are read on", async (t) => {
  const named = (length: number) => {
    const name = (n: number) => group(`${n}-`.padEnd(length, "x"));
    return Array.from({ length: 1000 }, (_, n) => ({
      channel: name(n),
      lastSeq: 1,
    }));
  };
  const usual = await start(t, { cursors: named(36) });
  t.equal((await usual.server.heard("connect")).resume.length, 1000);

  const cursors = named(128);
  const played = await start(t, { cursors });
  const { resume } = await played.server.heard("connect");
  t.ok(resume.length > 600 && resume.length < 1000, `${resume.length}`);
  const newest = cursors.at(-1)?.channel ?? TEAM;
  t.same(resume[0]?.channel, newest);
  const left = cursors[999 - resume.length]?.channel ?? TEAM;
  for (const channel of [left, newest]) for (const seq of [1, 2]) played.store(channel, seq, OLD);
  await comeBack(played);
  await played.server.until("the one left out", () => played.seen.length > 0);
  t.same(played.seen, [`${left.id} 2`], "the server resumes the other");
});
