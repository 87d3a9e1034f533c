// Streams on one Redis, in addition to the Store contract: several nodes at once, the data that is
// stored and removed, and the data that is not transferred twice.

import t, { type Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import { framesIn, LOG_START, recordsIn } from "../../../src/broker/log-frame.ts";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { createOperations } from "../../../src/store/redis/operations.ts";
import { createRedisStreams } from "../../../src/store/redis/steps/streams.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { FORK_RETENTION_S, forksOfRemovedStreams } from "../../contract/store-channel-logs.ts";
import { ALL, codeOf, draftOf, StoreFixture } from "../../contract/store-fixture.ts";
import {
  ACTIVE,
  channelEventsOf,
  eventOf,
  KEY,
  producer,
  snapshotOf,
  streamResult,
} from "../../contract/store-stream-fixture.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { startRedis } from "../../support/redis.ts";
import { openStore } from "./one-store.ts";
import { createNode, freshPrefix, listenTo, type NodeOptions } from "./stream-nodes.ts";

const { url, client } = await startRedis(t);
const redis = client();
const TOPICS = ["g:g", "g:h", "u:alice", "u:bob"];
const TO_BOB = { channel: { id: "bob", type: 1 } } as const;
const WITH_BOB = "1:alice@bob";

/** Starts nodes on one prefix, each with a listener of its own. */
async function startNodes(t: Test, count: number, options: Pick<NodeOptions, "limits"> = {}) {
  const location = { url, prefix: freshPrefix(), topics: TOPICS };
  const fixtures: StoreFixture[] = [];
  for (let i = 0; i < count; i++) {
    const listener = await listenTo(t, location);
    const fixture = new StoreFixture({
      create({ publisher, clock }) {
        listener.onEvent = (event) => publisher.publish(event);
        return createNode(location, listener, { clock, ...options });
      },
    });
    await fixture.store.start();
    t.teardown(() => fixture.store.close());
    fixtures.push(fixture);
  }
  const keys = (part: string) => redis.keys(`${location.prefix}:*:${part}`);
  return { fixtures, prefix: location.prefix, keys };
}

async function startNode(t: Test, options: Pick<NodeOptions, "limits"> = {}) {
  const { fixtures, ...rest } = await startNodes(t, 1, options);
  const [fixture] = fixtures;
  if (fixture === undefined) throw new Error("the test has started no node");
  return { fixture, ...rest };
}

const placeOf = (event: ClusterEvent) =>
  event.kind === "event" ? [event.event.stream?.index, event.event.data] : event.kind;

t.test("stream events posted on three nodes arrive in the same order at every node", async (t) => {
  const { fixtures } = await startNodes(t, 3);
  const [first, second, third] = fixtures.map((fixture) => producer(fixture));
  await first?.start();
  const posts = Array.from({ length: 60 }, (_, i) =>
    [first, second, third][i % 3]?.content(`${i} `),
  );
  await Promise.all([...posts, fixtures[0]?.store.append(draftOf())]);
  await second?.end();
  const orders = fixtures.map(({ store }) => store.stream(KEY, "s"));
  const [shown, ...others] = await Promise.all(orders);
  for (const other of others) t.same(other, shown);
  t.equal(shown?.nextIndex, 62);
  const received = fixtures.map(({ events }) => events.map(placeOf));
  t.equal(received[0]?.length, 64, "every node receives two messages and 62 events");
  t.same(received[1], received[0]);
  t.same(received[2], received[0]);
  const contents = channelEventsOf(fixtures[2] as StoreFixture).filter(
    ({ type }) => type === STREAM_CONTENT,
  );
  t.equal(contents.map(({ data }) => data).join(""), shown?.text);
});

t.test("only one of several concurrent stream starts on different nodes succeeds", async (t) => {
  const { fixtures } = await startNodes(t, 3);
  const steps = await Promise.all(
    fixtures.map((fixture, i) => producer(fixture).start("", { clientMsgNo: `s${i}` })),
  );
  t.same(steps.map(({ verdict }) => verdict).sort(), ["done", "running", "running"]);
  t.equal(await fixtures[0]?.store.headSeq(KEY), 1);
});

t.test("several nodes that sweep concurrently end each silent stream once", async (t) => {
  const { fixtures, keys } = await startNodes(t, 3);
  const [fixture] = fixtures as [StoreFixture];
  for (let i = 0; i < 100; i++)
    await producer(fixture).start("", { channel: { id: `q${i}`, type: 2 } });
  await producer(fixture).start();
  for (const node of fixtures) node.nowMs += 1000;
  const counts = await Promise.all(fixtures.map(({ store }) => store.interruptStreams(0)));
  t.equal(
    counts.reduce((sum, count) => sum + count),
    101,
  );
  for (const node of fixtures) {
    t.match(await snapshotOf(node), { state: "interrupted", nextIndex: 2 });
    const ends = channelEventsOf(node).filter(({ type }) => type === STREAM_END);
    t.equal(ends.length, 1);
  }
  t.same(await keys("activeStreams"), [], "no stream is active");
});

t.test("a node does not count the time before its own start as silence of a stream", async (t) => {
  const { fixtures } = await startNodes(t, 2);
  const [first, second] = fixtures as [StoreFixture, StoreFixture];
  await producer(first).start();
  first.nowMs += 60_000;
  second.nowMs = first.nowMs;
  await second.reopen();
  t.equal(await second.store.interruptStreams(1), 0);
  t.equal(await first.store.interruptStreams(1), 1);
});

t.test("maxStreamBytes counts everything that a viewer receives", async (t) => {
  const { fixture } = await startNode(t, { limits: { maxStreamBytes: 1000 } });
  const { start, content, tool, end } = producer(fixture);
  t.equal(await codeOf(start("x".repeat(1001))), "too_large");
  t.equal(await fixture.store.headSeq(KEY), 0);
  await start("x".repeat(400));
  await content('"'.repeat(250)); // 500 bytes when encoded as JSON
  t.equal(await codeOf(content("y".repeat(101))), "too_large");
  t.equal(await codeOf(tool("y".repeat(50))), "too_large", "the event id counts too");
  t.same(await content("y".repeat(99)), ACTIVE);
  t.equal(await codeOf(end("data")), "too_large");
  t.same(await end(), streamResult("done", "closed"), "an end without data always fits");
  t.match(await snapshotOf(fixture), { nextIndex: 4, state: "closed" });
});

t.test("an event with an unknown type or an invalid time is rejected", async (t) => {
  const { fixture } = await startNode(t);
  const { start } = producer(fixture);
  t.equal(await codeOf(start("", { type: "___Other" })), "bad_request");
  const invalidTime = { timestampMs: Number.NaN };
  t.equal(await codeOf(start("", invalidTime)), "bad_request");
});

t.test("a personal stream is in the indexes of both users", async (t) => {
  const { fixture, prefix } = await startNode(t);
  const { start, content, end } = producer(fixture, TO_BOB);
  const keyOf = (uid: string, part: string) => `${prefix}:{u:${uid}}:${part}`;
  await start();
  await content("to both");
  t.same(await redis.zrange(keyOf("alice", "peers"), "0", "-1"), ["bob"]);
  t.same(await redis.zrange(keyOf("bob", "peers"), "0", "-1"), ["alice"]);
  t.same(await redis.smembers(keyOf("bob", "streams")), [WITH_BOB]);
  t.equal((await fixture.store.personalStreamsOf("bob"))[0]?.text, "to both");
  t.equal(
    channelEventsOf(fixture).length,
    2,
    "the event is published on two topics and delivered once",
  );
  await end();
  t.same(await redis.smembers(keyOf("alice", "streams")), []);
  t.same(await redis.smembers(keyOf("bob", "streams")), []);
});

t.test("a read of a user's streams removes index entries without an active stream", async (t) => {
  const { fixture, prefix } = await startNode(t);
  const index = `${prefix}:{u:alice}:streams`;
  await producer(fixture, TO_BOB).start();
  await redis.sadd(index, "1:alice@zoe", "1:alice@yan");
  const streams = await fixture.store.personalStreamsOf("alice");
  t.same(
    streams.map(({ key }) => key),
    [WITH_BOB],
  );
  t.same(await redis.smembers(index), [WITH_BOB]);
});

t.test("a personal stream to the sender's own uid is indexed and published once", async (t) => {
  const { fixture, prefix } = await startNode(t);
  const { start, end } = producer(fixture, {
    channel: { id: "alice", type: 1 },
  });
  await start();
  t.equal((await fixture.store.personalStreamsOf("alice")).length, 1);
  t.same(await redis.zrange(`${prefix}:{u:alice}:peers`, "0", "-1"), ["alice"]);
  await end();
  t.equal(channelEventsOf(fixture).length, 2);
});

t.test("all keys of a stream are removed with its message", async (t) => {
  const limits = { retentionS: 60 };
  const { fixture, prefix } = await startNode(t, { limits });
  const { start, content, tool, end } = producer(fixture);
  const streamKeys = async () =>
    (await redis.keys(`${prefix}:*`)).filter((k) => /}:(log[A-Z]|stream)\w*:/.test(k));
  await start("", { eventId: "e0" });
  await content("text");
  await tool("{}");
  await end();
  await start("", { clientMsgNo: "long" });
  t.equal((await streamKeys()).length, 3 + 2);
  const [ids = ""] = await redis.keys(`${prefix}:*:logEventIds:*`);
  t.ok((await redis.pttl(ids)) > 0, "event ids expire");
  fixture.nowMs += 60_000;
  t.equal(await fixture.store.stream(KEY, "s"), undefined, "a stream past retention is not shown");
  t.equal(await fixture.store.streamTextOffset(KEY, "s", 0), undefined);
  const { store } = fixture as unknown as {
    store: { sweep(): Promise<number> };
  };
  t.equal(await store.sweep(), 1);
  t.equal((await streamKeys()).length, 2, "the active stream stays");
  t.match((await fixture.store.activeStreams([KEY]))[0], { clientMsgNo: "long" });
  await end("", { clientMsgNo: "long" });
  fixture.nowMs += 60_000;
  t.equal(await store.sweep(), 1);
  t.same(await streamKeys(), []);
  t.same((await fixture.store.readMessages(KEY, ALL)).messages, []);
});

