// Followers that read a stream on behalf of a user: they get no events while the user's permission
// to read must be checked, and the number of followers of one user is limited.

import { STREAM_CONTENT } from "../../src/broker/model.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { createFollowers, follow, indexes, produce, storeWithStream, turn } from "./held-store.ts";

const CHANGED = { kind: "credential", uid: "alice" } as const;

/** Creates a viewer whose checks wait for `check`, which sets their result. */
function viewer(uid = "alice") {
  const waiting: ((mayStay: boolean) => void)[] = [];
  const mayStay = () => new Promise<boolean>((resolve) => waiting.push(resolve));
  const check = async (result: boolean): Promise<void> => {
    await turn(); // the store is read before the check
    waiting.shift()?.(result);
    await turn();
  };
  return { viewer: { uid, mayStay }, waiting, check };
}

t.test("a viewer gets no events until the permission to read is checked", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const alice = viewer();
  const bob = viewer("bob");
  const reading = await follow(node.followers, alice);
  const refused = await follow(node.followers, bob);
  t.same([...store.listening].sort(), ["g:g", "u:alice", "u:bob"]);
  produce(node, store.stream.add(STREAM_CONTENT, "two"));
  await turn();
  t.same([reading.events.length, refused.events.length], [0, 0]);
  await alice.check(true);
  await bob.check(false);
  t.same(indexes(reading), [0, 1]);
  t.same([refused.events.length, refused.ends], [0, 1]);
  t.same([...store.listening].sort(), ["g:g", "u:alice"]);
});

t.test(
  "a viewer gets no events while the permission to read is checked again, and gets the missed events afterwards",
  async (t) => {
    const store = storeWithStream();
    const node = createFollowers(store);
    const alice = viewer();
    const reading = await follow(node.followers, alice);
    const other = await follow(node.followers);
    await alice.check(true);
    node.followers.onEvent(CHANGED);
    produce(node, store.stream.add(STREAM_CONTENT, "two "));
    produce(node, store.stream.add(STREAM_CONTENT, "three"));
    await turn();
    t.same([reading.events.length, other.events.length], [2, 4]);
    await alice.check(true); // the check for a read that began before the two events
    t.equal(reading.events.length, 2);
    await alice.check(true);
    matchObject(t, reading.events.slice(2), [{ data: "two three" }]);
    produce(node, store.stream.add(STREAM_CONTENT, "!"));
    t.equal(reading.events.length, 4, "events are pushed again");
    node.followers.onEvent(CHANGED);
    produce(node, store.stream.add(STREAM_CONTENT, "secret"));
    await alice.check(false);
    t.same([reading.events.length, reading.ends], [4, 1]);
    t.equal(other.ends, 0);
  },
);

t.test(
  "after several permission changes, only a check that began after the last change decides whether a viewer gets events",
  async (t) => {
    const store = storeWithStream();
    const node = createFollowers(store);
    const alice = viewer();
    const reading = await follow(node.followers, alice);
    await alice.check(true);
    for (let times = 0; times < 2; times++) node.followers.onEvent(CHANGED);
    await alice.check(true);
    produce(node, store.stream.add(STREAM_CONTENT, "secret"));
    await turn();
    t.equal(reading.events.length, 2, "the first check began before the last change");
    await alice.check(false);
    t.same([reading.events.length, reading.ends], [2, 1]);
  },
);

t.test(
  "a permission that changes during a read of the store is checked again after the read",
  async (t) => {
    const store = storeWithStream();
    const node = createFollowers(store);
    const alice = viewer();
    const reading = await follow(node.followers, alice);
    await alice.check(true);
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
    await alice.check(true);
    t.equal(reading.events.length, 2, "no event is pushed before the permission was checked again");
    await alice.check(true);
    t.same(indexes(reading), [0, 1, 2]);
  },
);

t.test("a paused viewer stays paused while the permission to read is checked", async (t) => {
  const store = storeWithStream();
  const node = createFollowers(store);
  const alice = viewer();
  const reading = await follow(node.followers, { ...alice, pauses: true });
  await alice.check(true);
  t.equal(reading.events.length, 1);
  node.followers.onEvent(CHANGED);
  await alice.check(true);
  t.equal(reading.events.length, 1, "a paused viewer gets no event");
  node.followers.onEvent(CHANGED);
  reading.following?.resume();
  await turn();
  t.equal(reading.events.length, 1, "a viewer gets no event during the check");
  await alice.check(true); // the check that began during the pause
  await alice.check(true);
  t.equal(reading.events.length, 2);
  node.followers.onEvent(CHANGED);
  await alice.check(false);
  t.equal(reading.ends, 1, "a paused viewer without permission is ended");
});

t.test(
  "a change of another user's token or of another group's members causes no permission check",
  async (t) => {
    const store = storeWithStream();
    const { followers } = createFollowers(store);
    const alice = viewer();
    const reading = await follow(followers, alice);
    await alice.check(true);
    followers.onEvent({ kind: "credential", uid: "bob" });
    followers.onEvent({ kind: "addition", uid: "alice", channelId: "g" });
    const bobs = { kind: "removal", uids: ["bob"] } as const;
    followers.onEvent({ ...bobs, channelId: "h" });
    await turn();
    t.equal(alice.waiting.length, 0);
    followers.onEvent({ ...bobs, channelId: "g" });
    await turn();
    t.equal(
      alice.waiting.length,
      1,
      "a removal of any user from the group causes a check of every viewer",
    );
    reading.following?.stop();
    await alice.check(true);
    t.same([reading.ends, ...store.listening], [0]);
  },
);

t.test("the number of followers of one user is limited", async (t) => {
  const { followers } = createFollowers(storeWithStream(), 10, 2);
  const code = "overloaded";
  const follows = [0, 1].map(() => follow(followers, viewer()));
  await t.rejects(follow(followers, viewer()), { code });
  const [first] = await Promise.all(follows);
  await t.rejects(follow(followers, viewer()), { code });
  await t.resolves(follow(followers, viewer("bob")), "another user has a separate limit");
  for (let times = 0; times < 3; times++)
    await t.resolves(follow(followers), "followers without a user are not limited");
  first?.following?.stop();
  await t.resolves(follow(followers, viewer()));
});
