// Followers of one stream: each gets every event once and in order, regardless of slow reads of the
// store, pauses of the follower and the timing of the producer.

import type { Test } from "tap";
import {
  type ChannelEvent,
  STREAM_CONTENT,
  STREAM_END,
  type Topic,
} from "../../src/broker/model.ts";
import type { FollowTarget } from "../../src/broker/stream-followers.ts";
import { matchObject } from "../support/match-object.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import {
  createFollowers,
  follow,
  HeldStore,
  indexes,
  produce,
  type Reading,
  storeWithStream,
  turn,
  VIEW,
} from "./held-store.ts";
import { group, person } from "./node-names.ts";
import { ModelReader } from "./stream-model.ts";

const SEED = Number(process.env.SEED ?? 42);

t.test(
  "a follower gets the stored events, each later event when it is published, and the end",
  async (t) => {
    const store = storeWithStream();
    const node = createFollowers(store);
    const reading = await follow(node.followers);
    await turn();
    t.same(indexes(reading), [0, 1]);
    produce(node, store.stream.add(STREAM_CONTENT, "two"));
    t.same(indexes(reading), [0, 1, 2], "a published event is pushed immediately");
    produce(node, store.stream.add(STREAM_END, "", "closed"));
    t.same(indexes(reading), [0, 1, 2, 3]);
    t.equal(reading.ends, 1);
    t.same([...store.listening], [], "the node no longer listens to the topic");
  },
);

t.test("a follower of an ended stream gets all events and the end immediately", async (t) => {
  const store = storeWithStream();
  store.stream.add(STREAM_END, "bye", "interrupted");
  const reading = await follow(createFollowers(store).followers);
  await turn();
  matchObject(t, reading.events.at(-1), {
    data: "bye",
    stream: { state: "interrupted" },
  });
  t.equal(reading.ends, 1);
  const complete = await follow(createFollowers(store).followers, { fromIndex: 3 });
  await turn();
  t.same([complete.events.length, complete.ends], [0, 1], "no event is left to push");
});

t.test("a follower starts at the requested index of the stream", async (t) => {
  const store = storeWithStream();
  store.stream.add("___ToolCallStart", "search");
  store.stream.add(STREAM_CONTENT, "two");
  const node = createFollowers(store);
  const late = await follow(node.followers, { fromIndex: 3 });
  const next = await follow(node.followers, { fromIndex: 4 });
  await turn();
  matchObject(t, late.events, [{ data: "two", stream: { index: 3, textOffset: 4 } }]);
  t.same(next.events, []);
  produce(node, store.stream.add(STREAM_CONTENT, "!"));
  matchObject(t, next.events, [{ data: "!", stream: { index: 4, textOffset: 7 } }]);
});

t.test("a refused follower is not added and leaves no subscription behind", async (t) => {
  const store = storeWithStream();
  const { followers } = createFollowers(store, 1);
  const refused = (changes: Partial<FollowTarget>, code: string) =>
    t.rejects(follow(followers, changes), { code });
  await refused({ clientMsgNo: "other" }, "stream_unknown");
  await refused({ fromIndex: 3 }, "bad_request");
  await refused({ view: { channel: group("a@b"), uid: undefined } }, "bad_id");
  await refused({ view: { channel: person("bob"), uid: undefined } }, "bad_id");
  store.failure = new Error("no store");
  await t.rejects(follow(followers), { message: "no store" });
  store.failure = undefined;
  t.same([...store.listening], []);
  const reading = await follow(followers);
  await refused({}, "overloaded");
  reading.following?.stop();
  reading.following?.stop();
  await t.resolves(follow(followers), "a stopped follower makes room for another one");
  await refused({}, "overloaded");
});

t.test("a stopped follower gets neither further events nor the end", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const reading = await follow(node.followers);
  await turn();
  reading.following?.stop();
  produce(node, store.stream.add(STREAM_END, "", "closed"));
  reading.following?.resume();
  await turn();
  t.same([reading.events.length, reading.ends], [2, 0]);
  t.same([...store.listening], []);
});

t.test("a follower that stops while events are pushed gets no further events", async (t) => {
  const store = storeWithStream();
  const { followers } = createFollowers(store);
  const events: ChannelEvent[] = [];
  const following = await followers.follow(
    { view: VIEW, clientMsgNo: "answer", fromIndex: 0 },
    {
      push(event) {
        events.push(event);
        following.stop();
        return true;
      },
      ended: () => t.fail("a stopped follower gets no end"),
    },
  );
  await turn();
  t.equal(events.length, 1);
  t.same([...store.listening], []);
});