t.test("a node reads from Redis only those events of a stream that the node lacks", async (t) => {
  const { fixtures } = await startNodes(t, 2);
  const [reader, writer] = fixtures as [StoreFixture, StoreFixture];
  const { start, content, end } = producer(writer);
  const largeText = "x".repeat(100_000);
  await start();
  await content(largeText);
  const first = await snapshotOf(reader);
  const sent = async () =>
    Number(/total_net_output_bytes:(\d+)/.exec(await redis.info("stats"))?.[1]);
  const before = await sent();
  for (let i = 0; i < 10; i++) t.equal(await snapshotOf(reader), first);
  t.equal((await reader.store.activeStreams([KEY]))[0], first);
  await content("!");
  t.equal((await snapshotOf(reader)).text, `${largeText}!`);
  t.equal(await reader.store.streamTextOffset(KEY, "s", 2), largeText.length);
  t.ok((await sent()) - before < 50_000, "the text was not transferred again");
  await end();
  t.equal((await reader.store.activeStreams([KEY]))[0], undefined);
  t.match(await snapshotOf(reader), { state: "closed" });
  t.equal(first.text, largeText);
});

t.test("concurrent reads of a growing stream return whole snapshots", async (t) => {
  const { fixtures } = await startNodes(t, 2);
  const [reader, writer] = fixtures as [StoreFixture, StoreFixture];
  const { start, content } = producer(writer);
  await start();
  const reads: Promise<string>[] = [];
  for (let i = 0; i < 40; i++) {
    for (let read = 0; read < 3; read++)
      reads.push(snapshotOf(reader).then(({ text, nextIndex }) => `${nextIndex - 1}:${text}`));
    await content(`${i % 10}`);
  }
  const text = "0123456789".repeat(4);
  for (const shown of await Promise.all(reads)) {
    const count = Number(shown.split(":")[0]);
    t.equal(shown, `${count}:${text.slice(0, count)}`);
  }
});

