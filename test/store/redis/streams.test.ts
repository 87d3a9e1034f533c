// Streams on one Redis beyond the Store contract: several nodes at once, what is kept and
// reclaimed, what is not sent twice.

import t, { type Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import { STREAM_CONTENT, STREAM_END } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { eventHead, eventTail } from "../../../src/store/redis/steps/stream-record.ts";
import { createRedisStreams } from "../../../src/store/redis/steps/streams.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { ALL, codeOf, draftOf, StoreFixture } from "../../contract/store-fixture.ts";
import {
  ACTIVE,
  channelEventsOf,
  KEY,
  producer,
  snapshotOf,
  streamResult,
} from "../../contract/store-stream-fixture.ts";
import { encodeEvent } from "../../redis/event-frames.ts";
import { startRedis } from "../../support/redis.ts";
import { createNode, freshPrefix, listenTo, type NodeOptions } from "./stream-nodes.ts";

const { url, client } = await startRedis(t);
const redis = client();
const TOPICS = ["g:g", "g:h", "u:alice", "u:bob"];
const TO_BOB = { channel: { id: "bob", type: 1 } } as const;
const WITH_BOB = "1:alice@bob";

/** Nodes on one prefix, each with its own listener. */
async function nodes(t: Test, count: number, options: Pick<NodeOptions, "limits"> = {}) {
  const place = { url, prefix: freshPrefix(), topics: TOPICS };
  const fixtures: StoreFixture[] = [];
  for (let i = 0; i < count; i++) {
    const ears = await listenTo(t, place);
    const fixture = new StoreFixture({
      create({ publisher, clock }) {
        ears.hear = (event) => publisher.publish(event);
        return createNode(place, ears, { clock, ...options });
      },
    });
    await fixture.store.start();
    t.teardown(() => fixture.store.close());
    fixtures.push(fixture);
  }
  const keys = (part: string) => redis.keys(`${place.prefix}:*:${part}`);
  return { fixtures, prefix: place.prefix, keys };
}

async function node(t: Test, options: Pick<NodeOptions, "limits"> = {}) {
  const { fixtures, ...rest } = await nodes(t, 1, options);
  const [fixture] = fixtures;
  if (fixture === undefined) throw new Error("no node");
  return { fixture, ...rest };
}

const placeOf = (event: ClusterEvent) =>
  event.kind === "event" ? [event.event.stream?.index, event.event.data] : event.kind;

t.test("the halves of an event's record are the record", async (t) => {
  const channel = { id: "g", type: 2 } as const;
  const id = "e".repeat(20);
  const event = {
    ...{ channel, fromUid: "älice", clientMsgNo: "s", eventId: id },
    ...{ type: STREAM_CONTENT, data: "zwö", timestampMs: 1_767_225_600_001 },
  };
  const packedId = Buffer.from([0xa0 + id.length, ...Buffer.from(id)]);
  t.same(Buffer.concat([eventHead(event), packedId, eventTail(event)]), encodeEvent(event));
});

t.test("events of several nodes have one order everywhere", async (t) => {
  const { fixtures } = await nodes(t, 3);
  const [one, two, three] = fixtures.map((fixture) => producer(fixture));
  await one?.start();
  const posts = Array.from({ length: 60 }, (_, i) => [one, two, three][i % 3]?.content(`${i} `));
  await Promise.all([...posts, fixtures[0]?.store.append(draftOf())]);
  await two?.end();
  const orders = fixtures.map(({ store }) => store.stream(KEY, "s"));
  const [shown, ...others] = await Promise.all(orders);
  for (const other of others) t.same(other, shown);
  t.equal(shown?.nextIndex, 62);
  const heard = fixtures.map(({ events }) => events.map(placeOf));
  t.equal(heard[0]?.length, 64, "two messages, 62 events");
  t.same(heard[1], heard[0]);
  t.same(heard[2], heard[0]);
  const told = channelEventsOf(fixtures[2] as StoreFixture).filter(
    (e) => e.type === STREAM_CONTENT,
  );
  t.equal(told.map((e) => e.data).join(""), shown?.text);
});

t.test("of starts at once on several nodes one begins", async (t) => {
  const { fixtures } = await nodes(t, 3);
  const steps = await Promise.all(
    fixtures.map((fixture, i) => producer(fixture).start("", { clientMsgNo: `s${i}` })),
  );
  t.same(steps.map((s) => s.verdict).sort(), ["done", "running", "running"]);
  t.equal(await fixtures[0]?.store.headSeq(KEY), 1);
});

t.test("several nodes at once end a silent stream once", async (t) => {
  const { fixtures, keys } = await nodes(t, 3);
  const [fixture] = fixtures as [StoreFixture];
  for (let i = 0; i < 100; i++)
    await producer(fixture).start("", { channel: { id: `q${i}`, type: 2 } });
  await producer(fixture).start();
  for (const each of fixtures) each.nowMs += 1000;
  const counts = await Promise.all(
    fixtures.map(({ store, nowMs }) => store.interruptStreams(nowMs)),
  );
  t.equal(
    counts.reduce((sum, count) => sum + count),
    101,
  );
  for (const each of fixtures) {
    t.match(await snapshotOf(each), { state: "interrupted", nextIndex: 2 });
    const ends = channelEventsOf(each).filter((e) => e.type === STREAM_END);
    t.equal(ends.length, 1);
  }
  t.same(await keys("activeStreams"), [], "nothing goes on");
});

t.test("a node that has not had Redis for so long judges nobody", async (t) => {
  const { fixtures } = await nodes(t, 2);
  const [first, second] = fixtures as [StoreFixture, StoreFixture];
  await producer(first).start();
  first.nowMs += 60_000;
  second.nowMs = first.nowMs;
  await second.reopen();
  t.equal(await second.store.interruptStreams(second.nowMs - 1), 0);
  t.equal(await first.store.interruptStreams(first.nowMs - 1), 1);
});

t.test("the bound counts all that a viewer is sent", async (t) => {
  const { fixture } = await node(t, { limits: { maxStreamBytes: 1000 } });
  const { start, content, tool, end } = producer(fixture);
  t.equal(await codeOf(start("x".repeat(1001))), "too_large");
  t.equal(await fixture.store.headSeq(KEY), 0);
  await start("x".repeat(400));
  await content('"'.repeat(250)); // 500 bytes as JSON
  t.equal(await codeOf(content("y".repeat(101))), "too_large");
  t.equal(await codeOf(tool("y".repeat(50))), "too_large", "it has an id");
  t.same(await content("y".repeat(99)), ACTIVE);
  t.equal(await codeOf(end("data")), "too_large");
  t.same(await end(), streamResult("done", "closed"), "an end alone fits always");
  t.match(await snapshotOf(fixture), { nextIndex: 4, state: "closed" });
});

t.test("what no stream takes is refused before it is sent", async (t) => {
  const { fixture } = await node(t);
  const { start } = producer(fixture);
  t.equal(await codeOf(start("", { type: "___Other" })), "bad_request");
  const never = { timestampMs: Number.NaN };
  t.equal(await codeOf(start("", never)), "bad_request");
});

t.test("a personal stream is entered with both users", async (t) => {
  const { fixture, prefix } = await node(t);
  const { start, content, end } = producer(fixture, TO_BOB);
  const of = (uid: string, part: string) => `${prefix}:{u:${uid}}:${part}`;
  await start();
  await content("to both");
  t.same(await redis.zrange(of("alice", "peers"), "0", "-1"), ["bob"]);
  t.same(await redis.zrange(of("bob", "peers"), "0", "-1"), ["alice"]);
  t.same(await redis.smembers(of("bob", "streams")), [WITH_BOB]);
  t.equal((await fixture.store.personalStreamsOf("bob"))[0]?.text, "to both");
  t.equal(channelEventsOf(fixture).length, 2, "heard on two topics, told once");
  await end();
  t.same(await redis.smembers(of("alice", "streams")), []);
  t.same(await redis.smembers(of("bob", "streams")), []);
});

t.test("a hint without a stream is forgotten, one with is kept", async (t) => {
  const { fixture, prefix } = await node(t);
  const hints = `${prefix}:{u:alice}:streams`;
  await producer(fixture, TO_BOB).start();
  await redis.sadd(hints, "1:alice@zoe", "1:alice@yan");
  const found = await fixture.store.personalStreamsOf("alice");
  t.same(
    found.map((s) => s.key),
    [WITH_BOB],
  );
  t.same(await redis.smembers(hints), [WITH_BOB]);
});

t.test("who writes to themselves is one user", async (t) => {
  const { fixture, prefix } = await node(t);
  const { start, end } = producer(fixture, {
    channel: { id: "alice", type: 1 },
  });
  await start();
  t.equal((await fixture.store.personalStreamsOf("alice")).length, 1);
  t.same(await redis.zrange(`${prefix}:{u:alice}:peers`, "0", "-1"), ["alice"]);
  await end();
  t.equal(channelEventsOf(fixture).length, 2);
});

t.test("nothing of a stream stays behind its message", async (t) => {
  const limits = { retentionS: 60 };
  const { fixture, prefix } = await node(t, { limits });
  const { start, content, tool, end } = producer(fixture);
  const ofStreams = async () =>
    (await redis.keys(`${prefix}:*`)).filter((k) =>
      /}:stream(|Text|Offsets|Notes|EventIds):/.test(k),
    );
  await start("", { eventId: "e0" });
  await content("text");
  await tool("{}");
  await end();
  await start("", { clientMsgNo: "long" });
  t.equal((await ofStreams()).length, 5 + 2);
  const [ids = ""] = await redis.keys(`${prefix}:*:streamEventIds:*`);
  t.ok((await redis.pttl(ids)) > 0, "retries come for a while only");
  fixture.nowMs += 60_000;
  t.equal(await fixture.store.stream(KEY, "s"), undefined, "past retention");
  t.equal(await fixture.store.streamTextOffset(KEY, "s", 0), undefined);
  const { store } = fixture as unknown as {
    store: { sweep(): Promise<number> };
  };
  t.equal(await store.sweep(), 1);
  t.equal((await ofStreams()).length, 2, "the active one stays");
  t.match(await fixture.store.activeStream(KEY), { clientMsgNo: "long" });
  await end("", { clientMsgNo: "long" });
  fixture.nowMs += 60_000;
  t.equal(await store.sweep(), 1);
  t.same(await ofStreams(), []);
  t.same((await fixture.store.readMessages(KEY, ALL)).messages, []);
});

