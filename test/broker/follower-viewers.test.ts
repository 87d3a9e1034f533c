// Followers that read by a user's right: nothing goes out while that right is in doubt, and one
// user takes only so many places.

import { STREAM_CONTENT } from "../../src/broker/model.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { follow, indexes, produce, started, turn, world } from "./held-store.ts";

const CHANGED = { kind: "credential", uid: "alice" } as const;

/** A viewer whose judgements wait for `judged`. */
function viewer(uid = "alice") {
  const waiting: ((mayStay: boolean) => void)[] = [];
  const mayStay = () => new Promise<boolean>((judge) => waiting.push(judge));
  const judged = async (may: boolean): Promise<void> => {
    await turn(); // it is read first
    waiting.shift()?.(may);
    await turn();
  };
  return { viewer: { uid, mayStay }, waiting, judged };
}

t.test("a viewer gets nothing before it is judged", async (t) => {
  const store = started();
  const node = world(store);
  const alice = viewer();
  const bob = viewer("bob");
  const reading = await follow(node.followers, alice);
  const refused = await follow(node.followers, bob);
  t.same([...store.listening].sort(), ["g:g", "u:alice", "u:bob"]);
  produce(node, store.stream.add(STREAM_CONTENT, "two"));
  await turn();
  t.same([reading.got.length, refused.got.length], [0, 0]);
  await alice.judged(true);
  await bob.judged(false);
  t.same(indexes(reading), [0, 1]);
  t.same([refused.got.length, refused.ends], [0, 1]);
  t.same([...store.listening].sort(), ["g:g", "u:alice"]);
});

t.test(
  "a viewer in doubt gets nothing more until it is judged, and then what it missed",
  async (t) => {
    const store = started();
    const node = world(store);
    const alice = viewer();
    const reading = await follow(node.followers, alice);
    const other = await follow(node.followers);
    await alice.judged(true);
    node.followers.onEvent(CHANGED);
    produce(node, store.stream.add(STREAM_CONTENT, "two "));
    produce(node, store.stream.add(STREAM_CONTENT, "three"));
    await turn();
    t.same([reading.got.length, other.got.length], [2, 4]);
    await alice.judged(true); // for what was read before these came
    t.equal(reading.got.length, 2);
    await alice.judged(true);
    matchObject(t, reading.got.slice(2), [{ data: "two three" }]);
    produce(node, store.stream.add(STREAM_CONTENT, "!"));
    t.equal(reading.got.length, 4, "live again");
    node.followers.onEvent(CHANGED);
    produce(node, store.stream.add(STREAM_CONTENT, "secret"));
    await alice.judged(false);
    t.same([reading.got.length, reading.ends], [4, 1]);
    t.equal(other.ends, 0);
  },
);

t.test("the newest doubt counts, whatever was found before", async (t) => {
  const store = started();
  const node = world(store);
  const alice = viewer();
  const reading = await follow(node.followers, alice);
  await alice.judged(true);
  for (let times = 0; times < 2; times++) node.followers.onEvent(CHANGED);
  await alice.judged(true);
  produce(node, store.stream.add(STREAM_CONTENT, "secret"));
  await turn();
  t.equal(reading.got.length, 2, "the first one was asked too early");
  await alice.judged(false);
  t.same([reading.got.length, reading.ends], [2, 1]);
});

t.test("a doubt that comes while the store is read holds back", async (t) => {
  const store = started();
  const node = world(store);
  const alice = viewer();
  const reading = await follow(node.followers, alice);
  await alice.judged(true);
  t.same(indexes(reading), [0, 1]);
  store.holds = true;
  node.followers.onEvent(CHANGED);
  produce(node, store.stream.add(STREAM_CONTENT, "two"));
  await turn();
  t.equal(store.heldCount, 1);
  node.followers.onEvent(CHANGED);
  await turn();
  store.holds = false;
  for (const _ of [1, 2]) store.release();
  await alice.judged(true);
  t.equal(reading.got.length, 2, "its right was in doubt again");
  await alice.judged(true);
  t.same(indexes(reading), [0, 1, 2]);
});

t.test("a viewer that pauses is judged too, and goes on pausing", async (t) => {
  const store = started();
  const node = world(store);
  const alice = viewer();
  const reading = await follow(node.followers, { ...alice, pauses: true });
  await alice.judged(true);
  t.equal(reading.got.length, 1);
  node.followers.onEvent(CHANGED);
  await alice.judged(true);
  t.equal(reading.got.length, 1, "it has not asked for more");
  node.followers.onEvent(CHANGED);
  reading.following?.resume();
  await turn();
  t.equal(reading.got.length, 1, "nothing while it is judged");
  await alice.judged(true); // while it paused
  await alice.judged(true);
  t.equal(reading.got.length, 2);
  node.followers.onEvent(CHANGED);
  await alice.judged(false);
  t.equal(reading.ends, 1, "a pause keeps nobody");
});

t.test("what concerns others is no doubt", async (t) => {
  const store = started();
  const { followers } = world(store);
  const alice = viewer();
  const reading = await follow(followers, alice);
  await alice.judged(true);
  followers.onEvent({ kind: "credential", uid: "bob" });
  followers.onEvent({ kind: "addition", uid: "alice", channelId: "g" });
  const bobs = { kind: "removal", uids: ["bob"] } as const;
  followers.onEvent({ ...bobs, channelId: "h" });
  await turn();
  t.equal(alice.waiting.length, 0);
  followers.onEvent({ ...bobs, channelId: "g" });
  await turn();
  t.equal(alice.waiting.length, 1, "one removal is a doubt of all");
  reading.following?.stop();
  await alice.judged(true);
  t.same([reading.ends, ...store.listening], [0]);
});

t.test("one user takes only so many places", async (t) => {
  const { followers } = world(started(), 10, 2);
  const code = "overloaded";
  const coming = [0, 1].map(() => follow(followers, viewer()));
  await t.rejects(follow(followers, viewer()), { code });
  const [first] = await Promise.all(coming);
  await t.rejects(follow(followers, viewer()), { code });
  await t.resolves(follow(followers, viewer("bob")), "others have their own");
  for (let times = 0; times < 3; times++)
    await t.resolves(follow(followers), "who is no user has no such bound");
  first?.following?.stop();
  await t.resolves(follow(followers, viewer()));
});