t.test("a node that has read events which Redis lost reads the stream again", async (t) => {
  const { fixture, prefix } = await startNode(t);
  const { start, content } = producer(fixture);
  await start();
  await content("kept ");
  const [head = ""] = await redis.keys(`${prefix}:*:logHead:*`);
  const saved = await redis.hgetallBuffer(head);
  await content("lost");
  t.match(await snapshotOf(fixture), { text: "kept lost", nextIndex: 3 });
  await redis.hset(head, saved); // as after a fail-over that lost the last event
  t.match(await snapshotOf(fixture), { text: "kept ", nextIndex: 2 });
  await content("anew");
  t.match(await snapshotOf(fixture), { text: "kept anew", nextIndex: 3 });
  t.equal(await fixture.store.streamTextOffset(KEY, "s", 2), 5);
});

t.test("an event of a stream needs one call to Redis", async (t) => {
  const { fixture } = await startNode(t);
  const { start, content } = producer(fixture);
  await start();
  await redis.config("RESETSTAT");
  for (let i = 0; i < 5; i++) await content(`${i}`);
  const stats = await redis.info("commandstats");
  const calls = (name: string) =>
    Number(new RegExp(`cmdstat_${name}:calls=(\\d+)`).exec(stats)?.[1] ?? 0);
  t.equal(calls("fcall"), 5);
  t.equal(calls("evalsha"), 0);
  t.equal(calls("setrange"), 5, "each event is written once");
});

