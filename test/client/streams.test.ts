// Streams as the app reads them: whatever comes in whatever pieces, the text is the stream's,
// without a gap or a repeat.

import { mock } from "node:test";
import type { Test } from "tap";
import type { ErrorCode } from "../../src/broker/errors.ts";
import type { ChannelEvent, StreamSnapshot } from "../../src/broker/model.ts";
import type { Client, ReceivedEvent, Stream } from "../../src/client/index.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { messageOf, Script, TEAM } from "./messages.ts";
import { acknowledge, play, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

const SCRIPT = new Script(["Once ", "upon ", undefined, "a ", "ti𝄞e"]);
const ALL = SCRIPT.events.length;

const event = (one: ChannelEvent) => ({ kind: "event", channel: TEAM, event: one }) as const;
const snapshot = (nextIndex: number) =>
  ({
    kind: "stream",
    channel: TEAM,
    snapshot: SCRIPT.snapshot(nextIndex),
  }) as const;

interface Played {
  readonly server: ScriptedServer;
  readonly client: Client;
  readonly streams: Stream[];
  readonly events: ReceivedEvent[];
  readonly socket: ScriptedSocket;
}

/** A client whose server answers STREAM with what `stands` says. */
async function start(
  t: Test,
  stands: () => StreamSnapshot | ErrorCode | undefined = () => undefined,
): Promise<Played> {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "cancel")
      socket.reply(operation, { kind: "cancel", state: "cancelled" });
    if (operation.kind !== "stream") return;
    const answer = stands();
    if (typeof answer === "string")
      socket.reply(operation, {
        kind: "error",
        code: answer,
        message: "",
        retryAfterMs: 0,
      });
    else if (answer !== undefined)
      socket.reply(operation, {
        kind: "stream",
        channel: TEAM,
        snapshot: answer,
      });
  });
  const client = play(t, server);
  const streams: Stream[] = [];
  const events: ReceivedEvent[] = [];
  client.on("stream", (stream) => streams.push(stream));
  client.on("event", (one) => events.push(one));
  await client.ready();
  return { server, client, streams, events, socket: await server.socket() };
}

async function read(stream: AsyncIterable<string> | undefined): Promise<string> {
  let text = "";
  for await (const piece of stream ?? []) text += piece;
  return text;
}

async function shown({ server, streams }: Played): Promise<Stream> {
  await server.until("a stream", () => streams.length > 0);
  return streams[0] as Stream; // just counted
}

t.test("a stream from its start: message, text, tool calls, end", async (t) => {
  const played = await start(t);
  const { client, socket, events } = played;
  const inMessage = new Promise<Stream | undefined>((resolve) =>
    client.on("message", ({ stream }) => resolve(stream)),
  );
  const first = messageOf(SCRIPT.snapshot(0));
  socket.push({ kind: "message", channel: TEAM, message: first });
  for (const one of SCRIPT.events) socket.push(event(one));
  const stream = await shown(played);
  t.equal(await inMessage, stream, "one object");
  t.equal(await read(stream), SCRIPT.text());
  t.same(await stream.finished, { state: "closed", text: SCRIPT.text() });
  t.match(stream, { startData: "begin", endData: "end", fromUid: "bot" });
  t.match(stream, { messageId: 77, messageSeq: 7, clientMsgNo: "s" });
  t.same(
    stream.notes.map((note) => note.data),
    ["tool 2"],
  );
  t.same(
    events.map((one) => [one.data, one.stream === stream]),
    [["tool 2", true]],
  );
  t.equal(await read(stream), SCRIPT.text(), "read again");
  t.equal(await read(stream.pieces("now")), "", "nothing more comes");
});

t.test("events without a stream are given as they are", async (t) => {
  const { client, socket, server, events } = await start(t);
  const custom = {
    ...SCRIPT.at(1),
    type: "typing",
    data: "{}",
    stream: undefined,
  };
  socket.push(event(custom));
  await server.until("an event", () => events.length === 1);
  t.match(events[0], { type: "typing", data: "{}", eventId: "e1" });
  t.match(events[0], { channel: TEAM, fromUid: "bot", stream: undefined });
  t.equal(client.status, "online");
});

t.test("who comes late has the text so far, then what follows", async (t) => {
  const played = await start(t);
  played.socket.push(snapshot(4));
  const stream = await shown(played);
  t.equal(stream.text, SCRIPT.text(4));
  const live = read(stream.pieces("now"));
  const all = read(stream);
  for (let n = 4; n < ALL; n++) played.socket.push(event(SCRIPT.at(n)));
  t.equal(await live, SCRIPT.text().slice(SCRIPT.text(4).length));
  t.equal(await all, SCRIPT.text());
  t.same(played.events, [], "earlier tool calls are in its notes");
});

