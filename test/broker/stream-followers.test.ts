// Readers of one stream at their own pace: every event once and in order, whatever the store's
// reads, the reader's pauses and the producer do.

import type { Test } from "tap";
import { type ChannelEvent, STREAM_CONTENT, STREAM_END } from "../../src/broker/model.ts";
import type { FollowTarget } from "../../src/broker/stream-followers.ts";
import { matchObject } from "../support/match-object.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import {
  follow,
  HeldStore,
  indexes,
  produce,
  type Reading,
  started,
  turn,
  VIEW,
  world,
} from "./held-store.ts";
import { group, person } from "./node-names.ts";
import { ModelReader } from "./stream-model.ts";

const SEED = Number(process.env.SEED ?? 42);

t.test(
  "a follower gets what there is merged, then each event as it comes, then the end",
  async (t) => {
    const store = started();
    const node = world(store);
    const reading = await follow(node.followers);
    await turn();
    t.same(indexes(reading), [0, 1]);
    produce(node, store.stream.add(STREAM_CONTENT, "two"));
    t.same(indexes(reading), [0, 1, 2], "at once");
    produce(node, store.stream.add(STREAM_END, "", "closed"));
    t.same(indexes(reading), [0, 1, 2, 3]);
    t.equal(reading.ends, 1);
    t.same([...store.listening], [], "nobody listens any more");
  },
);

t.test("an ended stream is read to its end without waiting", async (t) => {
  const store = started();
  store.stream.add(STREAM_END, "bye", "interrupted");
  const reading = await follow(world(store).followers);
  await turn();
  matchObject(t, reading.got.at(-1), {
    data: "bye",
    stream: { state: "interrupted" },
  });
  t.equal(reading.ends, 1);
  const level = await follow(world(store).followers, { fromIndex: 3 });
  await turn();
  t.same([level.got.length, level.ends], [0, 1], "it had everything");
});

t.test("a follower begins at the index it asks for", async (t) => {
  const store = started();
  store.stream.add("___ToolCallStart", "search");
  store.stream.add(STREAM_CONTENT, "two");
  const node = world(store);
  const late = await follow(node.followers, { fromIndex: 3 });
  const next = await follow(node.followers, { fromIndex: 4 });
  await turn();
  matchObject(t, late.got, [{ data: "two", stream: { index: 3, textOffset: 4 } }]);
  t.same(next.got, []);
  produce(node, store.stream.add(STREAM_CONTENT, "!"));
  matchObject(t, next.got, [{ data: "!", stream: { index: 4, textOffset: 7 } }]);
});

t.test("what cannot be followed is refused, and leaves nothing behind", async (t) => {
  const store = started();
  const { followers } = world(store, 1);
  const refused = (given: Partial<FollowTarget>, code: string) =>
    t.rejects(follow(followers, given), { code });
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
  await t.resolves(follow(followers), "the place is free again");
  await refused({}, "overloaded");
});

t.test("a stopped follower gets nothing more and is not told of an end", async (t) => {
  const store = started();
  const node = world(store);
  const reading = await follow(node.followers);
  await turn();
  reading.following?.stop();
  produce(node, store.stream.add(STREAM_END, "", "closed"));
  reading.following?.resume();
  await turn();
  t.same([reading.got.length, reading.ends], [2, 0]);
  t.same([...store.listening], []);
});

t.test("a follower that stops in the middle of what it is given gets no more", async (t) => {
  const store = started();
  const { followers } = world(store);
  const got: ChannelEvent[] = [];
  const following = await followers.follow(
    { view: VIEW, clientMsgNo: "answer", fromIndex: 0 },
    {
      push(event) {
        got.push(event);
        following.stop();
        return true;
      },
      ended: () => t.fail("not the end"),
    },
  );
  await turn();
  t.equal(got.length, 1);
  t.same([...store.listening], []);
});

t.test("a paused follower costs no reads, and gets what it missed merged", async (t) => {
  const store = started();
  const node = world(store);
  const reading = await follow(node.followers, { pauses: true });
  await turn();
  t.same(indexes(reading), [0], "it takes one event at a time");
  const readsBefore = store.reads;
  for (const word of ["two ", "three ", "four"])
    produce(node, store.stream.add(STREAM_CONTENT, word));
  await turn();
  t.same([reading.got.length, store.reads], [1, readsBefore]);
  reading.pauses = false;
  reading.following?.resume();
  await turn();
  matchObject(t, reading.got.slice(1), [
    { data: "one two three four", stream: { index: 1, nextIndex: 5 } },
  ]);
  produce(node, store.stream.add(STREAM_CONTENT, "!"));
  t.equal(reading.got.length, 3, "live again");
});

t.test("an end that comes while a follower pauses is given when it goes on", async (t) => {
  const store = started();
  const node = world(store);
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
});

