// Commands: each command is handled once, acknowledged after it was handled, and delivered again
// until it is acknowledged.

import type { Test } from "tap";
import type { Client, ConnectOptions } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { message, TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

/** A client, and what its server received from it. */
interface CommandFixture {
  readonly server: ScriptedServer;
  readonly client: Client;
  readonly errors: string[];
  /** Returns the acknowledged inbox seqs, in order. */
  acked(): readonly number[];
}

/**
 * Connects a client. With `ignoresAcks` the server does not reply to acknowledgements, as if the
 * connection were broken. It refuses the first `refusals` acknowledgements with `rate_limited`.
 */
async function start(
  t: Test,
  {
    ignoresAcks = false,
    refusals = 0,
    ...options
  }: Partial<ConnectOptions> & { ignoresAcks?: boolean; refusals?: number } = {},
): Promise<CommandFixture> {
  let acks = 0;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "commandack" || ignoresAcks) return;
    acks += 1;
    if (acks > refusals) return socket.reply(operation, { kind: "commandack", count: 1 });
    const code = "rate_limited";
    const refusal = { kind: "error", message: "", retryAfterMs: 5 } as const;
    socket.reply(operation, { ...refusal, code });
  });
  const client = connectTo(t, server, options);
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  const acked = () =>
    server.sockets.flatMap((socket) =>
      socket.all("commandack").flatMap(({ inboxSeqs }) => inboxSeqs),
    );
  return { server, client, errors, acked };
}

function pushCommands(socket: ScriptedSocket, ...inboxSeqs: number[]): void {
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
  "commands are handled one after the other, and each is acknowledged after all handlers have finished",
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
    pushCommands(await server.socket(), 1, 2, 2);
    await server.until("the first handler has started", () => log.length === 1);
    await new Promise(setImmediate);
    t.same(acked(), []);
    open();
    await server.until("both commands are acknowledged", () => acked().length === 2);
    t.same(acked(), [1, 2]);
    t.same(log, ["begin c1", "end c1", "second c1", "begin c2", "end c2", "second c2"]);
  },
);

t.test("commands wait until the app adds a handler for commands", async (t) => {
  const { server, client, acked } = await start(t);
  pushCommands(await server.socket(), 1, 2);
  await new Promise((resolve) => setTimeout(resolve, 20));
  t.same(acked(), []);
  const seen: unknown[] = [];
  client.on("command", ({ content }) => seen.push(content?.cmd));
  await server.until("both commands are acknowledged", () => acked().length === 2);
  t.same(seen, ["c1", "c2"]);
});

t.test(
  "a command whose handler fails is handled again and does not delay other commands",
  async (t) => {
    const { server, client, acked, errors } = await start(t);
    const seen: unknown[] = [];
    client.on("command", async ({ content }) => {
      seen.push(content?.cmd);
      if (seen.length === 1) throw new Error("not now");
    });
    pushCommands(await server.socket(), 1, 2);
    await server.until("both commands are acknowledged", () => acked().length === 2);
    t.same(seen, ["c1", "c2", "c1"]);
    t.same(acked(), [2, 1]);
    t.same(errors, ["handler_failed"]);
  },
);

t.test(
  "a command that is delivered again after a lost acknowledgement is acknowledged but not handled again",
  async (t) => {
    const { server, client, acked } = await start(t, { ignoresAcks: true });
    const seen: unknown[] = [];
    client.on("command", ({ content }) => seen.push(content?.cmd));
    pushCommands(await server.socket(), 1);
    await server.received("commandack");
    (await server.socket()).end(1006);
    await server.received("connect", 0, 1);
    await client.ready();
    pushCommands(await server.socket(1), 1);
    await server.received("commandack", 0, 1);
    t.same(seen, ["c1"]);
    t.same(new Set(acked()), new Set([1]));
  },
);

t.test("a command without an inbox position is handled and not acknowledged", async (t) => {
  const { server, client, acked } = await start(t);
  const seen: unknown[] = [];
  client.on("command", ({ messageId }) => seen.push(messageId));
  const socket = await server.socket();
  pushCommands(socket, 0);
  pushCommands(socket, 1);
  await server.until("the second command is acknowledged", () => acked().length === 1);
  t.same(seen, [1000, 1001]);
  t.same(acked(), [1]);
});

t.test(
  "if the acknowledgement of a command is refused temporarily, it is sent again without an error event",
  async (t) => {
    const fixture = await start(t, { refusals: 2 });
    const { server, client, errors } = fixture;
    client.on("command", () => undefined);
    const socket = await server.socket();
    pushCommands(socket, 1, 2);
    await server.received("commandack", 2);
    pushCommands(socket, 3);
    await server.until("the last command is acknowledged", () => fixture.acked().includes(3));
    const frames = socket.all("commandack").map(({ inboxSeqs }) => inboxSeqs);
    t.same(frames.slice(1, 3), [frames[0], frames[0]]);
    t.same(new Set(fixture.acked()), new Set([1, 2, 3]));
    t.same(errors, []);
  },
);
