// Streams on a Redis Cluster, where the users of a personal channel are in different slots from the
// channel. Whatever happens between a script and the notification of the users, each user
// eventually receives every event exactly once.

import t, { type Test } from "tap";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../../src/broker/model.ts";
import { createOperations } from "../../../src/store/redis/operations.ts";
import { createStreamSteps } from "../../../src/store/redis/steps/stream-steps.ts";
import { StoreFixture } from "../../contract/store-fixture.ts";
import {
  ACTIVE,
  channelEventsOf,
  eventOf,
  producer,
  streamResult,
} from "../../contract/store-stream-fixture.ts";
import { conversationsOf } from "../../support/conversation-list.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { createNode, freshPrefix, listenTo } from "./stream-nodes.ts";

const { url } = await startRedisCluster(t);
const TO_BOB = { channel: { id: "bob", type: 1 } } as const;
const WITH_BOB = "1:alice@bob";
const TOO_MANY_BYTES = 3_000_000;
const LIMITS = {
  ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 3_600_000 },
  maxChannelMessages: 0,
  ...{ maxStreamBytes: 1000, maxInbox: 1000, inboxTtlS: 604_800, logs: LOG_LIMITS },
};

/**
 * Starts a node for alice and one for bob. `steps` are the scripts of a third node, which dies
 * before it notifies anyone.
 */
async function startPair(t: Test) {
  const prefix = freshPrefix();
  const sides = await Promise.all(
    ["alice", "bob"].map(async (uid) => {
      const location = { url, prefix, topics: [`u:${uid}`] };
      const listener = await listenTo(t, location);
      let node: ReturnType<typeof createNode> | undefined;
      const fixture = new StoreFixture({
        create({ publisher, clock }) {
          listener.onEvent = (event) => publisher.publish(event);
          node = createNode(location, listener, { clock });
          return node;
        },
      });
      await fixture.store.start();
      t.teardown(() => fixture.store.close());
      if (node === undefined) throw new Error("the test has started no node");
      return { fixture, link: node.link };
    }),
  );
  const [alice, bob] = sides;
  if (alice === undefined || bob === undefined)
    throw new Error("the test has started too few nodes");
  const { link } = alice;
  const clock = () => alice.fixture.nowMs;
  const ports = { link, clock, limits: LIMITS, waitForReplicas: () => undefined };
  const steps = createStreamSteps(ports, createOperations(ports));
  const activeKey = link.keys.bucket("activeStreams", bucketOf(WITH_BOB));
  return {
    ...{ alice: alice.fixture, bob: bob.fixture, steps },
    active: async () => (await link.call("zrange", activeKey, 0, -1)) as Buffer[],
    indexedStreams: async (uid: string) =>
      String(await link.call("smembers", link.keys.user("streams", uid))),
    peers: async (uid: string) =>
      String(await link.call("zrange", link.keys.user("peers", uid), 0, -1)),
  };
}

const until = async (holds: () => Promise<boolean> | boolean) => {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5));
};
const typesIn = (fixture: StoreFixture) => channelEventsOf(fixture).map(({ type }) => type);

t.test("both users receive the events of a personal stream in order", async (t) => {
  const { alice, bob, indexedStreams, peers, active } = await startPair(t);
  const { start, content, end } = producer(alice, TO_BOB);
  const steps = await Promise.all([
    content("early"),
    start("meta"),
    content("a"),
    content("b"),
    alice.store.cancelStream(WITH_BOB, "none"),
    content("c"),
  ]);
  t.same(
    steps.map(({ verdict }) => verdict),
    ["missing", "done", "done", "done", "missing", "done"],
  );
  t.equal((await bob.store.personalStreamsOf("bob"))[0]?.text, "abc");
  t.same(await indexedStreams("alice"), WITH_BOB);
  t.same(await peers("bob"), "alice");
  await end();
  await until(() => typesIn(bob).includes(STREAM_END));
  for (const { events } of [alice, bob])
    t.same(
      events.map((event) => (event.kind === "event" ? event.event.data : event.kind)),
      ["message", "meta", "a", "b", "c", ""],
    );
  await until(async () => (await active()).length === 0);
  t.same(await bob.store.personalStreamsOf("bob"), []);
  t.same(await indexedStreams("bob"), "");
});