t.test("the events of a stream are the records of its log, on every node", async (t) => {
  const { fixtures } = await startNodes(t, 2);
  const [writer, reader] = fixtures as [StoreFixture, StoreFixture];
  const { start, content, tool, end } = producer(writer);
  const name = { kind: "channel", key: KEY, clientMsgNo: "s" } as const;
  const range = { from: LOG_START, maxBytes: 10_000 };
  await start("meta", { eventId: "e0" });
  await content("text");
  const open = await reader.store.readLog(name, range);
  await tool("{}");
  await end("fin");
  const logs = await Promise.all(fixtures.map(({ store }) => store.readLog(name, range)));
  const [log] = logs;
  if (log?.verdict !== "read" || open.verdict !== "read") throw new Error("the log is missing");
  t.same(logs[1], log);
  const bytes = Buffer.concat(log.pieces);
  t.same(bytes.subarray(0, open.next.position), Buffer.concat(open.pieces));
  t.match(log.head, { closed: "closed", records: 4, contentType: "application/json" });
  const records = [...framesIn(bytes)]
    .flatMap((frame) => recordsIn(frame))
    .map((json) => JSON.parse(String(json)));
  t.same(records.pop(), { type: "end", state: "closed" });
  t.same(
    records.map(({ id, index, data }) => [id, index, data]),
    [
      ["e0", 0, "meta"],
      ["1", 1, "text"],
      [records[2]?.id, 2, "{}"],
      ["3", 3, "fin"],
    ],
  );
});

t.test("a stream event that is not replicated is rejected", async (t) => {
  const { fixture, prefix } = await startNode(t);
  const location = { url, prefix };
  const listener = await listenTo(t, { ...location, topics: [] });
  const clock = () => fixture.nowMs;
  const { link, close, start } = createNode(location, listener, { clock });
  await start();
  t.teardown(close);
  let isReplicated = false;
  const ports = {
    ...{ link, clock, onError: () => {} },
    unreadable: new UnreadableRecords(() => {}),
    limits: {
      ...{ dedupeWindowS: 60, retentionS: 0, sweepIntervalMs: 1000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 1000, maxInbox: 1, inboxTtlS: 1, logs: LOG_LIMITS },
    },
    async waitForReplicas() {
      if (!isReplicated) throw new BrokerError("unavailable");
    },
    observeReplicas: () => async () => {},
    personFacts: fixture.store.personFacts,
  };
  const streams = createRedisStreams(ports, createOperations(ports));
  const store = { ...fixture.store, ...streams };
  const { start: begin, content } = producer({ store } as StoreFixture);
  t.equal(await codeOf(begin("", { eventId: "a" })), "unavailable");
  t.equal(await codeOf(content("x", { eventId: "b" })), "unavailable");
  isReplicated = true;
  t.same(await begin("", { eventId: "a" }), ACTIVE);
  t.same(await content("x", { eventId: "b" }), ACTIVE, "the retry is acknowledged");
  t.match(await snapshotOf(fixture), { text: "x", nextIndex: 2 });
});

