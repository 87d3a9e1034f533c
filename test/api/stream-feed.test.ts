// Streams followed by server-sent events over real sockets: the control plane and the broker's
// followers, over a store of one stream.

import { BrokerError } from "../../src/broker/errors.ts";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../src/broker/model.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { HOST, RawClient, until } from "../transport/support.ts";
import { FeedReader } from "./feed-reader.ts";
import { startFeeds } from "./feed-world.ts";

t.test(
  "a reader gets what there is, then each event at once, and the end closes the reply",
  async (t) => {
    const { port, say, store, observed } = await startFeeds(t);
    say(STREAM_START, "meta");
    say(STREAM_CONTENT, "Hello ");
    say(STREAM_CONTENT, "wörld\n");
    const reader = new FeedReader(t, port);
    await reader.has(2);
    t.match(reader.client.text, /^HTTP\/1.1 200 OK\r\n/);
    t.match(reader.client.text, /content-type: text\/event-stream/);
    t.match(reader.client.text, /access-control-allow-origin: \*/);
    t.match(reader.text, /^retry: \d{4}\n\n/);
    t.same(observed, [["/stream/:channel_type/:channel_id/:client_msg_no", 200]]);
    say("___ToolCallStart", '{"tool":"x"}');
    say(STREAM_CONTENT, "!");
    say(STREAM_END, "bye", "closed");
    await until(() => reader.isWhole);
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
        [6, "end", 5, 6, 13, STREAM_END, "bye", "closed"],
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

t.test("a stream that ends early says how", async (t) => {
  const { port, say } = await startFeeds(t);
  say(STREAM_START, "");
  const reader = new FeedReader(t, port);
  await reader.has(1);
  say(STREAM_END, "", "interrupted");
  await until(() => reader.isWhole);
  t.match(reader.events.at(-1), {
    event: "end",
    data: { state: "interrupted" },
  });
});

t.test("a reader begins at from; Last-Event-ID counts before it", async (t) => {
  const { port, say } = await startFeeds(t);
  say(STREAM_START, "");
  for (const word of ["a", "b", "c"]) say(STREAM_CONTENT, word);
  const path = "/stream/2/g/answer?from=2";
  const first = new FeedReader(t, port, { path });
  t.match(await first.has(1), [{ id: 4, data: { index: 2, data: "bc" } }]);
  const again = new FeedReader(t, port, { path, lastId: 3 });
  t.match(await again.has(1), [{ id: 4, data: { index: 3, text_offset: 2, data: "c" } }]);
  const level = new FeedReader(t, port, { lastId: 4 });
  await level.client.has("retry");
  say(STREAM_CONTENT, "d");
  t.match(await level.has(1), [{ id: 5, data: { data: "d" } }]);
});

t.test(
  "what cannot be followed is refused before the reply begins; what is over and read is 204",
  async (t) => {
    const { port, say } = await startFeeds(t);
    say(STREAM_START, "");
    const status = async (path: string, lastId?: number) => {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (lastId !== undefined) headers["last-event-id"] = String(lastId);
      const reply = await fetch(`http://${HOST}:${port}${path}`, { headers });
      await reply.text();
      return reply.status;
    };
    t.equal(await status("/stream/2/g/other"), 404);
    t.equal(await status("/stream/2/g/answer?from=2"), 400);
    say(STREAM_END, "", "closed");
    t.equal(await status("/stream/2/g/answer", 3), 400);
    t.equal(await status("/stream/2/g/answer", 2), 204);
    t.equal(await status("/stream/2/g/answer", 1), 200);
    t.equal(await status("/stream/2/g/answer"), 200);
  },
);

t.test("without asking for events it is told as it stands", async (t) => {
  const { port, say } = await startFeeds(t);
  say(STREAM_START, "");
  for (const accept of ["*/*", "application/json", "text/event-streams"]) {
    const url = `http://${HOST}:${port}/stream/2/g/answer`;
    const reply = await fetch(url, { headers: { accept } });
    t.match(await reply.json(), { state: "active", next_index: 1 }, accept);
  }
});

t.test("a reader that lags gets all of it, merged", async (t) => {
  const { port, say, store } = await startFeeds(t);
  say(STREAM_START, "");
  const reader = new FeedReader(t, port);
  await reader.has(1);
  reader.client.socket.pause();
  const readsBefore = store.reads;
  const count = 3000;
  for (let i = 0; i < count; i++) {
    say(STREAM_CONTENT, `${i}:${"x".repeat(4000)} `);
    if (i % 10 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  say(STREAM_END, "", "closed");
  t.equal(store.reads, readsBefore, "nothing is read for who takes nothing");
  reader.client.socket.resume();
  await until(() => reader.isWhole);
  const { events } = reader;
  t.ok(events.length < count, `${events.length} of ${count + 2} events`);
  let index = 0;
  let text = "";
  for (const { id, event, data } of events) {
    if (data.index !== index || data.text_offset !== text.length)
      t.fail(`${data.index} where ${index} was due`);
    if (event === "content") text += data.data;
    index = id;
  }
  t.equal(index, count + 2);
  t.ok(text === store.stream.text, "byte for byte");
});

t.test("a reader that vanishes is let go", async (t) => {
  const { port, say, store } = await startFeeds(t);
  say(STREAM_START, "");
  const readers = [0, 1].map(() => new FeedReader(t, port));
  for (const reader of readers) await reader.has(1);
  t.equal(store.listening.size, 1);
  for (const { client } of readers) client.socket.destroy();
  await until(() => store.listening.size === 0);
  t.pass("nobody listens any more");
});

t.test("readers beyond the bound are 503 until one goes", async (t) => {
  const { port, say } = await startFeeds(t, { maxFollowers: 1 });
  say(STREAM_START, "");
  const first = new FeedReader(t, port);
  await first.has(1);
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
  await third.has(1);
  t.equal(third.status, 200);
});

t.test("a quiet reply says something now and then", async (t) => {
  const { port, say } = await startFeeds(t, { keepAliveMs: 15 });
  say(STREAM_START, "");
  const reader = new FeedReader(t, port);
  await reader.has(1);
  await until(() => reader.text.endsWith(":\n\n:\n\n"));
  say(STREAM_CONTENT, "still there");
  t.match((await reader.has(2)).at(-1), { data: { data: "still there" } });
});

t.test("a node that goes ends its replies; readers come back", async (t) => {
  const { port, say, shut } = await startFeeds(t);
  say(STREAM_START, "");
  say(STREAM_CONTENT, "one");
  const reader = new FeedReader(t, port);
  await reader.has(2);
  shut();
  await until(() => reader.isWhole);
  t.notOk(reader.events.some(({ event }) => event === "end"));
  say(STREAM_CONTENT, "two");
  const lastId = reader.events.at(-1)?.id ?? 0;
  const back = new FeedReader(t, port, { lastId });
  t.match(await back.has(1), [{ data: { data: "two" } }]);
});

t.test("the clients' listener serves viewers, and nobody else", async (t) => {
  const { viewersPort, say } = await startFeeds(t, {
    api: { staticToken: "s" },
    admit: async ({ uid }) => {
      if (uid !== "carol") throw new BrokerError("unauthorized");
    },
  });
  say(STREAM_START, "");
  const call = (path: string, init: RequestInit = {}) =>
    fetch(`http://${HOST}:${viewersPort}${path}`, init);
  const stream = "/stream/2/g/answer";
  t.equal((await call(`${stream}?uid=carol`)).status, 200);
  t.equal((await call(`${stream}?uid=dave&token=t`)).status, 401);
  const token = { headers: { token: "s" } };
  t.equal((await call(stream, token)).status, 400, "uid is missing");
  t.equal((await call("/message/send", { method: "POST" })).status, 426);
  t.equal((await call("/")).status, 426);
  t.equal((await call(stream, { method: "POST" })).status, 405);
  const preflight = await call(stream, { method: "OPTIONS" });
  t.equal(preflight.status, 204);
  t.equal(preflight.headers.get("access-control-allow-origin"), "*");
  const reader = new FeedReader(t, viewersPort, {
    path: `${stream}?uid=carol&token=t`,
  });
  t.match(await reader.has(1), [{ event: "start" }]);
});

t.test(
  "readers that come, go and come back make the same text of it",
  { timeout: 300_000 },
  async (t) => {
    const random = new Random(Number(process.env.SEED ?? 7));
    const { port, say, store } = await startFeeds(t);
    say(STREAM_START, "");
    const read = async (): Promise<string> => {
      let text = "";
      let lastId = 0;
      for (;;) {
        const reader = new FeedReader(t, port, { lastId });
        const enough = 1 + random.below(40);
        await until(() => reader.isWhole || reader.events.length >= enough);
        reader.client.socket.destroy();
        for (const { id, event, data } of reader.events) {
          if (data.index !== lastId) throw new Error(`${data.index} ${lastId}`);
          if (event === "content") text += data.data;
          lastId = id;
          if (event === "end") return text;
        }
      }
    };
    const texts = Array.from({ length: 20 }, read);
    for (let i = 0; i < 600; i++) {
      say(STREAM_CONTENT, random.text(12));
      if (random.below(3) === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    say(STREAM_END, "", "closed");
    for (const text of await Promise.all(texts)) t.ok(text === store.stream.text);
  },
);

t.test("a second call on a reader's connection ends that reader only", async (t) => {
  const { port, say, store } = await startFeeds(t);
  say(STREAM_START, "");
  const readers = Array.from({ length: 50 }, () => new FeedReader(t, port));
  for (const reader of readers) await reader.has(1);
  const [first] = readers;
  first?.client.write("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
  await first?.client.closed();
  say(STREAM_CONTENT, "for all");
  for (const reader of readers.slice(1)) await reader.has(2);
  say(STREAM_END, "", "cancelled");
  for (const reader of readers.slice(1)) await until(() => reader.isWhole);
  await until(() => store.listening.size === 0);
  const client = new RawClient(t, port);
  client.write("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
  await client.has("ok");
  t.pass("and goes on");
});