t.test("merged content is taken whole, in part, or not at all", async (t) => {
  const played = await start(t);
  const { socket } = played;
  socket.push(event(SCRIPT.at(0)));
  socket.push(event(SCRIPT.at(1)));
  socket.push(event(SCRIPT.merged(1, 3)));
  socket.push(event(SCRIPT.merged(1, 3)));
  socket.push(event(SCRIPT.at(2)));
  for (let n = 3; n < ALL; n++) socket.push(event(SCRIPT.at(n)));
  t.equal(await read(await shown(played)), SCRIPT.text());
  t.equal(socket.all("stream").length, 0, "nothing had to be asked for");
});

t.test(
  "a gap is asked for; what comes meanwhile waits; old snapshots change nothing",
  async (t) => {
    const played = await start(t);
    const { socket, server } = played;
    for (const n of [0, 1, 4]) socket.push(event(SCRIPT.at(n)));
    const asked = await server.heard("stream");
    socket.push(event(SCRIPT.at(5)));
    socket.push(snapshot(1));
    socket.reply(asked, snapshot(4));
    socket.push(event(SCRIPT.at(6)));
    const stream = await shown(played);
    t.equal(await read(stream), SCRIPT.text());
    t.equal(stream.state, "closed");
    t.equal(socket.all("stream").length, 1);
    t.equal(played.events.length, 1, "the tool call inside the gap is told");
  },
);

t.test(
  "after a reconnect open streams are asked for, also those that ended meanwhile",
  async (t) => {
    let stands = 3;
    const played = await start(t, () => SCRIPT.snapshot(stands));
    played.socket.push(snapshot(2));
    const stream = await shown(played);
    const text = read(stream);
    stands = ALL;
    played.socket.end(1006);
    t.equal(await text, SCRIPT.text());
    t.same(await stream.finished, { state: "closed", text: SCRIPT.text() });
    t.equal(played.events.length, 1, "the tool call of the time away");
    played.server.sockets[1]?.end(1006);
    await played.server.heard("connect", 0, 2);
    await played.client.ready();
    t.equal(played.server.sockets[2]?.all("stream").length, 0, "it is over");
  },
);

t.test("streamOf finds active and ended streams, once for all who ask", async (t) => {
  let stands = 2;
  const { client, socket } = await start(t, () => SCRIPT.snapshot(stands));
  const [one, other] = await Promise.all([client.streamOf(TEAM, "s"), client.streamOf(TEAM, "s")]);
  t.equal(one, other);
  t.equal(one.text, SCRIPT.text(2));
  t.equal(socket.all("stream").length, 1);
  t.equal(await client.streamOf(TEAM, "s"), one, "it is known now");
  t.equal(await one.cancel(), "cancelled");
  stands = ALL;
  socket.push(snapshot(ALL));
  await one.finished;
  const ended = await client.streamOf(TEAM, "s");
  t.equal(await read(ended), SCRIPT.text());
});

t.test(
  "a stream that is unknown or not to be seen rejects, and leaves nothing behind",
  async (t) => {
    for (const code of ["stream_unknown", "not_in_channel"] as const) {
      const { client } = await start(t, () => code);
      await t.rejects(client.streamOf(TEAM, "s"), { code });
      await t.rejects(client.streamOf(TEAM, "s"), { code });
    }
  },
);

t.test("a stream that cannot be followed any more fails whoever reads it", async (t) => {
  const played = await start(t, () => "not_in_channel");
  played.socket.push(snapshot(2));
  const stream = await shown(played);
  const reading = t.rejects(read(stream), { code: "not_in_channel" });
  played.socket.push(event(SCRIPT.at(5)));
  await reading;
  await t.rejects(stream.finished, { code: "not_in_channel" });
  t.equal(stream.text, SCRIPT.text(2), "what is there stays");
});

/** Lets `seconds` pass, and all answers come. */
async function pass(seconds: number): Promise<void> {
  mock.timers.tick(seconds * 1000);
  for (let n = 0; n < 20; n++) await new Promise(setImmediate);
}

