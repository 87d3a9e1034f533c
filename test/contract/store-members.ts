// Store contract: permanent and temporary membership.

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

  t.test("adding a member again does not change the member's join seq", async (t) => {
    const { store } = await createFixture(t);
    const add = (...uids: string[]) => store.addSubscribers(group("g"), uids, PERMANENT);
    t.equal(await add("a"), false, "the channel does not exist");
    await store.createChannel(group("g"), ["a"]);
    t.equal(await add("a", "b", "b"), true);
    await store.append(draftOf());
    t.equal(await add("a", "b", "c"), true);
    t.same(await store.joinSeqs("g", ["a", "b", "c"]), [0, 0, 1]);
  });

  t.test("a user with both kinds of membership is a member until both are removed", async (t) => {
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
    "a removal of members is published once, after earlier and before later messages, and names the users who are no longer members",
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
      const removalOf = (uid: string) => ({
        ...{ kind: "removal", channelId: "g", uids: [uid] },
      });
      t.same(
        fixture.events.map((event) =>
          event.kind === "message" ? event.message.messageSeq : event,
        ),
        [1, removalOf("a"), 2, removalOf("b"), 3],
      );
    },
  );

  t.test(
    "the replacement of a member list is published as a removal, before messages that are sent later",
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
      t.same(uids ?? ["a"], ["a"], "the event names the removed users, or leaves them out");
    },
  );

  t.test(
    "a removal removes all listed users, or no user if one of the listed users is not a member",
    async (t) => {
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
    },
  );

  t.test("exactly one of several concurrent removals of a user succeeds", async (t) => {
    const { store } = await createFixture(t);
    await store.createChannel(group("g"), ["a"]);
    const results = await Promise.all(
      Array.from({ length: 5 }, () => store.removeSubscribers(group("g"), ["a"], "permanent")),
    );
    t.equal(results.filter(({ kind }) => kind === "removed").length, 1);
  });

  t.test("the members of an unknown or disbanded channel cannot be changed", async (t) => {
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

  t.test(
    "`reset` replaces the list of one kind of membership and leaves the other list unchanged",
    async (t) => {
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
        "a user who stays keeps the seq of the first join",
      );
      await reset();
      t.same(await members(), ["c", "d"]);
      await fixture.reopen();
      await fixture.store.append(draftOf());
      await fixture.store.addSubscribers(group("g"), ["b", "c"], PERMANENT);
      t.same(
        await fixture.store.joinSeqs("g", ["a", "b", "c"]),
        [undefined, 2, 0],
        "a user who returns has the seq of the new join",
      );
    },
  );

  t.test("`reset` of a channel does not affect channels whose ids start with its id", async (t) => {
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

  t.test("every member is listed once, whatever the kind of membership", async (t) => {
    const fixture = await createFixture(t);
    t.same(await fixture.store.members(group("g")), [], "the channel does not exist");
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

  t.test("membersAmong returns each member once, in the order of the requested uids", async (t) => {
    const { store } = await createFixture(t);
    const membersAmong = (uids: string[]) => store.membersAmong(group("g"), uids);
    t.same(await membersAmong(["a"]), [], "the channel does not exist");
    await store.createChannel(group("g"), ["a", "b"]);
    await store.addSubscribers(group("g"), ["t", "b"], TEMPORARY);
    t.same(await membersAmong(["t", "x", "b", "t", "a", "b"]), ["t", "b", "a"]);
    t.same(await membersAmong([]), []);
  });

  t.test("10,000 members can be added, read and removed in one call each", async (t) => {
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
