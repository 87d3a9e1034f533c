// The Store contract: read positions and how users, members and time move them.

import type { Test } from "tap";
import {
  changeConversation,
  conversationNumbers,
  DELETE,
  G,
  markUnread,
  readUpTo,
  send,
  withGroup,
} from "./conversation-fixture.ts";
import { type FixtureFactory, group, PERMANENT, TEMPORARY } from "./store-fixture.ts";

export async function positions(t: Test, createFixture: FixtureFactory): Promise<void> {
  changes(t, createFixture);
  membership(t, createFixture);
}

function changes(t: Test, createFixture: FixtureFactory): void {
  t.test("a change tells when, and one that changes nothing does not", async (t) => {
    const fixture = await withGroup(createFixture, t);
    await send(fixture, 2);
    const at = async () => (await fixture.store.conversation("bob", G))?.changedAtMs ?? 0;
    const sent = await at();
    fixture.nowMs += 10_000;
    await changeConversation(fixture, readUpTo(1));
    const moved = await at();
    t.ok(moved > sent);
    fixture.nowMs += 10_000;
    await changeConversation(fixture, readUpTo(1));
    t.equal(await at(), moved);
    await send(fixture, 1);
    t.ok((await at()) > moved);
    await changeConversation(fixture, DELETE);
    const deleted = await at();
    fixture.nowMs += 10_000;
    for (const change of [readUpTo(1), markUnread(9), DELETE])
      await changeConversation(fixture, change);
    t.equal(await at(), deleted, "nothing earlier is shown again");
  });

  t.test("of changes at once each is one step", async (t) => {
    const fixture = await withGroup(createFixture, t);
    await send(fixture, 12);
    const answers = await Promise.all(
      Array.from({ length: 12 }, (_, i) => changeConversation(fixture, readUpTo(i + 1))),
    );
    t.same(
      answers,
      Array.from({ length: 12 }, (_, i) => [12, i + 1, 11 - i, 0]),
    );
    t.same(await conversationNumbers(fixture, "bob"), [12, 12, 0, 0]);
  });
}

function membership(t: Test, createFixture: FixtureFactory): void {
  t.test("a group that is not there is no conversation", async (t) => {
    const { store } = await createFixture(t);
    t.equal(await store.conversation("bob", G), undefined);
    t.equal(await store.changeConversation("bob", G, readUpTo(1)), undefined);
  });

  t.test(
    "the seq behind which a group is its member's to see stays until the member is gone",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const joinSeq = async (uid: string, id = "g") => {
        const asked = [uid, "nobody", uid];
        const [seq, none, again] = await fixture.store.joinSeqs(id, asked);
        t.same([none, again], [undefined, seq]);
        return seq;
      };
      t.equal(await joinSeq("bob"), 0);
      t.equal(await joinSeq("dave"), undefined);
      t.equal(await joinSeq("bob", "none"), undefined);
      await send(fixture, 2);
      await fixture.store.addSubscribers(group("g"), ["dave"], TEMPORARY);
      await fixture.store.updateChannel(group("g"), { large: true });
      await send(fixture, 1);
      await fixture.store.addSubscribers(group("g"), ["dave"], PERMANENT);
      await fixture.store.removeSubscribers(group("g"), ["dave"], "temporary");
      await fixture.reopen();
      t.equal(await joinSeq("dave"), 2);
      await fixture.store.removeSubscribers(group("g"), ["dave"], "permanent");
      t.equal(await joinSeq("dave"), undefined);
      await fixture.store.addSubscribers(group("g"), ["dave"], PERMANENT);
      t.equal(await joinSeq("dave"), 3);
      await fixture.store.updateChannel(group("g"), { disband: true });
      t.equal(await joinSeq("dave"), undefined);
    },
  );

  t.test("a change that crosses a leave leaves no position behind", async (t) => {
    const fixture = await withGroup(createFixture, t);
    const { store } = fixture;
    await send(fixture, 6);
    for (let round = 0; round < 6; round++) {
      const changing = changeConversation(fixture, readUpTo(1 + (round % 3)));
      const leaving = store.removeSubscribers(group("g"), ["bob"], "permanent");
      const late = changeConversation(fixture, readUpTo(2));
      await Promise.all([changing, leaving, late]);
      t.equal(await conversationNumbers(fixture, "bob"), undefined);
      await store.addSubscribers(group("g"), ["bob"], PERMANENT);
      t.same(await conversationNumbers(fixture, "bob"), [6, 6, 0, 0]);
    }
  });
}