t.test(
  "a stream of which nothing is heard is asked for: its end, or that it is not for this user any more",
  async (t) => {
    for (const answer of [SCRIPT.snapshot(ALL), "not_in_channel"] as const) {
      mock.timers.enable({ apis: ["setTimeout"] });
      const played = await start(t, () => answer);
      const { socket } = played;
      socket.push(snapshot(2));
      await pass(0);
      const [stream] = played.streams;
      const end = stream?.finished.then(
        ({ state }) => state,
        ({ code }) => code,
      );
      await pass(29);
      t.equal(socket.all("stream").length, 0);
      await pass(9);
      await pass(38);
      t.equal(socket.all("stream").length, 1);
      t.equal(await end, typeof answer === "string" ? answer : "closed");
      await pass(100);
      t.equal(socket.all("stream").length, 1, "it is over");
      await played.client.close();
      mock.timers.reset();
    }
  },
);

t.test("a stream that is heard of is not asked for, nor one while offline", async (t) => {
  mock.timers.enable({ apis: ["setTimeout"] });
  t.teardown(() => mock.timers.reset());
  const played = await start(t, () => SCRIPT.snapshot(2));
  const { socket, server } = played;
  socket.push(snapshot(1));
  for (let n = 0; n < 40; n++) {
    socket.push(event(SCRIPT.at(1)));
    await pass(5);
  }
  t.equal(socket.all("stream").length, 0);
  socket.end(1006);
  await new Promise(setImmediate);
  t.equal(played.client.status, "offline");
  await pass(1);
  await pass(0);
  t.equal(server.sockets.length, 2);
  t.equal(server.sockets[1]?.all("stream").length, 1);
});

t.test("closing the client fails open streams and leaves ended ones", async (t) => {
  const played = await start(t);
  played.socket.push(snapshot(2));
  const stream = await shown(played);
  const reading = t.rejects(read(stream), { code: "closed" });
  await played.client.close();
  await reading;
  await t.rejects(stream.finished, { code: "closed" });
});

t.test("history gives streams with their text, ended or going on", async (t) => {
  const played = await start(t);
  const { client, server, socket } = played;
  const ended = messageOf(SCRIPT.snapshot(ALL));
  const asked = client.history(TEAM);
  socket.reply(await server.heard("history"), {
    kind: "history",
    channel: TEAM,
    headSeq: 7,
    more: false,
    messages: [ended],
  });
  const { messages } = await asked;
  t.equal(messages[0]?.stream?.state, "closed");
  t.same(played.streams, [], "it is not news");
});

t.test("however it is cut, repeated, merged, lost or asked for, the text is right", async (t) => {
  for (let seed = 1; seed <= 40; seed++) {
    const random = new Random(seed);
    const chunks = Array.from({ length: 60 }, () =>
      random.below(8) === 0 ? undefined : random.text(6) || "x",
    );
    const script = new Script(chunks);
    const end = script.events.length;
    let sent = 0;
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
      if (operation.kind === "stream")
        socket.reply(operation, {
          kind: "stream",
          channel: TEAM,
          snapshot: script.snapshot(Math.max(1, sent)),
        });
    });
    const client = play(t, server);
    await client.ready();
    let connection = 0;
    const told: string[] = [];
    client.on("event", ({ data }) => told.push(data));
    const found = new Promise<Stream>((resolve) => client.on("stream", resolve));
    const text = found.then(read);
    while (sent < end) {
      const socket = await server.socket(connection);
      const next = Math.min(end, sent + 1 + random.below(3));
      const isPlain = script.chunks.slice(sent - 1, next - 1).every((chunk) => chunk !== undefined);
      const what = random.below(10);
      if (what === 0)
        socket.push({
          ...snapshot(1),
          snapshot: script.snapshot(Math.max(1, sent)),
        });
      else if (what === 1 && sent > 0) {
        socket.end(1006);
        connection += 1;
        await server.heard("connect", 0, connection);
      } else if (what < 4 && sent > 0 && next < end && isPlain) {
        socket.push(event(script.merged(sent, next)));
        sent = next;
      } else {
        const one = event(script.at(sent));
        const isLost = what === 4 && sent > 0 && sent < end - 1;
        if (!isLost) socket.push(one);
        if (what === 5) socket.push(one);
        sent += 1;
      }
      if (random.flip()) await new Promise(setImmediate);
    }
    t.equal(await text, script.text(), `seed ${seed}`);
    const calls = (await found).notes.map((note) => note.data);
    const inScript = chunks.flatMap((chunk, n) => (chunk === undefined ? [`tool ${n}`] : []));
    t.same(calls, inScript);
    t.same(told, inScript.slice(inScript.length - told.length), "in order, none twice");
    await client.close();
  }
});
