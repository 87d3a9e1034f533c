// Streams as the app reads them: the text is complete and without repetitions, however its pieces
// arrive.

import { mock } from "node:test";
import type { Test } from "tap";
import type { ErrorCode } from "../../src/broker/errors.ts";
import type { ChannelEvent, StreamSnapshot } from "../../src/broker/model.ts";
import type { Client, LiveStream, ReceivedEvent } from "../../src/client/index.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { messageOf, SampleStream, TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

const SAMPLE = new SampleStream(["Once ", "upon ", undefined, "a ", "ti𝄞e"]);
const EVENT_COUNT = SAMPLE.events.length;

const eventPush = (event: ChannelEvent) => ({ kind: "event", channel: TEAM, event }) as const;
const snapshot = (nextIndex: number) =>
  ({
    kind: "stream",
    channel: TEAM,
    snapshot: SAMPLE.snapshot(nextIndex),
  }) as const;

/** A client, and the streams and events that it emitted. */
interface StreamFixture {
  readonly server: ScriptedServer;
  readonly client: Client;
  readonly streams: LiveStream[];
  readonly events: ReceivedEvent[];
  readonly socket: ScriptedSocket;
}

/**
 * Connects a client to a server that replies to a stream request with the snapshot or error that
 * `stateOf` returns. It does not reply if `stateOf` returns `undefined`.
 */
async function start(
  t: Test,
  stateOf: () => StreamSnapshot | ErrorCode | undefined = () => undefined,
): Promise<StreamFixture> {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "cancel")
      socket.reply(operation, { kind: "cancel", state: "cancelled" });
    if (operation.kind !== "stream") return;
    const answer = stateOf();
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
  const client = connectTo(t, server);
  const streams: LiveStream[] = [];
  const events: ReceivedEvent[] = [];
  client.on("stream", (stream) => streams.push(client.stream(stream)));
  client.on("event", (event) => events.push(event));
  await client.ready();
  return { server, client, streams, events, socket: await server.socket() };
}

/** Returns the complete text of a stream. */
async function read(stream: AsyncIterable<string> | undefined): Promise<string> {
  let text = "";
  for await (const piece of stream ?? []) text += piece;
  return text;
}

/** Waits for the first stream that the client emits. */
async function firstStream({ server, streams }: StreamFixture): Promise<LiveStream> {
  await server.until("a stream", () => streams.length > 0);
  return streams[0] as LiveStream; // the stream exists after `until`
}

t.test(
  "a stream that is read from its start has its message, text, tool calls and end",
  async (t) => {
    const fixture = await start(t);
    const { client, socket, events } = fixture;
    const inMessage = new Promise<LiveStream>((resolve) =>
      client.on("message", (message) => resolve(client.stream(message))),
    );
    const first = messageOf(SAMPLE.snapshot(0));
    socket.push({ kind: "message", channel: TEAM, message: first });
    for (const event of SAMPLE.events) socket.push(eventPush(event));
    const stream = await firstStream(fixture);
    t.equal(await inMessage, stream, "message and stream event name the same stream");
    t.equal(await read(stream), SAMPLE.text());
    const ended = await stream.finished;
    t.match(ended, { state: "closed", text: SAMPLE.text(), nextIndex: EVENT_COUNT });
    t.match(ended, { startData: "begin", endData: "end", fromUid: "bot" });
    t.match(ended, { messageId: 77, messageSeq: 7, clientMsgNo: "s" });
    t.same(
      ended.notes.map((note) => note.data),
      ["tool 2"],
    );
    t.same(
      events.map(({ data, stream }) => [data, stream?.text, stream?.nextIndex]),
      [["tool 2", SAMPLE.text(4), 4]],
    );
    t.equal(await read(stream), SAMPLE.text(), "the text can be read again");
    t.equal(await read(stream.pieces("now")), "", "no text follows the end");
  },
);

