// Delivery of messages in order, each once, despite gaps, repetitions, lost connections and
// messages that the client itself sends.

import { mock } from "node:test";
import type { Test } from "tap";
import type { ErrorCode } from "../../src/broker/errors.ts";
import type { Message } from "../../src/broker/model.ts";
import type { Client, ConnectOptions } from "../../src/client/index.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { live, message, messages, range, TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

/** A client, and a server with a message log. */
interface SequencerFixture {
  readonly server: ScriptedServer;
  readonly client: Client;
  /** Seqs of the messages that were delivered to the app. */
  readonly seen: number[];
  /** Messages that the server returns as history. */
  readonly log: Message[];
  readonly errors: string[];
  socket: ScriptedSocket;
}

/**
 * Connects a client to a server that returns history from its log, in pages of 3. It refuses the
 * first history requests with the codes of `refusals`.
 */
async function start(
  t: Test,
  options: Partial<ConnectOptions> = {},
  refusals: ErrorCode[] = [],
): Promise<SequencerFixture> {
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
    const inRange = log.filter(({ messageSeq }) => messageSeq >= fromSeq && messageSeq <= toSeq);
    socket.reply(operation, {
      kind: "history",
      channel,
      headSeq: log.at(-1)?.messageSeq ?? 0,
      more: inRange.length > 3,
      messages: inRange.slice(0, 3),
    });
  });
  const client = connectTo(t, server, options);
  const seen: number[] = [];
  const errors: string[] = [];
  client.on("message", ({ messageSeq }) => seen.push(messageSeq));
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  const socket = await server.socket();
  return { server, client, seen, log, errors, socket };
}

/** Waits until the expected number of messages has been delivered. */
async function waitForMessages(
  { server, seen }: SequencerFixture,
  ...expected: number[]
): Promise<void> {
  const description = `${expected} (so far ${seen})`;
  await server.until(description, () => seen.length >= expected.length);
}

t.test(
  "a stored message that arrives twice is delivered once, and an unstored message is delivered each time",
  async (t) => {
    const fixture = await start(t);
    const unstored = message(0);
    for (const pushed of [...messages(4, 6), message(5), unstored, unstored])
      fixture.socket.push(live(pushed));
    fixture.socket.push(live(message(7)));
    await waitForMessages(fixture, 4, 5, 6, 0, 0, 7);
    t.same(fixture.seen, [4, 5, 6, 0, 0, 7]);
    t.equal(fixture.socket.all("history").length, 0);
  },
);

t.test(
  "the messages in a seq gap are read from history and delivered before later messages",
  async (t) => {
    const fixture = await start(t);
    fixture.log.push(...messages(1, 20));
    for (const seq of [1, 2, 14, 15, 20]) fixture.socket.push(live(message(seq)));
    const expected = fixture.log.map(({ messageSeq }) => messageSeq);
    await waitForMessages(fixture, ...expected);
    t.same(fixture.seen, expected);
  },
);

t.test("expired messages in a seq gap do not delay later messages", async (t) => {
  const fixture = await start(t);
  fixture.log.push(message(4));
  for (const seq of [1, 7]) fixture.socket.push(live(message(seq)));
  await waitForMessages(fixture, 1, 4, 7);
  t.same(fixture.seen, [1, 4, 7]);
});

t.test(
  "a seq gap is skipped if the request for its messages is refused permanently, and the request is repeated if it is refused temporarily",
  async (t) => {
    const skipped = await start(t, {}, ["not_in_channel"]);
    for (const seq of [1, 3]) skipped.socket.push(live(message(seq)));
    await waitForMessages(skipped, 1, 3);
    t.same(skipped.seen, [1, 3]);

    const retried = await start(t, {}, ["unavailable"]);
    retried.log.push(...messages(1, 3));
    for (const seq of [1, 3]) retried.socket.push(live(message(seq)));
    await waitForMessages(retried, 1, 2, 3);
    t.same(retried.seen, [1, 2, 3]);
  },
);

t.test(
  "history pages without a new message are requested with growing delays, and one error event is emitted",
  async (t) => {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind !== "history") return;
      const { channel } = operation;
      const page = { messages: [], more: true, headSeq: 9 };
      socket.reply(operation, { kind: "history", channel, ...page });
    });
    const client = connectTo(t, server);
    const errors: string[] = [];
    client.on("error", ({ code }) => errors.push(code));
    await client.ready();
    const socket = await server.socket();
    mock.timers.enable({ apis: ["setTimeout"] });
    t.teardown(() => mock.timers.reset());
    const requestCounts: number[] = [];
    for (const seq of [1, 9]) socket.push(live(message(seq)));
    for (const ms of [0, 499, 1, 999, 1, 1999, 1]) {
      mock.timers.tick(ms);
      for (let n = 0; n < 20; n++) await new Promise(setImmediate);
      requestCounts.push(socket.all("history").length);
    }
    t.same(requestCounts, [1, 1, 2, 2, 3, 3, 4]);
    t.same(errors, ["internal"]);
  },
);

