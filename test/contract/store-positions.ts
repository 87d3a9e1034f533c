// The Store contract: read positions and how users, members and time move them.

import type { Test } from "tap";
import {
  changed,
  DELETE,
  G,
  read,
  send,
  standing,
  unread,
  withGroup,
} from "./conversation-bench.ts";
import { type Given, group, PERMANENT, TEMPORARY } from "./store-bench.ts";

export async function positions(t: Test, given: Given): Promise<void> {
  changes(t, given);
  membership(t, given);
}

function changes(t: Test, given: Given): void {
  t.test("a change tells when, and one that changes nothing does not", async (t) => {
    const bench = await withGroup(given, t);
    await send(bench, 2);
    const at = async () => (await bench.store.conversation("bob", G))?.changedAtMs ?? 0;
    const sent = await at();
    bench.nowMs += 10_000;
    await changed(bench, read(1));
    const moved = await at();
    t.ok(moved > sent);
    bench.nowMs += 10_000;
    await changed(bench, read(1));
    t.equal(await at(), moved);
    await send(bench, 1);
    t.ok((await at()) > moved);
    await changed(bench, DELETE);
    const deleted = await at();
    bench.nowMs += 10_000;
    for (const change of [read(1), unread(9), DELETE]) await changed(bench, change);
    t.equal(await at(), deleted, "nothing earlier is shown again");
  });

  t.test("of changes at once each is one step", async (t) => {
    const bench = await withGroup(given, t);
    await send(bench, 12);
    const answers = await Promise.all(
      Array.from({ length: 12 }, (_, i) => changed(bench, read(i + 1))),
    );
    t.same(
      answers,
      Array.from({ length: 12 }, (_, i) => [12, i + 1, 11 - i, 0]),
    );
    t.same(await standing(bench, "bob"), [12, 12, 0, 0]);
  });
}

function membership(t: Test, given: Given): void {
  t.test("a group that is not there is no conversation", async (t) => {
    const { store } = await given(t);
    t.equal(await store.conversation("bob", G), undefined);
    t.equal(await store.changeConversation("bob", G, read(1)), undefined);
  });

  t.test(
    "the seq behind which a group is its member's to see stays until the member is gone",
    async (t) => {
      const bench = await withGroup(given, t);
      const joinSeq = async (uid: string, id = "g") => {
        const asked = [uid, "nobody", uid];
        const [seq, none, again] = await bench.store.joinSeqs(id, asked);
        t.same([none, again], [undefined, seq]);
        return seq;
      };
      t.equal(await joinSeq("bob"), 0);
      t.equal(await joinSeq("dave"), undefined);
      t.equal(await joinSeq("bob", "none"), undefined);
      await send(bench, 2);
      await bench.store.addSubscribers(group("g"), ["dave"], TEMPORARY);
      await bench.store.updateChannel(group("g"), { large: true });
      await send(bench, 1);
      await bench.store.addSubscribers(group("g"), ["dave"], PERMANENT);
      await bench.store.removeSubscribers(group("g"), ["dave"], "temporary");
      await bench.reopen();
      t.equal(await joinSeq("dave"), 2);
      await bench.store.removeSubscribers(group("g"), ["dave"], "permanent");
      t.equal(await joinSeq("dave"), undefined);
      await bench.store.addSubscribers(group("g"), ["dave"], PERMANENT);
      t.equal(await joinSeq("dave"), 3);
      await bench.store.updateChannel(group("g"), { disband: true });
      t.equal(await joinSeq("dave"), undefined);
    },
  );

  t.test("a change that crosses a leave leaves no position behind", async (t) => {
    const bench = await withGroup(given, t);
    const { store } = bench;
    await send(bench, 6);
    for (let round = 0; round < 6; round++) {
      const changing = changed(bench, read(1 + (round % 3)));
      const leaving = store.removeSubscribers(group("g"), ["bob"], "permanent");
      const late = changed(bench, read(2));
      await Promise.all([changing, leaving, late]);
      t.equal(await standing(bench, "bob"), undefined);
      await store.addSubscribers(group("g"), ["bob"], PERMANENT);
      t.same(await standing(bench, "bob"), [6, 6, 0, 0]);
    }
  });
}
