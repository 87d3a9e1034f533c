// Messages in order, each once: gaps, repeats, own messages and lost connections.

import { mock } from "node:test";
import type { Test } from "tap";
import type { ErrorCode } from "../../src/broker/errors.ts";
import type { Message } from "../../src/broker/model.ts";
import type { Client, ConnectOptions } from "../../src/client/index.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { live, message, messages, run, TEAM } from "./messages.ts";
import { acknowledge, play, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

interface Played {
  readonly server: ScriptedServer;
  readonly client: Client;
  /** The seqs of what the app was given. */
  readonly seen: number[];
  /** What the server answers history from. */
  readonly log: Message[];
  readonly errors: string[];
  socket: ScriptedSocket;
}

/**
 * A client whose server answers history from a log of its own, in pages of 3; `refusals` come
 * first.
 */
async function start(
  t: Test,
  options: Partial<ConnectOptions> = {},
  refusals: ErrorCode[] = [],
): Promise<Played> {
  const log: Message[] = [];
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "history") return;
    const code = refusals.shift();
    if (code !== undefined)
      return socket.reply(operation, {
        kind: "error",
        code,
        message: "",
        retryAfterMs: 1,
      });
    const { channel, fromSeq, toSeq } = operation;
    const found = log.filter(({ messageSeq }) => messageSeq >= fromSeq && messageSeq <= toSeq);
    socket.reply(operation, {
      kind: "history",
      channel,
      headSeq: log.at(-1)?.messageSeq ?? 0,
      more: found.length > 3,
      messages: found.slice(0, 3),
    });
  });
  const client = play(t, server, options);
  const seen: number[] = [];
  const errors: string[] = [];
  client.on("message", ({ messageSeq }) => seen.push(messageSeq));
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  const socket = await server.socket();
  return { server, client, seen, log, errors, socket };
}

async function sees({ server, seen }: Played, ...expected: number[]): Promise<void> {
  const what = `${expected} (so far ${seen})`;
  await server.until(what, () => seen.length >= expected.length);
}

t.test("what comes twice is given once, unstored messages each time", async (t) => {
  const played = await start(t);
  const unstored = message(0);
  for (const one of [...messages(4, 6), message(5), unstored, unstored])
    played.socket.push(live(one));
  played.socket.push(live(message(7)));
  await sees(played, 4, 5, 6, 0, 0, 7);
  t.same(played.seen, [4, 5, 6, 0, 0, 7]);
  t.equal(played.socket.all("history").length, 0);
});

t.test("a gap is read from history before what lies behind it is given", async (t) => {
  const played = await start(t);
  played.log.push(...messages(1, 20));
  for (const seq of [1, 2, 14, 15, 20]) played.socket.push(live(message(seq)));
  const expected = played.log.map((one) => one.messageSeq);
  await sees(played, ...expected);
  t.same(played.seen, expected);
});

t.test("what has expired inside a gap is not waited for", async (t) => {
  const played = await start(t);
  played.log.push(message(4));
  for (const seq of [1, 7]) played.socket.push(live(message(seq)));
  await sees(played, 1, 4, 7);
  t.same(played.seen, [1, 4, 7]);
});

t.test(
  "a gap that is refused for good is passed, one that is not is asked for again",
  async (t) => {
    const refused = await start(t, {}, ["not_in_channel"]);
    for (const seq of [1, 3]) refused.socket.push(live(message(seq)));
    await sees(refused, 1, 3);
    t.same(refused.seen, [1, 3]);

    const retried = await start(t, {}, ["unavailable"]);
    retried.log.push(...messages(1, 3));
    for (const seq of [1, 3]) retried.socket.push(live(message(seq)));
    await sees(retried, 1, 2, 3);
    t.same(retried.seen, [1, 2, 3]);
  },
);

t.test(
  "a server whose pages bring nothing is asked ever more rarely, and it is told once",
  async (t) => {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind !== "history") return;
      const { channel } = operation;
      const page = { messages: [], more: true, headSeq: 9 };
      socket.reply(operation, { kind: "history", channel, ...page });
    });
    const client = play(t, server);
    const errors: string[] = [];
    client.on("error", ({ code }) => errors.push(code));
    await client.ready();
    const socket = await server.socket();
    mock.timers.enable({ apis: ["setTimeout"] });
    t.teardown(() => mock.timers.reset());
    const asked: number[] = [];
    for (const seq of [1, 9]) socket.push(live(message(seq)));
    for (const ms of [0, 499, 1, 999, 1, 1999, 1]) {
      mock.timers.tick(ms);
      for (let n = 0; n < 20; n++) await new Promise(setImmediate);
      asked.push(socket.all("history").length);
    }
    t.same(asked, [1, 1, 2, 2, 3, 3, 4]);
    t.same(errors, ["internal"]);
  },
);