t.test("custom events are emitted unchanged", async (t) => {
  const { client, socket, server, events } = await start(t);
  const custom = {
    ...SAMPLE.at(1),
    type: "typing",
    data: "{}",
    stream: undefined,
  };
  socket.push(eventPush(custom));
  await server.until("an event", () => events.length === 1);
  t.match(events[0], { type: "typing", data: "{}", eventId: "e1" });
  t.match(events[0], { channel: TEAM, fromUid: "bot", stream: undefined });
  t.equal(client.status, "online");
});

t.test("a late viewer receives the text so far, then the text of later events", async (t) => {
  const fixture = await start(t);
  fixture.socket.push(snapshot(4));
  const stream = await firstStream(fixture);
  t.equal(stream.snapshot().text, SAMPLE.text(4));
  const later = read(stream.pieces("now"));
  const all = read(stream);
  for (let n = 4; n < EVENT_COUNT; n++) fixture.socket.push(eventPush(SAMPLE.at(n)));
  t.equal(await later, SAMPLE.text().slice(SAMPLE.text(4).length));
  t.equal(await all, SAMPLE.text());
  t.same(fixture.events, [], "earlier tool calls are only in `notes`");
});

t.test("merged content that overlaps received text adds only its new part", async (t) => {
  const fixture = await start(t);
  const { socket } = fixture;
  socket.push(eventPush(SAMPLE.at(0)));
  socket.push(eventPush(SAMPLE.at(1)));
  socket.push(eventPush(SAMPLE.merged(1, 3)));
  socket.push(eventPush(SAMPLE.merged(1, 3)));
  socket.push(eventPush(SAMPLE.at(2)));
  for (let n = 3; n < EVENT_COUNT; n++) socket.push(eventPush(SAMPLE.at(n)));
  t.equal(await read(await firstStream(fixture)), SAMPLE.text());
  t.equal(socket.all("stream").length, 0, "no snapshot is requested");
});

t.test(
  "after a gap in a stream's events, its snapshot is requested, later events wait for the reply, and older snapshots are ignored",
  async (t) => {
    const fixture = await start(t);
    const { socket, server } = fixture;
    for (const n of [0, 1, 4]) socket.push(eventPush(SAMPLE.at(n)));
    const request = await server.received("stream");
    socket.push(eventPush(SAMPLE.at(5)));
    socket.push(snapshot(1));
    socket.reply(request, snapshot(5));
    socket.push(eventPush(SAMPLE.at(6)));
    const stream = await firstStream(fixture);
    t.equal(await read(stream), SAMPLE.text());
    t.equal(stream.snapshot().state, "closed");
    t.equal(socket.all("stream").length, 1);
    t.equal(fixture.events.length, 1, "the tool call in the gap is emitted");
  },
);

t.test(
  "open streams are resynced after a reconnect, and a stream that ended while the client was offline ends for its readers",
  async (t) => {
    let nextIndex = 3;
    const fixture = await start(t, () => SAMPLE.snapshot(nextIndex));
    fixture.socket.push(snapshot(2));
    const stream = await firstStream(fixture);
    const text = read(stream);
    nextIndex = EVENT_COUNT;
    fixture.socket.end(1006);
    t.equal(await text, SAMPLE.text());
    t.match(await stream.finished, { state: "closed", text: SAMPLE.text() });
    t.equal(fixture.events.length, 1, "the missed tool call is emitted");
    fixture.server.sockets[1]?.end(1006);
    await fixture.server.received("connect", 0, 2);
    await fixture.client.ready();
    t.equal(
      fixture.server.sockets[2]?.all("stream").length,
      0,
      "the ended stream is not requested",
    );
  },
);

const TARGET = { channel: TEAM, clientMsgNo: "s" };

