// Background requests of the client: they respect the server's rate limit and do not delay the
// app's calls.

import type { Test } from "tap";
import { type Client, group } from "../../src/client/index.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { t } from "../support/suite.ts";
import { message } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

const CHANNELS = 200;

/** A client that has missed a message in each of `CHANNELS` channels. */
interface BackgroundFixture {
  readonly server: ScriptedServer;
  readonly client: Client;
  readonly socket: ScriptedSocket;
  /**
   * Replies to history request number `n` with the missed message, or refuses it with
   * `rate_limited`.
   */
  answer(n: number, isRefused?: boolean): void;
  readonly seen: Set<string>;
  readonly errors: string[];
}

/**
 * Connects a client that misses one message in each of `CHANNELS` channels. The server replies to
 * presence requests at once; the test replies to history requests.
 */
async function start(t: Test, maxFramesPerSecond = 0): Promise<BackgroundFixture> {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect")
      acknowledge(operation, socket, { limits: { maxFramesPerSecond } });
    if (operation.kind === "presence") socket.reply(operation, { kind: "presence", presence: [] });
  });
  const channels = Array.from({ length: CHANNELS }, (_, n) => group(`g${n}`));
  const cursors = channels.map((channel) => ({ channel, lastSeq: 0 }));
  const client = connectTo(t, server, { cursors, maxQueued: 2 });
  const seen = new Set<string>();
  const errors: string[] = [];
  client.on("message", ({ channel, messageSeq }) => seen.add(`${channel.id} ${messageSeq}`));
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  const socket = await server.socket();
  for (const channel of channels)
    socket.push({ kind: "message", channel, message: message(2, { channel }) });
  const answer: BackgroundFixture["answer"] = (n, isRefused = false) => {
    const request = socket.all("history")[n];
    if (request === undefined) throw new RangeError(`there is no history request ${n}`);
    if (isRefused) refuse(socket, request);
    else replyWithMissed(socket, request);
  };
  return { server, client, socket, answer, seen, errors };
}

function replyWithMissed(
  socket: ScriptedSocket,
  request: Extract<Operation, { readonly kind: "history" }>,
): void {
  const { channel } = request;
  const page = { headSeq: 2, more: false };
  const messages = [message(1, { channel })];
  socket.reply(request, { kind: "history", channel, ...page, messages });
}

function refuse(socket: ScriptedSocket, request: Operation): void {
  const error = { kind: "error", message: "", retryAfterMs: 200 } as const;
  socket.reply(request, { ...error, code: "rate_limited" });
}

/** Waits for several turns of the event loop. */
async function waitTurns(): Promise<void> {
  for (let n = 0; n < 10; n++) await new Promise(setImmediate);
}

t.test(
  "missed messages are read from at most 8 channels at a time, without delaying the app's calls",
  async (t) => {
    const { server, client, socket, answer, seen, errors } = await start(t);
    await server.received("history", 7);
    await waitTurns();
    t.equal(socket.all("history").length, 8);
    await Promise.all([client.presence(["a"]), client.presence(["b"])]);
    for (let n = 0; n < CHANNELS; n++) {
      await server.received("history", n);
      answer(n);
    }
    await server.until("all messages are delivered", () => seen.size === 2 * CHANNELS);
    t.equal(socket.all("history").length, CHANNELS, "each channel is read once");
    t.same(errors, []);
  },
);

t.test(
  "missed messages are read without waiting for the unread counts of all channels",
  async (t) => {
    const position = { headSeq: 2, readSeq: 0, unread: 1, deletedSeq: 0, changedAtMs: 0 };
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind === "history") replyWithMissed(socket, operation);
      if (operation.kind !== "conversation") return;
      const conversation = { ...position, channel: operation.channel, last: undefined };
      socket.reply(operation, { kind: "conversation", conversation });
    });
    const channels = Array.from({ length: CHANNELS }, (_, n) => group(`g${n}`));
    const cursors = channels.map((channel) => ({ channel, lastSeq: 1 }));
    const missed = { channel: group("missed"), lastSeq: 0 };
    const client = connectTo(t, server, { cursors: [...cursors, missed] });
    let counts = 0;
    client.on("unread", () => counts++);
    await client.ready();
    const socket = await server.socket();
    socket.together(() => {
      for (const { channel } of [...cursors, missed])
        socket.push({ kind: "message", channel, message: message(2, { channel }) });
    });
    await server.until("all counts", () => counts > CHANNELS);
    const kinds = socket.received.map(({ kind }) => kind);
    const readsBefore = kinds.slice(0, kinds.indexOf("history")).length;
    t.ok(readsBefore < 20, `${readsBefore} requests are sent before the history request`);
  },
);

