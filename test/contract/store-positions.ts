// The Store contract: read positions and how users, members and time move them.

import type { Test } from "tap";
import type { ChannelRef } from "../../src/broker/model.ts";
import {
  changed,
  DELETE,
  G,
  listed,
  read,
  SILENT,
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
  t.test(
    "the position moves both ways and is clipped to the channel's seqs",
    async (t) => {
      const bench = await withGroup(given, t);
      await send(bench, 10);
      t.same(await changed(bench, read(7)), [10, 7, 3, 0]);
      t.same(await changed(bench, read(2)), [10, 2, 8, 0]);
      t.same(await changed(bench, read(99)), [10, 10, 0, 0]);
      t.same(await changed(bench, read(-3)), [10, 0, 10, 0]);
      await changed(bench, read(4));
      await bench.reopen();
      t.same(await standing(bench, "bob"), [10, 4, 6, 0]);
      t.same(await standing(bench, "carol"), [10, 0, 10, 0]);
    },
  );

  t.test(
    "a position put back stays there until the next own message",
    async (t) => {
      const bench = await withGroup(given, t);
      await send(bench, 3);
      await send(bench, 1, { fromUid: "bob" });
      t.same(await changed(bench, read(1)), [4, 1, 3, 0]);
      await send(bench, 1);
      await bench.reopen();
      t.same(await standing(bench, "bob"), [5, 1, 4, 0]);
      await send(bench, 1, { fromUid: "bob" });
      t.same(await standing(bench, "bob"), [6, 6, 0, 0]);
      await bench.reopen();
      t.same(await standing(bench, "bob"), [6, 6, 0, 0]);
    },
  );

  t.test(
    "so many unread as asked for, as far as there are, from the newest on",
    async (t) => {
      const bench = await withGroup(given, t);
      await send(bench, 3);
      await send(bench, 2, { header: SILENT });
      await send(bench, 2);
      await send(bench, 1, { header: SILENT });
      t.same(await changed(bench, unread(1)), [8, 6, 1, 0]);
      t.same(await changed(bench, unread(2)), [8, 5, 2, 0]);
      t.same(await changed(bench, unread(3)), [8, 2, 3, 0]);
      t.same(await changed(bench, unread(1000)), [8, 0, 5, 0]);
      t.same(await changed(bench, unread(0)), [8, 8, 0, 0]);
      await bench.reopen();
      t.same(await standing(bench, "bob"), [8, 8, 0, 0]);
    },
  );

  t.test(
    "a deleted conversation is gone from lists until the next message, and what was is not shown",
    async (t) => {
      const bench = await withGroup(given, t);
      await send(bench, 3);
      t.same(await changed(bench, DELETE), [3, 3, 0, 3]);
      t.equal((await bench.store.conversation("bob", G))?.last, undefined);
      t.same(await listed(bench, "bob"), []);
      t.same(await listed(bench, "carol"), ["g"]);
      t.same(await changed(bench, read(1)), [3, 3, 0, 3]);
      t.same(await changed(bench, unread(2)), [3, 3, 0, 3]);
      await bench.reopen();
      t.same(await listed(bench, "bob"), []);
      await send(bench, 2);
      t.same(await listed(bench, "bob"), ["g"]);
      t.same(await standing(bench, "bob"), [5, 3, 2, 3]);
      t.same(await changed(bench, unread(9)), [5, 3, 2, 3]);
    },
  );

  t.test(
    "a change tells when, and one that changes nothing does not",
    async (t) => {
      const bench = await withGroup(given, t);
      await send(bench, 2);
      const at = async () =>
        (await bench.store.conversation("bob", G))?.changedAtMs ?? 0;
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
    },
  );

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
  t.test("who is no member of a group has no conversation", async (t) => {
    const bench = await withGroup(given, t);
    await send(bench, 1);
    const check = async (uid: string, channel: ChannelRef) => {
      t.equal(await bench.store.conversation(uid, channel), undefined);
      const answer = bench.store.changeConversation(uid, channel, read(1));
      t.equal(await answer, undefined);
    };
    await check("dave", G);
    await check("bob", { id: "none", type: 2 });
    await bench.store.updateChannel(group("g"), { disband: true });
    await check("bob", G);
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

  t.test("who joins has read what was there", async (t) => {
    const bench = await withGroup(given, t);
    await send(bench, 3);
    await bench.store.addSubscribers(group("g"), ["dave"], PERMANENT);
    t.same(await standing(bench, "dave"), [3, 3, 0, 0]);
    t.same(await listed(bench, "dave"), ["g"]);
    await send(bench, 2);
    t.same(await standing(bench, "dave"), [5, 3, 2, 0]);
    await bench.reopen();
    t.same(await standing(bench, "dave"), [5, 3, 2, 0]);
    await bench.store.addSubscribers(group("g"), ["dave"], PERMANENT);
    await bench.store.addSubscribers(group("g"), ["dave"], TEMPORARY);
    t.same(await standing(bench, "dave"), [5, 3, 2, 0], "joined before");
    t.same(await changed(bench, unread(4), "dave"), [5, 1, 4, 0]);
  });

  t.test(
    "leaving forgets the position; who comes back has read all",
    async (t) => {
      const bench = await withGroup(given, t);
      const { store } = bench;
      await send(bench, 4);
      await changed(bench, read(2));
      await changed(bench, DELETE, "carol");
      await store.addSubscribers(group("g"), ["carol"], TEMPORARY);
      await store.removeSubscribers(group("g"), ["bob", "carol"], "permanent");
      t.equal(await standing(bench, "bob"), undefined);
      t.same(await listed(bench, "bob"), []);
      t.same(await standing(bench, "carol"), [4, 4, 0, 4], "still a member");
      await send(bench, 2);
      await store.addSubscribers(group("g"), ["bob"], PERMANENT);
      t.same(await standing(bench, "bob"), [6, 6, 0, 0]);
      await send(bench, 1);
      t.same(await standing(bench, "bob"), [7, 6, 1, 0]);
      const reset = { membership: "permanent", reset: true } as const;
      await store.addSubscribers(group("g"), ["alice", "bob"], reset);
      t.same(await standing(bench, "bob"), [7, 6, 1, 0], "a reset that keeps");
      await store.addSubscribers(group("g"), ["alice"], reset);
      t.equal(await standing(bench, "bob"), undefined);
    },
  );

  t.test(
    "a change that crosses a leave leaves no position behind",
    async (t) => {
      const bench = await withGroup(given, t);
      const { store } = bench;
      await send(bench, 6);
      for (let round = 0; round < 6; round++) {
        const changing = changed(bench, read(1 + (round % 3)));
        const leaving = store.removeSubscribers(
          group("g"),
          ["bob"],
          "permanent",
        );
        const late = changed(bench, read(2));
        await Promise.all([changing, leaving, late]);
        t.equal(await standing(bench, "bob"), undefined);
        await store.addSubscribers(group("g"), ["bob"], PERMANENT);
        t.same(await standing(bench, "bob"), [6, 6, 0, 0]);
      }
    },
  );

  t.test("a large group has no unread and keeps no positions", async (t) => {
    const bench = await given(t);
    const large = { ...group("g"), large: true };
    await bench.store.createChannel(large, ["alice", "bob"]);
    await send(bench, 3);
    t.same(await standing(bench, "bob"), [3, 3, 0, 0]);
    t.same(await changed(bench, read(1)), [3, 3, 0, 0]);
    t.same(await changed(bench, unread(2)), [3, 3, 0, 0]);
    t.same(await changed(bench, DELETE), [3, 3, 0, 0]);
    t.same(await listed(bench, "bob"), ["g"]);
  });
}

/** For drivers that take the time from the clock they are given. */
export async function conversationTime(t: Test, given: Given): Promise<void> {
  t.test("a message that expires is unread and last until then", async (t) => {
    const bench = await withGroup(given, t);
    await send(bench, 1);
    await send(bench, 2, { expireS: 10 });
    await send(bench, 1, { expireS: 20 });
    await send(bench, 1, { expireS: 20, header: SILENT });
    const last = async () =>
      (await bench.store.conversationsOf("bob"))[0]?.last?.messageSeq;
    t.same(await standing(bench, "bob"), [5, 0, 4, 0]);
    t.equal(await last(), 5);
    await bench.reopen();
    t.same(await standing(bench, "bob"), [5, 0, 4, 0]);
    bench.nowMs += 10_000;
    t.same(await standing(bench, "bob"), [5, 0, 2, 0]);
    t.same(await changed(bench, unread(2)), [5, 0, 2, 0]);
    t.same(await changed(bench, unread(1)), [5, 3, 1, 0]);
    bench.nowMs += 10_000;
    t.same(await standing(bench, "bob"), [5, 3, 0, 0]);
    t.equal(await last(), 1);
    t.same(await changed(bench, unread(5)), [5, 0, 1, 0]);
  });

  t.test("a conversation all of which expired leaves the list", async (t) => {
    const bench = await withGroup(given, t);
    await send(bench, 2, { expireS: 5 });
    bench.nowMs += 5000;
    t.same(await listed(bench, "bob"), []);
    t.same(await standing(bench, "bob"), [2, 0, 0, 0]);
  });
}
