// Tests of following streams by server-sent events on real sockets, with the control plane and the
// broker's followers over a store with a single stream.

import { BrokerError } from "../../src/broker/errors.ts";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../src/broker/model.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { HOST, RawClient, until } from "../transport/support.ts";
import { FeedReader } from "./feed-reader.ts";
import { startFeeds } from "./feed-world.ts";

t.test(
  "a feed sends the existing events of a stream merged, then each new event at once, and ends with the stream",
  async (t) => {
    const { port, produce, store, observed } = await startFeeds(t);
    produce(STREAM_START, "meta");
    produce(STREAM_CONTENT, "Hello ");
    produce(STREAM_CONTENT, "wörld\n");
    const reader = new FeedReader(t, port);
    await reader.received(2);
    t.match(reader.client.text, /^HTTP\/1.1 200 OK\r\n/);
    t.match(reader.client.text, /content-type: text\/event-stream/);
    t.match(reader.client.text, /access-control-allow-origin: \*/);
    t.match(reader.text, /^retry: \d{4}\n\n/);
    t.same(observed, [["/stream/:channel_type/:channel_id/:client_msg_no", 200]]);
    produce("___ToolCallStart", '{"tool":"x"}');
    produce(STREAM_CONTENT, "!");
    produce("status", "thinking");
    produce(STREAM_END, "bye", "closed");
    await until(() => reader.isComplete);
    t.same(
      reader.events.map(({ id, event, data }) => [
        ...[id, event, data.index, data.next_index, data.text_offset],
        ...[data.type, data.data, data.state],
      ]),
      [
        [1, "start", 0, 1, 0, STREAM_START, "meta", "active"],
        [3, "content", 1, 3, 0, STREAM_CONTENT, "Hello wörld\n", "active"],
        [4, "tool", 3, 4, 12, "___ToolCallStart", '{"tool":"x"}', "active"],
        [5, "content", 4, 5, 12, STREAM_CONTENT, "!", "active"],
        [6, "custom", 5, 6, 13, "status", "thinking", "active"],
        [7, "end", 6, 7, 13, STREAM_END, "bye", "closed"],
      ],
    );
    const last = store.stream.events.at(-1);
    t.match(reader.events.at(-1)?.data, {
      id: last?.eventId,
      timestamp: last?.timestampMs,
    });
    await until(() => store.listening.size === 0);
  },
);

t.test("the end event contains the state of an interrupted stream", async (t) => {
  const { port, produce } = await startFeeds(t);
  produce(STREAM_START, "");
  const reader = new FeedReader(t, port);
  await reader.received(1);
  produce(STREAM_END, "", "interrupted");
  await until(() => reader.isComplete);
  t.match(reader.events.at(-1), {
    event: "end",
    data: { state: "interrupted" },
  });
});

t.test(
  "a feed begins at the index in Last-Event-ID, or else at the index in the parameter `from`",
  async (t) => {
    const { port, produce } = await startFeeds(t);
    produce(STREAM_START, "");
    for (const word of ["a", "b", "c"]) produce(STREAM_CONTENT, word);
    const path = "/stream/2/g/answer?from=2";
    const first = new FeedReader(t, port, { path });
    t.match(await first.received(1), [{ id: 4, data: { index: 2, data: "bc" } }]);
    const resumed = new FeedReader(t, port, { path, lastId: 3 });
    t.match(await resumed.received(1), [{ id: 4, data: { index: 3, text_offset: 2, data: "c" } }]);
    const upToDate = new FeedReader(t, port, { lastId: 4 });
    await upToDate.client.has("retry");
    produce(STREAM_CONTENT, "d");
    t.match(await upToDate.received(1), [{ id: 5, data: { data: "d" } }]);
  },
);

