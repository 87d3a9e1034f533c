// Commands: handled once each, acknowledged when handled, given again until then.

import type { Test } from "tap";
import type { Client, ConnectOptions } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { message, TEAM } from "./messages.ts";
import { acknowledge, play, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

interface Played {
  readonly server: ScriptedServer;
  readonly client: Client;
  readonly errors: string[];
  acked(): readonly number[];
}

/**
 * `isDeaf`: acknowledgements are not answered, as if the connection broke. `refusals`: so many are
 * refused for now.
 */
async function start(
  t: Test,
  {
    isDeaf = false,
    refusals = 0,
    ...options
  }: Partial<ConnectOptions> & { isDeaf?: boolean; refusals?: number } = {},
): Promise<Played> {
  let refused = 0;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "commandack" || isDeaf) return;
    refused += 1;
    if (refused > refusals) return socket.reply(operation, { kind: "commandack", count: 1 });
    const code = "rate_limited";
    const refusal = { kind: "error", message: "", retryAfterMs: 5 } as const;
    socket.reply(operation, { ...refusal, code });
  });
  const client = play(t, server, options);
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  const acked = () =>
    server.sockets.flatMap((socket) =>
      socket.all("commandack").flatMap(({ inboxSeqs }) => inboxSeqs),
    );
  return { server, client, errors, acked };
}

function give(socket: ScriptedSocket, ...inboxSeqs: number[]): void {
  for (const inboxSeq of inboxSeqs)
    socket.push({
      kind: "command",
      channel: TEAM,
      inboxSeq,
      message: message(inboxSeq, {
        payload: new TextEncoder().encode(`{"type":99,"cmd":"c${inboxSeq}"}`),
      }),
    });
}

t.test(
  "handlers run one command after the other, each acknowledged when all are through",
  async (t) => {
    const { server, client, acked } = await start(t);
    const log: string[] = [];
    let open = (): void => undefined;
    const opened = new Promise<void>((resolve) => {
      open = resolve;
    });
    client.on("command", async ({ content }) => {
      log.push(`begin ${content?.cmd}`);
      await opened;
      log.push(`end ${content?.cmd}`);
    });
    client.on("command", ({ content }) => log.push(`second ${content?.cmd}`));
    give(await server.socket(), 1, 2, 2);
    await server.until("the first", () => log.length === 1);
    await new Promise(setImmediate);
    t.same(acked(), []);
    open();
    await server.until("both", () => acked().length === 2);
    t.same(acked(), [1, 2]);
    t.same(log, ["begin c1", "end c1", "second c1", "begin c2", "end c2", "second c2"]);
  },
);

t.test("without a handler commands wait", async (t) => {
  const { server, client, acked } = await start(t);
  give(await server.socket(), 1, 2);
  await new Promise((resolve) => setTimeout(resolve, 20));
  t.same(acked(), []);
  const seen: unknown[] = [];
  client.on("command", ({ content }) => seen.push(content?.cmd));
  await server.until("both", () => acked().length === 2);
  t.same(seen, ["c1", "c2"]);
});

t.test("a handler that fails is called again, and does not hold up others", async (t) => {
  const { server, client, acked, errors } = await start(t);
  const seen: unknown[] = [];
  client.on("command", async ({ content }) => {
    seen.push(content?.cmd);
    if (seen.length === 1) throw new Error("not now");
  });
  give(await server.socket(), 1, 2);
  await server.until("both", () => acked().length === 2);
  t.same(seen, ["c1", "c2", "c1"]);
  t.same(acked(), [2, 1]);
  t.same(errors, ["handler_failed"]);
});

t.test(
  "a command that comes again because its acknowledgement was lost is only acknowledged again",
  async (t) => {
    const { server, client, acked } = await start(t, { isDeaf: true });
    const seen: unknown[] = [];
    client.on("command", ({ content }) => seen.push(content?.cmd));
    give(await server.socket(), 1);
    await server.heard("commandack");
    (await server.socket()).end(1006);
    await server.heard("connect", 0, 1);
    await client.ready();
    give(await server.socket(1), 1);
    await server.heard("commandack", 0, 1);
    t.same(seen, ["c1"]);
    t.same(new Set(acked()), new Set([1]));
  },
);

t.test("a command that is only told is given, and not acknowledged", async (t) => {
  const { server, client, acked } = await start(t);
  const seen: unknown[] = [];
  client.on("command", ({ messageId }) => seen.push(messageId));
  const socket = await server.socket();
  give(socket, 0);
  give(socket, 1);
  await server.until("both", () => acked().length === 1);
  t.same(seen, [1000, 1001]);
  t.same(acked(), [1]);
});

t.test(
  "acknowledgements that are refused for now are sent again, and nobody is told",
  async (t) => {
    const played = await start(t, { refusals: 2 });
    const { server, client, errors } = played;
    client.on("command", () => undefined);
    const socket = await server.socket();
    give(socket, 1, 2);
    await server.heard("commandack", 2);
    give(socket, 3);
    await server.until("the last", () => played.acked().includes(3));
    const frames = socket.all("commandack").map(({ inboxSeqs }) => inboxSeqs);
    t.same(frames.slice(1, 3), [frames[0], frames[0]]);
    t.same(new Set(played.acked()), new Set([1, 2, 3]));
    t.same(errors, []);
  },
);