t.test(
  "client.stream returns active and ended streams, and simultaneous calls share one request",
  async (t) => {
    let nextIndex = 2;
    const { client, socket } = await start(t, () => SAMPLE.snapshot(nextIndex));
    const stream = client.stream(TARGET);
    t.equal(client.stream(TARGET), stream);
    t.match(
      stream.snapshot(),
      { state: "active", text: "" },
      "the stream is empty before the reply",
    );
    t.equal((await stream.ready()).text, SAMPLE.text(2));
    t.equal(socket.all("stream").length, 1);
    t.equal(client.stream(TARGET), stream, "a followed stream is returned without a request");
    t.equal(await client.cancel(TARGET), "cancelled");
    nextIndex = EVENT_COUNT;
    socket.push(snapshot(EVENT_COUNT));
    await stream.finished;
    t.equal(await read(client.stream(TARGET)), SAMPLE.text());
    t.equal(socket.all("stream").length, 2);
    const reopened = client.stream(stream.snapshot());
    t.equal(await read(reopened), SAMPLE.text());
    t.equal(socket.all("stream").length, 2, "the data of an ended stream is not requested");
  },
);

t.test(
  "reading an unknown or forbidden stream rejects with the reason, and a second call to client.stream asks the server again",
  async (t) => {
    for (const code of ["stream_unknown", "not_in_channel"] as const) {
      const { client } = await start(t, () => code);
      for (let n = 0; n < 2; n++) {
        const stream = client.stream(TARGET);
        await t.rejects(stream.ready(), { code });
        await t.rejects(stream.finished, { code });
        await t.rejects(read(stream), { code });
      }
    }
  },
);

t.test(
  "a reader of a stream rejects with the reason if the user has lost access to the channel",
  async (t) => {
    const fixture = await start(t, () => "not_in_channel");
    fixture.socket.push(snapshot(2));
    const stream = await firstStream(fixture);
    const reading = t.rejects(read(stream), { code: "not_in_channel" });
    fixture.socket.push(eventPush(SAMPLE.at(5)));
    await reading;
    await t.rejects(stream.finished, { code: "not_in_channel" });
    t.equal(stream.snapshot().text, SAMPLE.text(2), "the received text stays");
  },
);

/** Advances the timers, and waits until all replies have arrived. */
async function advance(seconds: number): Promise<void> {
  mock.timers.tick(seconds * 1000);
  for (let n = 0; n < 20; n++) await new Promise(setImmediate);
}

t.test(
  "a stream without events for 30 s is resynced, which detects its end or the loss of access",
  async (t) => {
    for (const answer of [SAMPLE.snapshot(EVENT_COUNT), "not_in_channel"] as const) {
      mock.timers.enable({ apis: ["setTimeout"] });
      const fixture = await start(t, () => answer);
      const { socket } = fixture;
      socket.push(snapshot(2));
      await advance(0);
      const [stream] = fixture.streams;
      const end = stream?.finished.then(
        ({ state }) => state,
        ({ code }) => code,
      );
      await advance(29);
      t.equal(socket.all("stream").length, 0);
      await advance(9);
      await advance(38);
      t.equal(socket.all("stream").length, 1);
      t.equal(await end, typeof answer === "string" ? answer : "closed");
      await advance(100);
      t.equal(socket.all("stream").length, 1, "the ended stream is not requested");
      await fixture.client.close();
      mock.timers.reset();
    }
  },
);

t.test(
  "a stream that receives events is not resynced, and no stream is resynced while the client is offline",
  async (t) => {
    mock.timers.enable({ apis: ["setTimeout"] });
    t.teardown(() => mock.timers.reset());
    const fixture = await start(t, () => SAMPLE.snapshot(2));
    const { socket, server } = fixture;
    socket.push(snapshot(1));
    for (let n = 0; n < 40; n++) {
      socket.push(eventPush(SAMPLE.at(1)));
      await advance(5);
    }
    t.equal(socket.all("stream").length, 0);
    socket.end(1006);
    await new Promise(setImmediate);
    t.equal(fixture.client.status, "offline");
    await advance(1);
    await advance(0);
    t.equal(server.sockets.length, 2);
    t.equal(server.sockets[1]?.all("stream").length, 1);
  },
);