t.test(
  "a paused follower causes no reads, and later receives the missed content in one event",
  async (t) => {
    const store = storeWithStream();
    const node = createFollowers(store);
    const reading = await follow(node.followers, { pauses: true });
    await turn();
    t.same(indexes(reading), [0], "the sink pauses after the first event");
    const readsBefore = store.reads;
    for (const word of ["two ", "three ", "four"])
      produce(node, store.stream.add(STREAM_CONTENT, word));
    await turn();
    t.same([reading.events.length, store.reads], [1, readsBefore]);
    reading.pauses = false;
    reading.following?.resume();
    await turn();
    matchObject(t, reading.events.slice(1), [
      { data: "one two three four", stream: { index: 1, nextIndex: 5 } },
    ]);
    produce(node, store.stream.add(STREAM_CONTENT, "!"));
    t.equal(reading.events.length, 3, "events are pushed again");
  },
);

t.test(
  "a follower that is paused at the end of the stream gets the end when it resumes",
  async (t) => {
    const store = storeWithStream();
    const node = createFollowers(store);
    const reading = await follow(node.followers, { pauses: true });
    await turn();
    produce(node, store.stream.add(STREAM_END, "", "cancelled"));
    await turn();
    t.equal(reading.ends, 0);
    for (let step = 0; step < 2; step++) {
      reading.following?.resume();
      await turn();
    }
    t.same(indexes(reading), [0, 1, 2]);
    t.equal(reading.ends, 1);
  },
);

t.test("events that are published during a slow read are pushed exactly once", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const reading = await follow(node.followers);
  await turn();
  reading.pauses = true;
  produce(node, store.stream.add(STREAM_CONTENT, "two "));
  store.holds = true;
  reading.pauses = false;
  reading.following?.resume();
  produce(node, store.stream.add(STREAM_CONTENT, "three "));
  produce(node, store.stream.add(STREAM_CONTENT, "four"));
  store.release();
  await turn();
  t.equal(
    store.heldCount,
    1,
    "the store is read again, because the first read lacks the new events",
  );
  store.release();
  await turn();
  const reader = new ModelReader();
  for (const event of reading.events) reader.apply(event);
  t.equal(reader.text, "one two three four");
  t.equal(reader.index, 5);
});

t.test("a published event that a follower did not receive is read from the store", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const reading = await follow(node.followers);
  await turn();
  store.stream.add(STREAM_CONTENT, "lost ");
  produce(node, store.stream.add(STREAM_CONTENT, "heard"));
  await turn();
  matchObject(t, reading.events.at(-1), {
    data: "lost heard",
    stream: { nextIndex: 4 },
  });
});

t.test("a follower gets no events of other streams and channels", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const reading = await follow(node.followers);
  await turn();
  const event = store.stream.add(STREAM_CONTENT, "x");
  const { stream: _, ...fields } = event;
  produce(node, { ...event, clientMsgNo: "other" });
  produce(node, { ...event, key: "2:other" });
  produce(node, { ...fields, stream: undefined });
  node.followers.onEvent({ kind: "presence", uid: "alice" });
  await turn();
  t.equal(reading.events.length, 2);
  produce(node, event);
  produce(node, event);
  t.equal(reading.events.length, 3, "a repeated event is pushed once");
});

t.test("a follower ends when the stream is no longer stored", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const reading = await follow(node.followers, { pauses: true });
  await turn();
  store.isGone = true;
  reading.following?.resume();
  await turn();
  t.same([reading.events.length, reading.ends], [1, 1]);
  t.same(node.errors, []);
});

t.test("a failed read of the stream ends the follower and is reported", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const reading = await follow(node.followers, { pauses: true });
  await turn();
  store.failure = new Error("no store");
  reading.following?.resume();
  await turn();
  t.equal(reading.ends, 1);
  matchObject(t, node.errors, [{ message: "no store" }]);
  t.same([...store.listening], []);
});

