// Store contract: the state that a session joins with, besides its groups and the seqs of its
// resume points.

import type { Test } from "tap";
import type { SessionRecord } from "../../src/broker/model.ts";
import { joinStateOf } from "./join-request.ts";
import { type FixtureFactory, group } from "./store-fixture.ts";
import { commandOf, inboxSeqsOf } from "./store-inbox-fixture.ts";
import { producer } from "./store-stream-fixture.ts";

const BOBS: SessionRecord = {
  ...{ sessionId: "s1", nodeId: "n", uid: "bob" },
  ...{ flag: 0, level: 0, deviceId: "", tokenTag: "" },
};

export async function joins(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a session has an entry in the store from its login until its removal", async (t) => {
    const { store } = await createFixture(t);
    const isEntered = async () => (await joinStateOf(store, "bob", { sessionId: "s1" })).isEntered;
    t.equal(await isEntered(), false);
    await store.login(BOBS, "n:1");
    t.equal(await isEntered(), true);
    t.equal((await joinStateOf(store, "bob", { sessionId: "s2" })).isEntered, false);
    await store.removeSession(BOBS);
    t.equal(await isEntered(), false);
  });

  t.test("the join state of a session contains the first page of its user's inbox", async (t) => {
    const { store } = await createFixture(t);
    const seqsOf = async (limit: number) => {
      const inboxPage = { limit, maxBytes: 1_000_000 };
      return inboxSeqsOf((await joinStateOf(store, "bob", { inboxPage })).commands);
    };
    t.same(await seqsOf(10), []);
    for (let count = 0; count < 3; count++) await store.appendCommand(commandOf());
    t.same(await seqsOf(10), [1, 2, 3]);
    t.same(await seqsOf(2), [1, 2]);
    await store.acknowledgeCommands("bob", [1]);
    t.same(await seqsOf(10), [2, 3]);
    t.same((await joinStateOf(store, "alice", {})).commands, []);
  });

  t.test(
    "the join state of a session contains the active streams of its groups and of its user's personal channels",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.createChannel(group("g"), ["alice", "bob"]);
      const keysOf = async () =>
        [...(await joinStateOf(store, "bob", { groups: ["g"] })).streamKeys].sort();
      t.same(await keysOf(), []);
      const inGroup = producer(fixture);
      const personal = producer(fixture, {
        ...{ channel: { id: "bob", type: 1 }, key: "1:alice@bob" },
      });
      await inGroup.start();
      await personal.start();
      t.same(await keysOf(), ["1:alice@bob", "2:g"]);
      t.same((await joinStateOf(store, "carol", { groups: [] })).streamKeys, []);
      await inGroup.end();
      t.same(await keysOf(), ["1:alice@bob"]);
    },
  );
}
