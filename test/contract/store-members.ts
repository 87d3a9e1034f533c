// The Store contract: both kinds of membership.

import type { Test } from "tap";
import type { Membership } from "../../src/broker/ports.ts";
import {
  draftOf,
  type FixtureFactory,
  group,
  PERMANENT,
  person,
  type StoreFixture,
  TEMPORARY,
} from "./store-fixture.ts";

export async function members(t: Test, createFixture: FixtureFactory): Promise<void> {
  const isMember = async ({ store }: StoreFixture, uid: string) =>
    (await store.groupFacts("g", uid)).isSubscriber;

  t.test("adding makes members, and adding again changes nothing", async (t) => {
    const { store } = await createFixture(t);
    const add = (...uids: string[]) => store.addSubscribers(group("g"), uids, PERMANENT);
    t.equal(await add("a"), false, "no such channel");
    await store.createChannel(group("g"), ["a"]);
    t.equal(await add("a", "b", "b"), true);
    await store.append(draftOf());
    t.equal(await add("a", "b", "c"), true);
    t.same(await store.joinSeqs("g", ["a", "b", "c"]), [0, 0, 1]);
  });

  t.test("a uid may hold both kinds; it is removed with the second", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.createChannel(group("g"), ["a"]);
    await store.addSubscribers(group("g"), ["a", "b"], TEMPORARY);
    await store.removeSubscribers(group("g"), ["a"], "permanent");
    t.equal(await isMember(fixture, "a"), true);
    await store.removeSubscribers(group("g"), ["a"], "temporary");
    t.equal(await isMember(fixture, "a"), false);
    await fixture.reopen();
    t.equal(await isMember(fixture, "b"), true);
    t.equal(await isMember(fixture, "a"), false);
  });

  t.test(
    "a removal from a group is published once, between the messages before and after it, and names no member",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      const remove = (membership: Membership, ...uids: string[]) =>
        store.removeSubscribers(group("g"), uids, membership);
      await store.createChannel(group("g"), ["a", "b", "c"]);
      await store.createChannel(person("g"), ["a"]);
      await store.addSubscribers(group("g"), ["b"], TEMPORARY);
      await store.append(draftOf());
      await remove("permanent", "a", "b");
      t.equal((await remove("permanent", "a")).kind, "not_members");
      await store.append(draftOf());
      await remove("temporary", "b");
      await store.removeSubscribers(person("g"), ["a"], "permanent");
      await store.append(draftOf());
      await fixture.untilEvents(5);
      const without = (uid: string) => ({
        ...{ kind: "removal", channelId: "g", uids: [uid] },
      });
      t.same(
        fixture.events.map((event) =>
          event.kind === "message" ? event.message.messageSeq : event,
        ),
        [1, without("a"), 2, without("b"), 3],
      );
    },
  );

  t.test(
    "a list that is replaced is published as a removal before what is sent then",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      const reset = { ...PERMANENT, reset: true };
      await store.createChannel(group("g"), ["a", "b"]);
      await store.addSubscribers(group("g"), ["b", "c"], reset);
      await store.append(draftOf());
      while (fixture.messages.length === 0) await fixture.untilEvents(fixture.events.length + 1);
      const [first] = fixture.events;
      t.match(first, { kind: "removal", channelId: "g" });
      const uids = first?.kind === "removal" ? first.uids : [];
      t.same(uids ?? ["a"], ["a"], "those, or any");
    },
  );

  t.test("removal takes all or none", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.createChannel(group("g"), ["a", "b"]);
    await store.addSubscribers(group("g"), ["t"], TEMPORARY);
    const removal = await store.removeSubscribers(group("g"), ["a", "x", "t", "b"], "permanent");
    t.equal(removal.kind, "not_members");
    t.same(removal.kind === "not_members" && removal.uids, ["x", "t"]);
    for (const uid of ["a", "b", "t"]) t.equal(await isMember(fixture, uid), true);
    const both = await store.removeSubscribers(group("g"), ["b", "a"], "permanent");
    t.equal(both.kind, "removed");
    t.equal(await isMember(fixture, "a"), false);
  });

  t.test("of removals of the same uid at once one succeeds", async (t) => {
    const { store } = await createFixture(t);
    await store.createChannel(group("g"), ["a"]);
    const kinds = await Promise.all(
      Array.from({ length: 5 }, () => store.removeSubscribers(group("g"), ["a"], "permanent")),
    );
    t.equal(kinds.filter((r) => r.kind === "removed").length, 1);
  });

  t.test("a channel that is not there or disbanded refuses changes", async (t) => {
    const { store } = await createFixture(t);
    t.same(await store.removeSubscribers(group("g"), ["a"], "permanent"), {
      kind: "no_channel",
    });
    await store.createChannel(group("g"), ["a"]);
    await store.updateChannel(group("g"), { disband: true });
    t.same(await store.removeSubscribers(group("g"), ["a"], "permanent"), {
      kind: "disbanded",
    });
    t.equal(await store.addSubscribers(group("g"), ["b"], PERMANENT), false);
  });

  t.test("reset replaces one kind's list and leaves the other", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.createChannel(group("g"), ["a", "b", "c"]);
    await store.addSubscribers(group("g"), ["c", "d"], TEMPORARY);
    const reset = (...uids: string[]) =>
      store.addSubscribers(group("g"), uids, { ...PERMANENT, reset: true });
    const members = async () => [...(await store.members(group("g")))].sort();
    await store.append(draftOf());
    for (let times = 0; times < 2; times++) {
      t.equal(await reset("b", "e", "d"), true);
      t.same(await members(), ["b", "c", "d", "e"]);
    }
    t.same(
      await store.joinSeqs("g", ["a", "b", "c", "d", "e"]),
      [undefined, 0, 0, 0, 1],
      "who stays is a member since the first time",
    );
    await reset();
    t.same(await members(), ["c", "d"]);
    await fixture.reopen();
    await fixture.store.append(draftOf());
    await fixture.store.addSubscribers(group("g"), ["b", "c"], PERMANENT);
    t.same(
      await fixture.store.joinSeqs("g", ["a", "b", "c"]),
      [undefined, 2, 0],
      "who comes back is one since then",
    );
  });

  t.test("reset leaves channels with longer ids alone", async (t) => {
    const { store } = await createFixture(t);
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
    const fixture = await createFixture(t);
    t.same(await fixture.store.members(group("g")), [], "no such channel");
    await fixture.store.createChannel(group("g"), ["a", "b"]);
    await fixture.store.createChannel(group("g1"), ["x"]);
    await fixture.store.createChannel(person("g"), ["y"]);
    await fixture.store.addSubscribers(group("g"), ["b", "t"], TEMPORARY);
    t.same([...(await fixture.store.members(group("g")))].sort(), ["a", "b", "t"]);
    await fixture.store.removeSubscribers(group("g"), ["b"], "temporary");
    await fixture.store.removeSubscribers(group("g"), ["a"], "permanent");
    await fixture.reopen();
    t.same([...(await fixture.store.members(group("g")))].sort(), ["b", "t"]);
    t.same(await fixture.store.members(person("g")), ["y"]);
  });

  t.test("members among some uids come in the given order, each once", async (t) => {
    const { store } = await createFixture(t);
    const among = (uids: string[]) => store.membersAmong(group("g"), uids);
    t.same(await among(["a"]), [], "no such channel");
    await store.createChannel(group("g"), ["a", "b"]);
    await store.addSubscribers(group("g"), ["t", "b"], TEMPORARY);
    t.same(await among(["t", "x", "b", "t", "a", "b"]), ["t", "b", "a"]);
    t.same(await among([]), []);
  });

  t.test("a list of 10000 is one step", async (t) => {
    const fixture = await createFixture(t);
    const uids = Array.from({ length: 10_000 }, (_, i) => `user-${i}`);
    await fixture.store.createChannel(group("g"), uids);
    t.equal(await isMember(fixture, "user-9999"), true);
    t.same([...(await fixture.store.members(group("g")))].sort(), uids.sort());
    t.same(await fixture.store.membersAmong(group("g"), uids), uids);
    const removal = await fixture.store.removeSubscribers(group("g"), uids, "permanent");
    t.equal(removal.kind, "removed");
    t.equal(await isMember(fixture, "user-0"), false);
  });
}