t.test("an event that cannot be written is not published", async (t) => {
  const location = { url, prefix: freshPrefix(), topics: TOPICS };
  const listener = await listenTo(t, location);
  const store = createNode(location, listener, { clock: Date.now });
  await store.start();
  t.teardown(() => store.close());
  const { start, content } = producer({ store } as unknown as StoreFixture);
  await start();
  await content("1");
  const [frames = ""] = await redis.keys(`${location.prefix}:*:logFrames:*`);
  await redis.rename(frames, "kept");
  await redis.sadd(frames, "x");
  const named = () => content("named", { eventId: "e" });
  const { channel, fromUid, clientMsgNo } = eventOf(STREAM_CONTENT);
  const append = () =>
    store.appendToStream({
      ...{ key: KEY, channel, fromUid, clientMsgNo, permission: "granted", order: undefined },
      ...{ records: [Buffer.from("7")], contentType: "application/json", close: undefined },
      producer: { id: "p", epoch: 0, number: 0 },
    });
  for (const post of [() => content("lost"), named, append])
    t.equal(await codeOf(post()), "internal");
  await redis.rename("kept", frames);
  t.match(await append(), { verdict: "appended" }, "the failed append was not remembered");
  await named();
  await content("2");
  const published = listener.frames.flatMap((frame) =>
    frame.kind === "ordered" && frame.event.kind === "event" ? [frame.event.event.data] : [],
  );
  t.same(published, ["", "1", "named", "2"]);
});

t.test("`streamEvent` succeeds and stores an event if Redis refuses its publication", async (t) => {
  const server = await startRedis(t);
  const { store } = await openStore(t, server.url);
  const { start, content } = producer({ store } as unknown as StoreFixture);
  await start();
  const admin = server.client();
  await admin.call("ACL", "SETUSER", "default", "resetchannels");
  t.same(await content("x"), ACTIVE);
  await admin.call("ACL", "SETUSER", "default", "allchannels");
  const read = async () => (await store.stream(KEY, "s"))?.text;
  while ((await codeOf(read())) === "unavailable")
    // until the node has checked its rights again
    await new Promise((resolve) => setTimeout(resolve, 20));
  t.equal(await read(), "x");
});

t.test("a durable stream leaves no keys when its message is removed", async (t) => {
  const { fixture, prefix } = await startNode(t, { limits: { retentionS: 60 } });
  const { store } = fixture;
  const { channel, fromUid, clientMsgNo } = eventOf(STREAM_START);
  const sender = { key: KEY, channel, fromUid, clientMsgNo, permission: "granted" } as const;
  const keys = () => redis.keys(`${prefix}:*`);
  const before = async () => (await keys()).filter((key) => /log[A-Z]|[sS]treams/.test(key));
  const draft = { contentType: "application/json", records: [Buffer.from("1")] };
  await store.createStream({ ...sender, ...draft, isClosed: false });
  const producing = { producer: { id: "p", epoch: 0, number: 0 }, order: "a" };
  await store.appendToStream({ ...sender, ...draft, ...producing, close: undefined });
  t.match((await before()).length, 5, "head, frames, producers and two lists of active streams");
  const end = { contentType: undefined, records: [], producer: undefined, order: undefined };
  await store.appendToStream({ ...sender, ...end, close: "closed" });
  fixture.nowMs += 61_000;
  await store.sweep();
  t.same(await before(), []);
});