t.test(
  "runs are given from where the client stands, and pass what expired at their end",
  async (t) => {
    const played = await start(t, { cursors: [{ channel: TEAM, lastSeq: 3 }] });
    const { resume } = await played.server.heard("connect");
    t.same(resume, [{ channel: TEAM, lastSeq: 3, lastId: 0 }]);
    played.socket.push(run(2, 6));
    played.socket.push(run(6, 9, []));
    played.socket.push(live(message(10)));
    await sees(played, 4, 5, 6, 10);
    t.same(played.seen, [4, 5, 6, 10]);
    const cursor = { channel: TEAM, lastSeq: 10, lastId: 1010 };
    t.same(played.client.cursors(), [cursor]);
  },
);

t.test("own messages are no gap and no message, whenever their receipt comes", async (t) => {
  const played = await start(t);
  const { client, server, socket } = played;
  socket.push(live(message(1)));
  const sent = client.send(TEAM, "mine", { clientMsgNo: "own" });
  const send = await server.heard("send");
  socket.push(live(message(3)));
  socket.reply(send, {
    kind: "sendack",
    messageId: 9,
    messageSeq: 2,
    clientMsgNo: "own",
  });
  t.equal((await sent).messageSeq, 2);
  await sees(played, 1, 3);
  t.same(played.seen, [1, 3]);
  t.equal(socket.all("history").length, 0);

  const lost = client.send(TEAM, "mine too", { clientMsgNo: "own2" });
  await server.heard("send", 1);
  socket.end(1006);
  const again = await server.socket(1);
  const repeated = await server.heard("send", 0, 1);
  t.equal(repeated.clientMsgNo, "own2");
  const own = message(4, { fromUid: "me", clientMsgNo: "own2" });
  again.push(run(3, 5, [own, message(5)]));
  again.reply(repeated, {
    kind: "sendack",
    messageId: 1004,
    messageSeq: 4,
    clientMsgNo: "own2",
  });
  t.equal((await lost).messageSeq, 4);
  again.push(live(message(6)));
  await sees(played, 1, 3, 5, 6);
  t.same(played.seen, [1, 3, 5, 6]);
  const elsewhere = message(7, { fromUid: "me", clientMsgNo: "phone" });
  again.push(live(elsewhere));
  await sees(played, 1, 3, 5, 6, 7);
  t.same(played.seen.at(-1), 7, "what another device sent is given");
});

t.test(
  "a receipt in a channel not seen before hides no earlier message that is on its way",
  async (t) => {
    const played = await start(t);
    const { client, server, socket } = played;
    const sent = client.send(TEAM, "first");
    socket.reply(await server.heard("send"), {
      kind: "sendack",
      messageId: 9,
      messageSeq: 6,
      clientMsgNo: "x",
    });
    await sent;
    t.same(client.cursors(), [{ channel: TEAM, lastSeq: 5, lastId: 9 }]);
    for (const seq of [5, 7]) socket.push(live(message(seq)));
    await sees(played, 5, 7);
    t.same(played.seen, [5, 7]);
    t.same(client.cursors(), [{ channel: TEAM, lastSeq: 7, lastId: 1007 }]);
  },
);

t.test("a channel that may not be resumed is forgotten, and the app is told", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    acknowledge(operation, socket, { status: "denied" });
  });
  const client = play(t, server, {
    cursors: [{ channel: TEAM, lastSeq: 9 }],
  });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  await server.until("the error", () => errors.length > 0);
  t.same(errors, ["not_in_channel"]);
  t.same(client.cursors(), []);
});

t.test(
  "whatever is lost, repeated or cut off, each message is given once and in order",
  async (t) => {
    for (let seed = 1; seed <= 20; seed++) {
      const random = new Random(seed);
      const played = await start(t, {
        cursors: [{ channel: TEAM, lastSeq: 0 }],
      });
      const all = messages(1, 60);
      for (const one of all) {
        played.log.push(one);
        const { socket } = played;
        if (random.below(12) === 0) {
          const next = played.server.sockets.length;
          socket.end(1006);
          played.socket = await played.server.socket(next);
          const [point] = (await played.server.heard("connect", 0, next)).resume;
          const after = point?.lastSeq ?? 0;
          played.socket.push(run(after, one.messageSeq));
        } else if (random.below(3) > 0 || one.messageSeq === all.length) {
          for (let n = random.below(2); n >= 0; n--) socket.push(live(one));
        }
        if (random.flip()) await new Promise(setImmediate);
      }
      played.socket.push(live(message(60)));
      const expected = all.map((one) => one.messageSeq);
      await sees(played, ...expected);
      t.same(played.seen, expected, `seed ${seed}`);
      await played.client.close();
    }
  },
);
