// Store contract: read positions, and how changes by users and of memberships affect them.

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
  t.test(
    "a call that changes a conversation updates its change time, and a call without effect does not",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      await send(fixture, 2);
      const changedAt = async () => (await fixture.store.conversation("bob", G))?.changedAtMs ?? 0;
      const sentMs = await changedAt();
      fixture.nowMs += 10_000;
      await changeConversation(fixture, readUpTo(1));
      const movedMs = await changedAt();
      t.ok(movedMs > sentMs, "a moved position sets the time");
      fixture.nowMs += 10_000;
      await changeConversation(fixture, readUpTo(1));
      t.equal(await changedAt(), movedMs, "an equal position does not set the time");
      await send(fixture, 1);
      t.ok((await changedAt()) > movedMs, "a new message sets the time");
      await changeConversation(fixture, DELETE);
      const deletedMs = await changedAt();
      fixture.nowMs += 10_000;
      for (const change of [readUpTo(1), markUnread(9), DELETE])
        await changeConversation(fixture, change);
      t.equal(await changedAt(), deletedMs, "changes of a deleted conversation have no effect");
    },
  );

  t.test("concurrent changes to a conversation are applied one after the other", async (t) => {
    const fixture = await withGroup(createFixture, t);
    await send(fixture, 12);
    const results = await Promise.all(
      Array.from({ length: 12 }, (_, i) => changeConversation(fixture, readUpTo(i + 1))),
    );
    t.same(
      results,
      Array.from({ length: 12 }, (_, i) => [12, i + 1, 11 - i, 0]),
    );
    t.same(await conversationNumbers(fixture, "bob"), [12, 12, 0, 0]);
  });
}

function membership(t: Test, createFixture: FixtureFactory): void {
  t.test("an unknown group has no conversation", async (t) => {
    const { store } = await createFixture(t);
    t.equal(await store.conversation("bob", G), undefined);
    t.equal(await store.changeConversation("bob", G, readUpTo(1)), undefined);
  });

  t.test(
    "the seq at which a member joined is kept until the member leaves or the group is disbanded",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const joinSeq = async (uid: string, id = "g") => {
        const uids = [uid, "nobody", uid];
        const [seq, none, repeated] = await fixture.store.joinSeqs(id, uids);
        t.same([none, repeated], [undefined, seq]);
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

  t.test(
    "no position is stored if a member's position changes while the member is being removed",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const { store } = fixture;
      await send(fixture, 6);
      for (let round = 0; round < 6; round++) {
        const change = changeConversation(fixture, readUpTo(1 + (round % 3)));
        const removal = store.removeSubscribers(group("g"), ["bob"], "permanent");
        const lateChange = changeConversation(fixture, readUpTo(2));
        await Promise.all([change, removal, lateChange]);
        t.equal(await conversationNumbers(fixture, "bob"), undefined);
        await store.addSubscribers(group("g"), ["bob"], PERMANENT);
        t.same(await conversationNumbers(fixture, "bob"), [6, 6, 0, 0]);
      }
    },
  );
}