t.test("events that come during a slow read are not lost and not doubled", async (t) => {
  const store = started();
  const node = world(store);
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
  t.equal(store.heldCount, 1, "it reads again, the first read did not show them");
  store.release();
  await turn();
  const reader = new ModelReader();
  for (const event of reading.got) reader.take(event);
  t.equal(reader.text, "one two three four");
  t.equal(reader.index, 5);
});

t.test("an event that never came is read from the store", async (t) => {
  const store = started();
  const node = world(store);
  const reading = await follow(node.followers);
  await turn();
  store.stream.add(STREAM_CONTENT, "lost ");
  produce(node, store.stream.add(STREAM_CONTENT, "heard"));
  await turn();
  matchObject(t, reading.got.at(-1), {
    data: "lost heard",
    stream: { nextIndex: 4 },
  });
});

t.test("events of other streams and channels are not its own", async (t) => {
  const store = started();
  const node = world(store);
  const reading = await follow(node.followers);
  await turn();
  const event = store.stream.add(STREAM_CONTENT, "x");
  const { stream: _, ...told } = event;
  produce(node, { ...event, clientMsgNo: "other" });
  produce(node, { ...event, key: "2:other" });
  produce(node, { ...told, stream: undefined });
  node.followers.onEvent({ kind: "presence", uid: "alice" });
  await turn();
  t.equal(reading.got.length, 2);
  produce(node, event);
  produce(node, event);
  t.equal(reading.got.length, 3, "and a repeat is none");
});

t.test("a stream that vanishes ends its followers", async (t) => {
  const store = started();
  const node = world(store);
  const reading = await follow(node.followers, { pauses: true });
  await turn();
  store.isGone = true;
  reading.following?.resume();
  await turn();
  t.same([reading.got.length, reading.ends], [1, 1]);
  t.same(node.problems, []);
});

t.test("a read that fails ends the follower and is reported", async (t) => {
  const store = started();
  const node = world(store);
  const reading = await follow(node.followers, { pauses: true });
  await turn();
  store.failure = new Error("no store");
  reading.following?.resume();
  await turn();
  t.equal(reading.ends, 1);
  matchObject(t, node.problems, [{ message: "no store" }]);
  t.same([...store.listening], []);
});

t.test("closing ends everybody once and refuses who is just coming in", async (t) => {
  const store = started();
  const node = world(store, 2);
  const reading = await follow(node.followers);
  await turn();
  store.holds = true;
  const coming = t.rejects(follow(node.followers), { code: "unavailable" });
  await turn();
  for (let times = 0; times < 2; times++) node.followers.close();
  store.holds = false;
  while (store.heldCount > 0) {
    store.release();
    await turn();
  }
  await coming;
  t.equal(reading.ends, 1);
  t.same([...store.listening], []);
  for (let place = 0; place < 2; place++) await follow(node.followers);
  await t.rejects(follow(node.followers), { code: "overloaded" });
});

t.test("a user's followers listen to the user's topic, in any channel of theirs", async (t) => {
  const store = started();
  const { followers } = world(store);
  const view = { channel: person("bot"), uid: "alice" };
  const one = await follow(followers, { view });
  const other = await follow(followers, { view });
  t.same([...store.listening], ["u:alice"]);
  one.following?.stop();
  t.same([...store.listening], ["u:alice"]);
  other.following?.stop();
  t.same([...store.listening], []);
});

t.test("random readers of random streams: every index once and in order, text equal", async (t) => {
  for (let round = 0; round < 60; round++) await randomRound(t, new Random(SEED + round), round);
  t.pass(`seed ${SEED}`);
});

/**
 * One stream, some readers that come, pause and go on at random, reads held and let go in any
 * order, some events lost on the way.
 */
async function randomRound(t: Test, random: Random, round: number) {
  const store = new HeldStore();
  const node = world(store);
  const readings: Promise<Reading>[] = [];
  const known: Reading[] = [];
  const starts = new Map<Reading, number>();
  store.stream.grow(random);
  const total = 20 + random.below(40);
  while (store.stream.events.length < total) {
    store.holds = random.below(3) > 0;
    const step = random.below(8);
    if (step === 0 && readings.length < 6) {
      const fromIndex = random.below(store.stream.events.length + 1);
      const coming = follow(node.followers, { fromIndex });
      readings.push(coming);
      void coming.then((reading) => {
        known.push(reading);
        starts.set(reading, fromIndex);
      });
    } else if (step < 5) {
      const event = store.stream.grow(random);
      if (random.below(10) > 0) produce(node, event);
    } else if (step === 5) store.release(random.below(store.heldCount + 1));
    else if (known.length > 0) {
      const reading = random.pick(known);
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
    for (const event of reading.got) reader.take(event);
    t.equal(reader.text, store.stream.text, `round ${round}`);
    t.equal(reader.index, store.stream.events.length);
    t.equal(reading.ends, 1);
  }
  t.same([...store.listening], []);
  t.same(node.problems, []);
}