t.test(
  "a feed that cannot be opened is rejected with 404 or 400, and a reader that already has a whole ended stream gets 204",
  async (t) => {
    const { port, produce } = await startFeeds(t);
    produce(STREAM_START, "");
    const status = async (path: string, lastId?: number) => {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (lastId !== undefined) headers["last-event-id"] = String(lastId);
      const reply = await fetch(`http://${HOST}:${port}${path}`, { headers });
      await reply.text();
      return reply.status;
    };
    t.equal(await status("/stream/2/g/other"), 404);
    t.equal(await status("/stream/2/g/answer?from=2"), 400);
    produce(STREAM_END, "", "closed");
    t.equal(await status("/stream/2/g/answer", 3), 400);
    t.equal(await status("/stream/2/g/answer", 2), 204);
    t.equal(await status("/stream/2/g/answer", 1), 200);
    t.equal(await status("/stream/2/g/answer"), 200);
  },
);

t.test(
  "GET /stream returns the state of the stream if the caller does not accept server-sent events",
  async (t) => {
    const { port, produce } = await startFeeds(t);
    produce(STREAM_START, "");
    for (const accept of ["*/*", "application/json", "text/event-streams"]) {
      const url = `http://${HOST}:${port}/stream/2/g/answer`;
      const reply = await fetch(url, { headers: { accept } });
      t.match(await reply.json(), { state: "active", next_index: 1 }, accept);
    }
  },
);