t.test("a follower reads the stream again when events may have been missed", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const reading = await follow(node.followers);
  await turn();
  store.stream.add(STREAM_CONTENT, "lost");
  store.stream.add(STREAM_END, "", "closed");
  for (const topic of store.listening)
    node.followers.onEvent({ kind: "missed", topic: topic as Topic });
  await turn();
  t.same(indexes(reading), [0, 1, 2, 3]);
  t.equal(reading.ends, 1);
});

t.test("a failed read does not end a follower if a later read is in progress", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const viewer = { uid: "alice", mayStay: async () => true };
  const reading = await follow(node.followers, { viewer });
  await turn();
  store.holds = true;
  const recheck = () => node.followers.onEvent({ kind: "credential", uid: "alice" });
  recheck();
  recheck();
  store.failure = new Error("no store");
  store.release();
  await turn();
  store.failure = undefined;
  store.release();
  await turn();
  store.holds = false;
  produce(node, store.stream.add(STREAM_CONTENT, "later"));
  await turn();
  t.same(indexes(reading), [0, 1, 2]);
  t.same([reading.ends, node.errors.length], [0, 0]);
});

t.test("`close` ends every follower once and refuses followers that are being added", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store, 2);
  const reading = await follow(node.followers);
  await turn();
  store.holds = true;
  const refused = t.rejects(follow(node.followers), { code: "unavailable" });
  await turn();
  for (let times = 0; times < 2; times++) node.followers.close();
  store.holds = false;
  while (store.heldCount > 0) {
    store.release();
    await turn();
  }
  await refused;
  t.equal(reading.ends, 1);
  t.same([...store.listening], []);
  for (let place = 0; place < 2; place++) await follow(node.followers);
  await t.rejects(follow(node.followers), { code: "overloaded" });
});

t.test("followers of a stream in a personal channel listen to their user's topic", async (t) => {
  const store = storeWithStream();
  const { followers } = createFollowers(store);
  const view = { channel: person("bot"), uid: "alice" };
  const first = await follow(followers, { view });
  const second = await follow(followers, { view });
  t.same([...store.listening], ["u:alice"]);
  first.following?.stop();
  t.same([...store.listening], ["u:alice"]);
  second.following?.stop();
  t.same([...store.listening], []);
});

t.test(
  "followers that join, pause and resume at random get every index of a stream once, in order, and the whole text",
  async (t) => {
    for (let round = 0; round < 60; round++) await randomRound(t, new Random(SEED + round), round);
    t.pass(`seed ${SEED}`);
  },
);

/**
 * Runs a random stream with followers that join, pause and resume at random. Reads of the store are
 * delayed and finish in any order, and some events are not received.
 */
async function randomRound(t: Test, random: Random, round: number) {
  const store = new HeldStore();
  const node = createFollowers(store);
  const readings: Promise<Reading>[] = [];
  const joined: Reading[] = [];
  const starts = new Map<Reading, number>();
  store.stream.grow(random);
  const total = 20 + random.below(40);
  while (store.stream.events.length < total) {
    store.holds = random.below(3) > 0;
    const step = random.below(8);
    if (step === 0 && readings.length < 6) {
      const fromIndex = random.below(store.stream.events.length + 1);
      const joining = follow(node.followers, { fromIndex });
      readings.push(joining);
      void joining.then((reading) => {
        joined.push(reading);
        starts.set(reading, fromIndex);
      });
    } else if (step < 5) {
      const event = store.stream.grow(random);
      if (random.below(10) > 0) produce(node, event);
    } else if (step === 5) store.release(random.below(store.heldCount + 1));
    else if (joined.length > 0) {
      const reading = random.pick(joined);
      reading.pauses = random.flip();
      reading.following?.resume();
    }
    if (random.flip()) await turn();
  }
  produce(node, store.stream.end(random));
  store.holds = false;
  while (store.heldCount > 0) {
    store.release(random.below(store.heldCount));
    await turn();
  }
  for (const reading of await Promise.all(readings)) {
    reading.pauses = false;
    while (reading.ends === 0) {
      reading.following?.resume();
      await turn();
    }
    const from = starts.get(reading) ?? 0;
    const before = store.stream.text.slice(0, store.stream.offsetOf(from));
    const reader = new ModelReader(from, before);
    for (const event of reading.events) reader.apply(event);
    t.equal(reader.text, store.stream.text, `the text is complete in round ${round}`);
    t.equal(reader.index, store.stream.events.length);
    t.equal(reading.ends, 1);
  }
  t.same([...store.listening], []);
  t.same(node.errors, []);
}