t.test("a snapshot is sent again only when it is another", async (t) => {
  const { fixtures } = await nodes(t, 2);
  const [reader, writer] = fixtures as [StoreFixture, StoreFixture];
  const { start, content, end } = producer(writer);
  const big = "x".repeat(100_000);
  await start();
  await content(big);
  const first = await snapshotOf(reader);
  const sent = async () =>
    Number(/total_net_output_bytes:(\d+)/.exec(await redis.info("stats"))?.[1]);
  const before = await sent();
  for (let i = 0; i < 10; i++) t.equal(await snapshotOf(reader), first);
  t.equal(await reader.store.activeStream(KEY), first);
  t.ok((await sent()) - before < 50_000, "no text went over");
  await content("!");
  t.equal((await snapshotOf(reader)).text, `${big}!`);
  await end();
  t.equal(await reader.store.activeStream(KEY), undefined);
  t.match(await snapshotOf(reader), { state: "closed" });
  t.equal(first.text, big);
});

t.test("an event that is not replicated is not acknowledged", async (t) => {
  const { fixture, prefix } = await node(t);
  const place = { url, prefix };
  const ears = await listenTo(t, { ...place, topics: [] });
  const clock = () => fixture.nowMs;
  const { link, close, start } = createNode(place, ears, { clock });
  await start();
  t.teardown(close);
  let isReplicated = false;
  const streams = createRedisStreams({
    ...{ link, clock, onError: () => {} },
    unreadable: new UnreadableRecords(() => {}),
    limits: {
      ...{ dedupeWindowS: 60, retentionS: 0, sweepIntervalMs: 1000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 1000, maxInbox: 1, inboxTtlS: 1 },
    },
    async waitForReplicas() {
      if (!isReplicated) throw new BrokerError("unavailable");
    },
  });
  const store = { ...fixture.store, ...streams };
  const { start: begin, content } = producer({ store } as StoreFixture);
  t.equal(await codeOf(begin("", { eventId: "a" })), "unavailable");
  t.equal(await codeOf(content("x", { eventId: "b" })), "unavailable");
  isReplicated = true;
  t.same(await begin("", { eventId: "a" }), ACTIVE);
  t.same(await content("x", { eventId: "b" }), ACTIVE, "the retry");
  t.match(await snapshotOf(fixture), { text: "x", nextIndex: 2 });
});
