// The Store contract: both kinds of membership.

import type { Test } from "tap";
import {
  type Bench,
  type Given,
  group,
  PERMANENT,
  person,
  TEMPORARY,
} from "./store-bench.ts";

export async function members(t: Test, given: Given): Promise<void> {
  const isMember = async ({ store }: Bench, uid: string) =>
    (await store.groupFacts("g", uid)).isSubscriber;

  t.test(
    "adding tells who is new, and adding again changes nothing",
    async (t) => {
      const { store } = await given(t);
      t.equal(
        await store.addSubscribers(group("g"), ["a"], PERMANENT),
        undefined,
      );
      await store.createChannel(group("g"), ["a"]);
      const first = await store.addSubscribers(
        group("g"),
        ["a", "b", "b"],
        PERMANENT,
      );
      t.same(first, { added: ["b"], gone: [] });
      const again = await store.addSubscribers(
        group("g"),
        ["a", "b"],
        PERMANENT,
      );
      t.same(again, { added: [], gone: [] });
    },
  );

  t.test("a uid may hold both kinds; it is gone with the second", async (t) => {
    const bench = await given(t);
    const { store } = bench;
    await store.createChannel(group("g"), ["a"]);
    const added = await store.addSubscribers(group("g"), ["a", "b"], TEMPORARY);
    t.same(added, { added: ["b"], gone: [] });
    t.same(await store.removeSubscribers(group("g"), ["a"], "permanent"), {
      kind: "removed",
      gone: [],
    });
    t.equal(await isMember(bench, "a"), true);
    t.same(await store.removeSubscribers(group("g"), ["a"], "temporary"), {
      kind: "removed",
      gone: ["a"],
    });
    t.equal(await isMember(bench, "a"), false);
    await bench.reopen();
    t.equal(await isMember(bench, "b"), true);
    t.equal(await isMember(bench, "a"), false);
  });

  t.test("removal takes all or none", async (t) => {
    const bench = await given(t);
    const { store } = bench;
    await store.createChannel(group("g"), ["a", "b"]);
    await store.addSubscribers(group("g"), ["t"], TEMPORARY);
    const removal = await store.removeSubscribers(
      group("g"),
      ["a", "x", "t", "b"],
      "permanent",
    );
    t.equal(removal.kind, "not_members");
    t.same(removal.kind === "not_members" && removal.uids, ["x", "t"]);
    for (const uid of ["a", "b", "t"])
      t.equal(await isMember(bench, uid), true);
    const both = await store.removeSubscribers(
      group("g"),
      ["b", "a"],
      "permanent",
    );
    t.equal(both.kind, "removed");
    t.same(both.kind === "removed" && [...both.gone].sort(), ["a", "b"]);
    t.equal(await isMember(bench, "a"), false);
  });

  t.test("of removals of the same uid at once one succeeds", async (t) => {
    const { store } = await given(t);
    await store.createChannel(group("g"), ["a"]);
    const kinds = await Promise.all(
      Array.from({ length: 5 }, () =>
        store.removeSubscribers(group("g"), ["a"], "permanent"),
      ),
    );
    t.equal(kinds.filter((r) => r.kind === "removed").length, 1);
  });

  t.test(
    "a channel that is not there or disbanded refuses changes",
    async (t) => {
      const { store } = await given(t);
      t.same(await store.removeSubscribers(group("g"), ["a"], "permanent"), {
        kind: "no_channel",
      });
      await store.createChannel(group("g"), ["a"]);
      await store.updateChannel(group("g"), { disband: true });
      t.same(await store.removeSubscribers(group("g"), ["a"], "permanent"), {
        kind: "disbanded",
      });
      t.equal(
        await store.addSubscribers(group("g"), ["b"], PERMANENT),
        undefined,
      );
    },
  );

  t.test("reset replaces one kind's list and leaves the other", async (t) => {
    const bench = await given(t);
    const { store } = bench;
    await store.createChannel(group("g"), ["a", "b", "c"]);
    await store.addSubscribers(group("g"), ["c", "d"], TEMPORARY);
    const reset = (...uids: string[]) =>
      store.addSubscribers(group("g"), uids, { ...PERMANENT, reset: true });
    const change = await reset("b", "e", "d");
    t.same(change?.added, ["e"]);
    t.same(change?.gone, ["a"]);
    const again = await reset("b", "e", "d");
    t.same(again?.gone, again?.goneTold ? ["a"] : [], "not told yet");
    await again?.goneTold?.();
    const left = await Promise.all(
      ["a", "b", "c", "d", "e"].map((uid) => isMember(bench, uid)),
    );
    t.same(left, [false, true, true, true, true]);
    const last = await reset();
    t.same(last?.added, []);
    t.same(last?.gone, ["b", "e"]);
  });

  t.test("reset leaves channels with longer ids alone", async (t) => {
    const { store } = await given(t);
    await store.createChannel(group("g"), ["a"]);
    await store.createChannel(group("g1"), ["a"]);
    await store.createChannel(group("\u{1F600}"), ["\u{1F600}", "a"]);
    await store.addSubscribers(group("g"), [], { ...PERMANENT, reset: true });
    await store.addSubscribers(group("\u{1F600}"), ["b"], {
      ...PERMANENT,
      reset: true,
    });
    t.equal((await store.groupFacts("g1", "a")).isSubscriber, true);
    t.same(await store.groupsOf("\u{1F600}"), []);
    t.same(await store.groupsOf("b"), ["\u{1F600}"]);
  });

  t.test("all members are listed, each once, of either kind", async (t) => {
    const bench = await given(t);
    t.same(await bench.store.members(group("g")), [], "no such channel");
    await bench.store.createChannel(group("g"), ["a", "b"]);
    await bench.store.createChannel(group("g1"), ["x"]);
    await bench.store.createChannel(person("g"), ["y"]);
    await bench.store.addSubscribers(group("g"), ["b", "t"], TEMPORARY);
    t.same([...(await bench.store.members(group("g")))].sort(), [
      "a",
      "b",
      "t",
    ]);
    await bench.store.removeSubscribers(group("g"), ["b"], "temporary");
    await bench.store.removeSubscribers(group("g"), ["a"], "permanent");
    await bench.reopen();
    t.same([...(await bench.store.members(group("g")))].sort(), ["b", "t"]);
    t.same(await bench.store.members(person("g")), ["y"]);
  });

  t.test(
    "members among some uids come in the given order, each once",
    async (t) => {
      const { store } = await given(t);
      const among = (uids: string[]) => store.membersAmong(group("g"), uids);
      t.same(await among(["a"]), [], "no such channel");
      await store.createChannel(group("g"), ["a", "b"]);
      await store.addSubscribers(group("g"), ["t", "b"], TEMPORARY);
      t.same(await among(["t", "x", "b", "t", "a", "b"]), ["t", "b", "a"]);
      t.same(await among([]), []);
    },
  );

  t.test("a list of 10000 is one step", async (t) => {
    const bench = await given(t);
    const uids = Array.from({ length: 10_000 }, (_, i) => `user-${i}`);
    await bench.store.createChannel(group("g"), uids);
    t.equal(await isMember(bench, "user-9999"), true);
    t.same([...(await bench.store.members(group("g")))].sort(), uids.sort());
    t.same(await bench.store.membersAmong(group("g"), uids), uids);
    const removal = await bench.store.removeSubscribers(
      group("g"),
      uids,
      "permanent",
    );
    t.equal(removal.kind === "removed" && removal.gone.length, 10_000);
    t.equal(await isMember(bench, "user-0"), false);
  });
}