t.test(
  "after a refusal with `rate_limited`, all background requests wait for the time that the server sets",
  async (t) => {
    const { server, socket, answer, seen, errors } = await start(t);
    await server.received("history", 7);
    const refusedAt = performance.now();
    answer(0, true);
    for (let n = 1; n < 8; n++) answer(n);
    await server.until("seven channels are read", () => seen.size === 14);
    await waitTurns();
    const sent = socket.all("history").length;
    if (performance.now() - refusedAt < 199) t.equal(sent, 8, "none is sent during the pause");
    await server.received("history", 8);
    t.ok(performance.now() - refusedAt >= 199);
    for (let n = 8; n <= CHANNELS; n++) {
      await server.received("history", n);
      answer(n);
    }
    await server.until("all messages are delivered", () => seen.size === 2 * CHANNELS);
    t.same(errors, []);
  },
);

t.test(
  "the pause of background requests after `rate_limited` ends when the connection ends",
  async (t) => {
    const { server, socket, seen } = await start(t);
    const request = await server.received("history", 7);
    const refusal = { kind: "error", code: "rate_limited", message: "" } as const;
    socket.reply(request, { ...refusal, retryAfterMs: 60_000 });
    socket.end(1006);
    await server.received("connect", 0, 1);
    const channel = group("g3");
    const next = await server.socket(1);
    next.push({ kind: "message", channel, message: message(2, { channel }) });
    replyWithMissed(next, await server.received("history", 0, 1));
    await server.until("both messages are delivered", () => seen.size === 2);
    t.same([...seen], ["g3 1", "g3 2"]);
  },
);

t.test("background requests use at most half of the server's rate limit", async (t) => {
  const { server, seen, answer } = await start(t, 400);
  const from = performance.now();
  for (let n = 0; n < 100; n++) {
    await server.received("history", n);
    answer(n);
  }
  await server.until("100 channels are read", () => seen.size === 200);
  const ms = performance.now() - from;
  t.ok(ms >= 0.9 * (96 / 200) * 1000, `100 requests at 200 per second took ${ms} ms`);
});

t.test(
  "background requests that were not sent before a disconnect are not sent on the next connection",
  async (t) => {
    const { server, socket, seen } = await start(t);
    await server.received("history", 7);
    socket.end(1006);
    await server.received("connect", 0, 1);
    const next = await server.socket(1);
    await waitTurns();
    t.equal(next.all("history").length, 0, "no request of the old connection is sent");
    const channel = group("g3");
    next.push({ kind: "message", channel, message: message(2, { channel }) });
    replyWithMissed(next, await server.received("history", 0, 1));
    await server.until("both messages are delivered", () => seen.size === 2);
    t.same([...seen], ["g3 1", "g3 2"]);
  },
);

t.test("a presence watch that waits for a retry is sent only once after a reconnect", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    const isFirst = server.sockets.length === 1;
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "watch") return;
    const refusal = { code: "unavailable", message: "", retryAfterMs: 50_000 } as const;
    if (isFirst) socket.reply(operation, { kind: "error", ...refusal });
    else socket.reply(operation, { kind: "watch", presence: [] });
  });
  const client = connectTo(t, server);
  await client.ready();
  client.watchPresence(["ann"], () => undefined);
  await server.received("watch");
  await waitTurns();
  server.sockets[0]?.end(4000);
  await server.received("watch", 0, 1);
  t.equal(server.sockets[1]?.all("watch").length, 1);
});
