// What the client asks on its own account: never more than a server likes, never in the way of the
// app.

import type { Test } from "tap";
import { type Client, group } from "../../src/client/index.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { t } from "../support/suite.ts";
import { message } from "./messages.ts";
import { acknowledge, play, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

const CHANNELS = 200;

interface Played {
  readonly server: ScriptedServer;
  readonly client: Client;
  readonly socket: ScriptedSocket;
  /** Answers HISTORY number `n`; `isRefused`: for now. */
  answer(n: number, isRefused?: boolean): void;
  readonly seen: Set<string>;
  readonly errors: string[];
}

/**
 * A client that misses a message in each of 200 channels; presence is answered at once, history by
 * the test.
 */
async function start(t: Test, maxFramesPerSecond = 0): Promise<Played> {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect")
      acknowledge(operation, socket, { limits: { maxFramesPerSecond } });
    if (operation.kind === "presence") socket.reply(operation, { kind: "presence", presence: [] });
  });
  const channels = Array.from({ length: CHANNELS }, (_, n) => group(`g${n}`));
  const cursors = channels.map((channel) => ({ channel, lastSeq: 0 }));
  const client = play(t, server, { cursors, maxQueued: 2 });
  const seen = new Set<string>();
  const errors: string[] = [];
  client.on("message", ({ channel, messageSeq }) => seen.add(`${channel.id} ${messageSeq}`));
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  const socket = await server.socket();
  for (const channel of channels)
    socket.push({ kind: "message", channel, message: message(2, { channel }) });
  const answer: Played["answer"] = (n, isRefused = false) => {
    const asked = socket.all("history")[n];
    if (asked === undefined) throw new RangeError(`no HISTORY ${n}`);
    if (isRefused) refuse(socket, asked);
    else give(socket, asked);
  };
  return { server, client, socket, answer, seen, errors };
}

function give(
  socket: ScriptedSocket,
  asked: Extract<Operation, { readonly kind: "history" }>,
): void {
  const { channel } = asked;
  const page = { headSeq: 2, more: false };
  const messages = [message(1, { channel })];
  socket.reply(asked, { kind: "history", channel, ...page, messages });
}

function refuse(socket: ScriptedSocket, asked: Operation): void {
  const error = { kind: "error", message: "", retryAfterMs: 200 } as const;
  socket.reply(asked, { ...error, code: "rate_limited" });
}

async function turns(): Promise<void> {
  for (let n = 0; n < 10; n++) await new Promise(setImmediate);
}

t.test("missed messages are fetched a few at a time, beside the app's calls", async (t) => {
  const { server, client, socket, answer, seen, errors } = await start(t);
  await server.heard("history", 7);
  await turns();
  t.equal(socket.all("history").length, 8);
  await Promise.all([client.presence(["a"]), client.presence(["b"])]);
  for (let n = 0; n < CHANNELS; n++) {
    await server.heard("history", n);
    answer(n);
  }
  await server.until("all", () => seen.size === 2 * CHANNELS);
  t.equal(socket.all("history").length, CHANNELS, "each once");
  t.same(errors, []);
});

t.test("when the server has enough, all wait for as long as it says", async (t) => {
  const { server, socket, answer, seen, errors } = await start(t);
  await server.heard("history", 7);
  const refusedAt = performance.now();
  answer(0, true);
  for (let n = 1; n < 8; n++) answer(n);
  await server.until("the seven", () => seen.size === 14);
  await turns();
  t.equal(socket.all("history").length, 8, "nothing leaves now");
  await server.heard("history", 8);
  t.ok(performance.now() - refusedAt >= 199);
  for (let n = 8; n <= CHANNELS; n++) {
    await server.heard("history", n);
    answer(n);
  }
  await server.until("all", () => seen.size === 2 * CHANNELS);
  t.same(errors, []);
});

t.test("half of what a server takes in a second is left to the app", async (t) => {
  const { server, seen, answer } = await start(t, 400);
  const from = performance.now();
  for (let n = 0; n < 100; n++) {
    await server.heard("history", n);
    answer(n);
  }
  await server.until("them", () => seen.size === 200);
  const ms = performance.now() - from;
  t.ok(ms >= 0.9 * (96 / 200) * 1000, `${ms} ms for 100 of 200 a second`);
});

t.test("what waits for its turn when the connection ends is asked on the next one", async (t) => {
  const { server, socket, seen } = await start(t);
  await server.heard("history", 7);
  socket.end(1006);
  await server.heard("connect", 0, 1);
  const next = await server.socket(1);
  await turns();
  t.equal(next.all("history").length, 0, "nothing of the old connection");
  const channel = group("g3");
  const one = message(2, { channel });
  next.push({ kind: "message", channel, message: one });
  give(next, await server.heard("history", 0, 1));
  await server.until("both", () => seen.size === 2);
  t.same([...seen], ["g3 1", "g3 2"]);
});