t.test(
  "a pushed range of messages is delivered from the first message after the client's cursor, and expired messages at its end are skipped",
  async (t) => {
    const fixture = await start(t, { cursors: [{ channel: TEAM, lastSeq: 3 }] });
    const { resume } = await fixture.server.received("connect");
    t.same(resume, [{ channel: TEAM, lastSeq: 3, lastId: 0 }]);
    fixture.socket.push(range(2, 6));
    fixture.socket.push(range(6, 9, []));
    fixture.socket.push(live(message(10)));
    await waitForMessages(fixture, 4, 5, 6, 10);
    t.same(fixture.seen, [4, 5, 6, 10]);
    const cursor = { channel: TEAM, lastSeq: 10, lastId: 1010 };
    t.same(fixture.client.cursors(), [cursor]);
  },
);

t.test(
  "the client's own messages are not delivered and leave no gap, whenever their SENDACK arrives",
  async (t) => {
    const fixture = await start(t);
    const { client, server, socket } = fixture;
    socket.push(live(message(1)));
    const sent = client.send(TEAM, "mine", { clientMsgNo: "own" });
    const send = await server.received("send");
    socket.push(live(message(3)));
    socket.reply(send, {
      kind: "sendack",
      messageId: 9,
      messageSeq: 2,
      clientMsgNo: "own",
    });
    t.equal((await sent).messageSeq, 2);
    await waitForMessages(fixture, 1, 3);
    t.same(fixture.seen, [1, 3]);
    t.equal(socket.all("history").length, 0);

    const lost = client.send(TEAM, "mine too", { clientMsgNo: "own2" });
    await server.received("send", 1);
    socket.end(4000);
    const second = await server.socket(1);
    const repeated = await server.received("send", 0, 1);
    t.equal(repeated.clientMsgNo, "own2");
    const own = message(4, { fromUid: "me", clientMsgNo: "own2" });
    second.push(range(3, 5, [own, message(5)]));
    second.reply(repeated, {
      kind: "sendack",
      messageId: 1004,
      messageSeq: 4,
      clientMsgNo: "own2",
    });
    t.equal((await lost).messageSeq, 4);
    second.push(live(message(6)));
    await waitForMessages(fixture, 1, 3, 5, 6);
    t.same(fixture.seen, [1, 3, 5, 6]);
    const elsewhere = message(7, { fromUid: "me", clientMsgNo: "phone" });
    second.push(live(elsewhere));
    await waitForMessages(fixture, 1, 3, 5, 6, 7);
    t.same(fixture.seen.at(-1), 7, "a message from the user's other device is delivered");
  },
);

t.test(
  "a SENDACK in a channel without a cursor does not hide an earlier message that arrives later",
  async (t) => {
    const fixture = await start(t);
    const { client, server, socket } = fixture;
    const sent = client.send(TEAM, "first");
    socket.reply(await server.received("send"), {
      kind: "sendack",
      messageId: 9,
      messageSeq: 6,
      clientMsgNo: "x",
    });
    await sent;
    t.same(client.cursors(), [{ channel: TEAM, lastSeq: 5, lastId: 9 }]);
    for (const seq of [5, 7]) socket.push(live(message(seq)));
    await waitForMessages(fixture, 5, 7);
    t.same(fixture.seen, [5, 7]);
    t.same(client.cursors(), [{ channel: TEAM, lastSeq: 7, lastId: 1007 }]);
  },
);

t.test(
  "a channel whose resume is denied is removed from the cursors, and an error event is emitted",
  async (t) => {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind !== "connect") return;
      acknowledge(operation, socket, { status: "denied" });
    });
    const client = connectTo(t, server, {
      cursors: [{ channel: TEAM, lastSeq: 9 }],
    });
    const errors: string[] = [];
    client.on("error", ({ code }) => errors.push(code));
    await client.ready();
    await server.until("the error", () => errors.length > 0);
    t.same(errors, ["not_in_channel"]);
    t.same(client.cursors(), []);
  },
);

t.test(
  "each message is delivered once and in order despite random losses, repetitions and disconnects",
  async (t) => {
    for (let seed = 1; seed <= 20; seed++) {
      const random = new Random(seed);
      const fixture = await start(t, {
        cursors: [{ channel: TEAM, lastSeq: 0 }],
      });
      const all = messages(1, 60);
      for (const next of all) {
        fixture.log.push(next);
        const { socket } = fixture;
        if (random.below(12) === 0) {
          const connection = fixture.server.sockets.length;
          socket.end(1006);
          fixture.socket = await fixture.server.socket(connection);
          const [point] = (await fixture.server.received("connect", 0, connection)).resume;
          const after = point?.lastSeq ?? 0;
          fixture.socket.push(range(after, next.messageSeq));
        } else if (random.below(3) > 0 || next.messageSeq === all.length) {
          for (let n = random.below(2); n >= 0; n--) socket.push(live(next));
        }
        if (random.flip()) await new Promise(setImmediate);
      }
      fixture.socket.push(live(message(60)));
      const expected = all.map(({ messageSeq }) => messageSeq);
      await waitForMessages(fixture, ...expected);
      t.same(fixture.seen, expected, `messages are delivered in order with seed ${seed}`);
      await fixture.client.close();
    }
  },
);