t.test("forks of streams remain when the messages of the streams are removed", async (t) => {
  const { fixture, prefix } = await startNode(t, { limits: { retentionS: FORK_RETENTION_S } });
  const leftovers = async () =>
    (await redis.keys(`${prefix}:*`)).filter((key) => /\}:log[A-Z]/.test(key));
  await forksOfRemovedStreams(t, fixture, leftovers);
});

t.test("a durable stream of a channel continues after Redis is restarted", async (t) => {
  const server = await startRedis(t, ["--appendonly", "yes", "--appendfsync", "always"]);
  const { store } = await openStore(t, server.url);
  const { channel, fromUid, clientMsgNo } = eventOf(STREAM_START);
  const sender = {
    ...{ key: KEY, channel, fromUid, clientMsgNo },
    permission: "granted",
    contentType: "text/plain",
  } as const;
  const append = (number: number) =>
    store.appendToStream({
      ...{ ...sender, records: [Buffer.from(`${number}`)], order: undefined, close: undefined },
      producer: { id: "p", epoch: 0, number },
    });
  const range = { from: LOG_START, maxBytes: 10_000 };
  const read = async () => {
    const log = await store.readLog({ kind: "channel", key: KEY, clientMsgNo: "s" }, range);
    return log.verdict === "read" ? Buffer.concat(log.pieces).toString("hex") : log.verdict;
  };
  await store.createStream({ ...sender, records: [], isClosed: false });
  t.match(await append(0), { verdict: "appended" });
  const before = await read();
  await server.restart();
  while ((await codeOf(append(0))) === "unavailable")
    await new Promise((resolve) => setTimeout(resolve, 20));
  t.match(await append(0), { verdict: "repeated" });
  t.equal(await read(), before);
  t.match(await append(1), { verdict: "appended" });
  t.equal((await read()).slice(0, before.length), before);
  t.match(await store.stream(KEY, "s"), { state: "active", text: "01" });
});

t.test("an event that cannot be written does not affect events of other streams", async (t) => {
  const { store, link } = await openStore(t, url);
  const post = (id: string, type: string, data = "") =>
    store.streamEvent(eventOf(type, data, { channel: { id, type: 2 } }));
  const textOf = async (id: string) => (await store.stream(`2:${id}`, "s"))?.text;
  for (const id of ["a", "b"]) await post(id, STREAM_START);
  await post("a", STREAM_CONTENT, "1");
  const frames = link.keys.channel("logFrames", "2:a", "s");
  await redis.rename(frames, "kept");
  await redis.sadd(frames, "x");
  const results = await Promise.allSettled([
    post("a", STREAM_CONTENT, "lost"),
    post("b", STREAM_CONTENT, "2"),
    post("a", STREAM_CONTENT, "lost too"),
    post("b", STREAM_CONTENT, "3"),
  ]);
  t.same(
    results.map(({ status }) => status),
    ["rejected", "fulfilled", "rejected", "fulfilled"],
  );
  await redis.rename("kept", frames);
  await post("a", STREAM_CONTENT, "4");
  t.same([await textOf("a"), await textOf("b")], ["14", "23"]);
  const offsets = [0, 1, 2, 3].map((index) => store.streamTextOffset("2:a", "s", index));
  t.same(await Promise.all(offsets), [0, 0, 1, 2]);
});

t.test("Redis stores the head of a stream's log in its compact form", async (t) => {
  const { fixture, keys } = await startNode(t);
  const uuid = "0b59e3f4-91c7-4d5e-9b1a-2f6f3f1f2a3b";
  const channel = { id: uuid, type: 2 } as const;
  const names = { channel, key: `2:${uuid}`, fromUid: uuid, clientMsgNo: uuid } as const;
  const { start, content, end } = producer(fixture, names);
  await start();
  await content("words");
  await end();
  const heads = await keys("*logHead:*");
  t.equal(heads.length, 1);
  t.equal(await redis.call("OBJECT", "ENCODING", heads[0] ?? ""), "listpack");
});