t.test("closing the client rejects pending reads of its open streams", async (t) => {
  const fixture = await start(t);
  fixture.socket.push(snapshot(2));
  const stream = await firstStream(fixture);
  const reading = t.rejects(read(stream), { code: "closed" });
  await fixture.client.close();
  await reading;
  await t.rejects(stream.finished, { code: "closed" });
});

t.test(
  "history returns an ended stream with the state `closed`, and no stream event is emitted",
  async (t) => {
    const fixture = await start(t);
    const { client, server, socket } = fixture;
    const ended = messageOf(SAMPLE.snapshot(EVENT_COUNT));
    const request = client.history(TEAM);
    socket.reply(await server.received("history"), {
      kind: "history",
      channel: TEAM,
      headSeq: 7,
      more: false,
      messages: [ended],
    });
    const { messages } = await request;
    t.equal(messages[0]?.stream?.state, "closed");
    t.same(fixture.streams, [], "no stream event is emitted");
  },
);

t.test("a stream stays ended even if a late reply shows the stream as active", async (t) => {
  for (const isFollowed of [false, true]) {
    const { client, server, socket, streams } = await start(t, () => SAMPLE.snapshot(EVENT_COUNT));
    const page = { kind: "history", channel: TEAM, headSeq: 7, more: false } as const;
    const reading = client.history(TEAM);
    const request = await server.received("history");
    for (const event of SAMPLE.events.slice(isFollowed ? 0 : -1)) socket.push(eventPush(event));
    socket.reply(request, { ...page, messages: [messageOf(SAMPLE.snapshot(2))] });
    const { messages } = await reading;
    const target = { channel: TEAM, clientMsgNo: "s", stream: messages[0]?.stream };
    t.equal((await client.stream(target).finished).text, SAMPLE.text(), "the returned stream");
    await server.until("the stream event", () => streams.length > 0);
    for (const { finished } of streams) t.match(await finished, { state: "closed" });
  }
});

t.test(
  "a stream whose newest events were lost in a fail-over is requested once and then continues",
  async (t) => {
    for (const isPage of [false, true]) {
      const fixture = await start(t, () => SAMPLE.snapshot(2));
      const { client, server, socket } = fixture;
      if (isPage) {
        const page = { kind: "history", channel: TEAM, headSeq: 7, more: false } as const;
        socket.push(eventPush(SAMPLE.at(EVENT_COUNT - 1)));
        const reading = client.history(TEAM);
        const request = await server.received("history");
        socket.reply(request, { ...page, messages: [messageOf(SAMPLE.snapshot(2))] });
        await reading;
      } else for (const n of [0, 1, EVENT_COUNT - 1]) socket.push(eventPush(SAMPLE.at(n)));
      await server.received("stream");
      for (let n = 0; n < 5; n++) await client.cancel({ channel: TEAM, clientMsgNo: "s" });
      t.equal(socket.all("stream").length, 1, "the stream is not requested again");
      for (const event of SAMPLE.events.slice(2)) socket.push(eventPush(event));
      t.equal(await read(await firstStream(fixture)), SAMPLE.text());
    }
  },
);