t.test(
  "a reader that lags receives the whole text in fewer events, because they are merged",
  async (t) => {
    const { port, produce, store } = await startFeeds(t);
    produce(STREAM_START, "");
    const reader = new FeedReader(t, port);
    await reader.received(1);
    reader.client.socket.pause();
    const readsBefore = store.reads;
    const count = 3000;
    for (let i = 0; i < count; i++) {
      produce(STREAM_CONTENT, `${i}:${"x".repeat(4000)} `);
      if (i % 10 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    produce(STREAM_END, "", "closed");
    t.equal(
      store.reads,
      readsBefore,
      "the store is not read for a reader whose send buffer is full",
    );
    reader.client.socket.resume();
    await until(() => reader.isComplete);
    const { events } = reader;
    t.ok(events.length < count, `${count + 2} events were merged into ${events.length}`);
    let index = 0;
    let text = "";
    for (const { id, event, data } of events) {
      if (data.index !== index || data.text_offset !== text.length)
        t.fail(`event ${data.index} was received instead of ${index}`);
      if (event === "content") text += data.data;
      index = id;
    }
    t.equal(index, count + 2);
    t.ok(text === store.stream.text, "the received text is complete");
  },
);

t.test(
  "a node unsubscribes from the topic of a channel when all readers of its stream have disconnected",
  async (t) => {
    const { port, produce, store } = await startFeeds(t);
    produce(STREAM_START, "");
    const readers = [0, 1].map(() => new FeedReader(t, port));
    for (const reader of readers) await reader.received(1);
    t.equal(store.listening.size, 1);
    for (const { client } of readers) client.socket.destroy();
    await until(() => store.listening.size === 0);
    t.pass("no subscription is left");
  },
);

t.test("readers over `maxFollowers` are rejected with 503 until a reader leaves", async (t) => {
  const { port, produce } = await startFeeds(t, { maxFollowers: 1 });
  produce(STREAM_START, "");
  const first = new FeedReader(t, port);
  await first.received(1);
  const second = new FeedReader(t, port);
  await second.client.has("overloaded");
  t.equal(second.status, 503);
  t.match(second.client.text, /retry-after: \d+/);
  first.client.socket.destroy();
  await until(() => first.client.isClosed);
  let third = new FeedReader(t, port);
  await third.client.has("\r\n\r\n");
  while (third.status === 503) {
    third = new FeedReader(t, port);
    await third.client.has("\r\n\r\n");
  }
  await third.received(1);
  t.equal(third.status, 200);
});

t.test("a feed without events sends keep-alive comments", async (t) => {
  const { port, produce } = await startFeeds(t, { keepAliveMs: 15 });
  produce(STREAM_START, "");
  const reader = new FeedReader(t, port);
  await reader.received(1);
  await until(() => reader.text.endsWith(":\n\n:\n\n"));
  produce(STREAM_CONTENT, "still there");
  t.match((await reader.received(2)).at(-1), { data: { data: "still there" } });
});

t.test(
  "a node that stops ends its feeds without an end event, and a reader can continue after its last event",
  async (t) => {
    const { port, produce, closeFollowers } = await startFeeds(t);
    produce(STREAM_START, "");
    produce(STREAM_CONTENT, "one");
    const reader = new FeedReader(t, port);
    await reader.received(2);
    closeFollowers();
    await until(() => reader.isComplete);
    t.notOk(reader.events.some(({ event }) => event === "end"));
    produce(STREAM_CONTENT, "two");
    const lastId = reader.events.at(-1)?.id ?? 0;
    const returning = new FeedReader(t, port, { lastId });
    t.match(await returning.received(1), [{ data: { data: "two" } }]);
  },
);

t.test(
  "the listener for clients serves streams to viewers and rejects all other calls",
  async (t) => {
    const { viewersPort, produce } = await startFeeds(t, {
      api: { staticToken: "s" },
      admit: async ({ uid }) => {
        if (uid !== "carol") throw new BrokerError("unauthorized");
      },
    });
    produce(STREAM_START, "");
    const call = (path: string, init: RequestInit = {}) =>
      fetch(`http://${HOST}:${viewersPort}${path}`, init);
    const stream = "/stream/2/g/answer";
    t.equal((await call(`${stream}?uid=carol`)).status, 200);
    t.equal((await call(`${stream}?uid=dave&token=t`)).status, 401);
    const token = { headers: { token: "s" } };
    t.equal((await call(stream, token)).status, 400, "a call without uid is rejected");
    t.equal((await call("/message/send", { method: "POST" })).status, 426);
    t.equal((await call("/")).status, 426);
    t.equal((await call(stream, { method: "POST" })).status, 405);
    const preflight = await call(stream, { method: "OPTIONS" });
    t.equal(preflight.status, 204);
    t.equal(preflight.headers.get("access-control-allow-origin"), "*");
    const reader = new FeedReader(t, viewersPort, {
      path: `${stream}?uid=carol&token=t`,
    });
    t.match(await reader.received(1), [{ event: "start" }]);
  },
);

t.test(
  "readers that disconnect and resume at random receive the whole text",
  { timeout: 300_000 },
  async (t) => {
    const random = new Random(Number(process.env.SEED ?? 7));
    const { port, produce, store } = await startFeeds(t);
    produce(STREAM_START, "");
    const readAll = async (): Promise<string> => {
      let text = "";
      let lastId = 0;
      for (;;) {
        const reader = new FeedReader(t, port, { lastId });
        const minEvents = 1 + random.below(40);
        await until(() => reader.isComplete || reader.events.length >= minEvents);
        reader.client.socket.destroy();
        for (const { id, event, data } of reader.events) {
          if (data.index !== lastId)
            throw new Error(`event ${data.index} was received instead of ${lastId}`);
          if (event === "content") text += data.data;
          lastId = id;
          if (event === "end") return text;
        }
      }
    };
    const texts = Array.from({ length: 20 }, readAll);
    for (let i = 0; i < 600; i++) {
      produce(STREAM_CONTENT, random.text(12));
      if (random.below(3) === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    produce(STREAM_END, "", "closed");
    for (const text of await Promise.all(texts))
      t.ok(text === store.stream.text, "the reader received the text of the stream");
  },
);

t.test("a second call on the connection of a feed ends only that feed", async (t) => {
  const { port, produce, store } = await startFeeds(t);
  produce(STREAM_START, "");
  const readers = Array.from({ length: 50 }, () => new FeedReader(t, port));
  for (const reader of readers) await reader.received(1);
  const [first] = readers;
  first?.client.write("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
  await first?.client.closed();
  produce(STREAM_CONTENT, "for all");
  for (const reader of readers.slice(1)) await reader.received(2);
  produce(STREAM_END, "", "cancelled");
  for (const reader of readers.slice(1)) await until(() => reader.isComplete);
  await until(() => store.listening.size === 0);
  const client = new RawClient(t, port);
  client.write("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
  await client.has("ok");
  t.pass("the node still serves calls");
});