t.test("a start with `force` is published after the end of the active stream", async (t) => {
  const { alice, bob, active } = await startPair(t);
  const { start } = producer(alice, TO_BOB);
  await start();
  t.same(await start("", { clientMsgNo: "s2", force: true }), ACTIVE);
  await until(() => bob.events.length === 5);
  t.same(typesIn(bob), [STREAM_START, STREAM_END, STREAM_START]);
  await until(async () => (await active()).length === 1);
  t.equal((await bob.store.activeStreams([WITH_BOB]))[0]?.clientMsgNo, "s2");
});

t.test("a producer's retry delivers an event that was not published", async (t) => {
  const { alice, bob, steps } = await startPair(t);
  const { start, content } = producer(alice, TO_BOB);
  await start();
  const event = { ...TO_BOB, eventId: "e1" };
  await steps.event(eventOf(STREAM_CONTENT, "x", event));
  t.same(await content("x", { eventId: "e1" }), ACTIVE);
  for (const fixture of [alice, bob]) {
    await until(() => fixture.events.length === 3);
    t.match(channelEventsOf(fixture)[1], { eventId: "e1", stream: { index: 1 } });
  }
  await content("x", { eventId: "e1" });
  await content("y", { eventId: "e2" });
  await until(() => channelEventsOf(bob).length === 3);
  t.match(channelEventsOf(bob)[2], { eventId: "e2" }, "no event arrived twice");
});

t.test("a producer's retry delivers a stream start that was not published", async (t) => {
  const { alice, bob, steps, peers } = await startPair(t);
  const { start, content, end } = producer(alice, TO_BOB);
  const startEvent = eventOf(STREAM_START, "meta", { ...TO_BOB, eventId: "e0" });
  await steps.event(startEvent);
  const acceptedMs = alice.nowMs;
  alice.nowMs += 1000;
  t.same(await start("meta", { eventId: "e0" }), ACTIVE);
  for (const fixture of [alice, bob]) {
    await until(() => fixture.events.length === 2);
    const [first] = fixture.events;
    t.match(first, {
      kind: "message",
      message: { messageSeq: 1, timestampMs: acceptedMs },
    });
  }
  await content("x");
  await start("meta", { eventId: "e0" });
  await end();
  await until(() => typesIn(bob).includes(STREAM_END));
  t.same(typesIn(bob), [STREAM_START, STREAM_CONTENT, STREAM_END]);
  t.same([await peers("alice"), await peers("bob")], ["bob", "alice"]);
});

t.test("the indexes of both users are written before a personal stream starts", async (t) => {
  const { alice, indexedStreams, peers } = await startPair(t);
  const { start } = producer(alice, TO_BOB);
  await t.rejects(start("x".repeat(TOO_MANY_BYTES)), {
    code: "too_large",
  });
  t.same([await peers("alice"), await peers("bob")], ["bob", "alice"]);
  t.same(await indexedStreams("alice"), WITH_BOB);
  t.same(await conversationsOf(alice.store, "alice"), []);
  t.same(await peers("alice"), "", "an empty channel is removed from the peer indexes again");
});

t.test("a sweep delivers the unpublished end of a stream", async (t) => {
  const { alice, bob, steps, active } = await startPair(t);
  await producer(alice, TO_BOB).start();
  await steps.event(eventOf(STREAM_END, "fin", TO_BOB));
  t.equal((await active()).length, 1);
  for (const fixture of [alice, bob]) fixture.nowMs += 1000;
  t.equal(await bob.store.interruptStreams(0), 0);
  await until(() => typesIn(alice).includes(STREAM_END));
  await until(() => typesIn(bob).includes(STREAM_END));
  t.match(channelEventsOf(bob).at(-1), { data: "fin", stream: { state: "closed" } });
  await until(async () => (await active()).length === 0);
});

t.test("41 silent streams in different channels each end exactly once", async (t) => {
  const { alice, bob } = await startPair(t);
  const { start } = producer(alice);
  await start("", TO_BOB);
  for (let i = 0; i < 40; i++) await start("", { channel: { id: `q${i}`, type: 2 } });
  for (const fixture of [alice, bob]) fixture.nowMs += 1000;
  const counts = await Promise.all([alice, bob].map(({ store }) => store.interruptStreams(0)));
  t.equal(
    counts.reduce((sum, count) => sum + count),
    41,
  );
  await until(() => typesIn(bob).includes(STREAM_END));
  t.match(channelEventsOf(bob).at(-1), { stream: { state: "interrupted" } });
  t.same(await producer(bob).content("late", TO_BOB), streamResult("closed", "interrupted"));
});