t.test(
  "the text of a stream is complete despite random losses, repetitions, merges and disconnects",
  async (t) => {
    for (let seed = 1; seed <= 40; seed++) {
      const random = new Random(seed);
      const chunks = Array.from({ length: 60 }, () =>
        random.below(8) === 0 ? undefined : random.text(6) || "x",
      );
      const sample = new SampleStream(chunks);
      const end = sample.events.length;
      let sent = 0;
      const server = new ScriptedServer((operation, socket) => {
        if (operation.kind === "connect") acknowledge(operation, socket);
        if (operation.kind === "stream")
          socket.reply(operation, {
            kind: "stream",
            channel: TEAM,
            snapshot: sample.snapshot(Math.max(1, sent)),
          });
      });
      const client = connectTo(t, server);
      await client.ready();
      let connection = 0;
      const toolCalls: string[] = [];
      client.on("event", ({ data }) => toolCalls.push(data));
      const firstEmitted = new Promise<LiveStream>((resolve) =>
        client.on("stream", (stream) => resolve(client.stream(stream))),
      );
      const text = firstEmitted.then(read);
      while (sent < end) {
        const socket = await server.socket(connection);
        const next = Math.min(end, sent + 1 + random.below(3));
        const isPlain = sample.chunks
          .slice(sent - 1, next - 1)
          .every((chunk) => chunk !== undefined);
        const action = random.below(10);
        if (action === 0)
          socket.push({
            ...snapshot(1),
            snapshot: sample.snapshot(Math.max(1, sent)),
          });
        else if (action === 1 && sent > 0) {
          socket.end(1006);
          connection += 1;
          await server.received("connect", 0, connection);
        } else if (action < 4 && sent > 0 && next < end && isPlain) {
          socket.push(eventPush(sample.merged(sent, next)));
          sent = next;
        } else {
          const push = eventPush(sample.at(sent));
          const isLost = action === 4 && sent > 0 && sent < end - 1;
          if (!isLost) socket.push(push);
          if (action === 5) socket.push(push);
          sent += 1;
        }
        if (random.flip()) await new Promise(setImmediate);
      }
      t.equal(await text, sample.text(), `the text is complete with seed ${seed}`);
      const calls = (await firstEmitted).snapshot().notes.map((note) => note.data);
      const inSample = chunks.flatMap((chunk, n) => (chunk === undefined ? [`tool ${n}`] : []));
      t.same(calls, inSample);
      t.same(
        toolCalls,
        inSample.slice(inSample.length - toolCalls.length),
        "tool calls are emitted in order, and none of them twice",
      );
      await client.close();
    }
  },
);

t.test("an iterator over a stream without new events ends at once when stopped", async (t) => {
  const fixture = await start(t);
  fixture.socket.push(snapshot(2));
  const stream = await firstStream(fixture);
  const iterator = stream.pieces("now");
  const waiting = iterator.next();
  await iterator.return?.();
  t.same(await waiting, { done: true, value: undefined });
  const readable = ReadableStream.from(stream);
  const reader = readable.getReader();
  t.equal((await reader.read()).value, SAMPLE.text(2));
  const pending = reader.read();
  await reader.cancel();
  t.equal((await pending).done, true);
  const piped = new AbortController();
  const pipe = ReadableStream.from(stream.pieces("now")).pipeTo(new WritableStream(), {
    signal: piped.signal,
  });
  piped.abort();
  await t.rejects(pipe, { name: "AbortError" });
});

t.test("a stream has a new snapshot after each change and notifies its subscribers", async (t) => {
  const fixture = await start(t);
  const { socket, server, client } = fixture;
  socket.push(snapshot(2));
  const stream = await firstStream(fixture);
  const { snapshot: current, subscribe } = stream; // React calls them without `this`
  const seen: string[] = [];
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  subscribe(() => {
    throw new Error("a bug");
  });
  const unsubscribe = subscribe(() => seen.push(current().text));
  const before = current();
  t.equal(current(), before, "the snapshot is the same object while the stream does not change");
  socket.push(eventPush(SAMPLE.at(2)));
  await server.until("a change", () => seen.length === 1);
  t.same(seen, [SAMPLE.text(3)]);
  t.equal(before.text, SAMPLE.text(2), "an earlier snapshot never changes");
  t.same(errors, ["handler_failed"]);
  unsubscribe();
  socket.push(eventPush(SAMPLE.at(3)));
  await server.until("the second change", () => current().nextIndex === 4);
  t.equal(seen.length, 1);
  await client.close();
});
