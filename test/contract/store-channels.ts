// Store contract: channels, and the facts about them that the permission to send depends on.

import type { Test } from "tap";
import type { SessionRecord } from "../../src/broker/model.ts";
import { joinStateOf } from "./join-request.ts";
import { type FixtureFactory, group, PERMANENT, person, TEMPORARY } from "./store-fixture.ts";

/** Facts about a user who is on neither list. */
const NO_LISTS = { isDenied: false, hasAllowlist: false, isAllowed: false };

export async function channels(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a channel is created once, with its flags and members", async (t) => {
    const fixture = await createFixture(t);
    const info = { ...group("g"), sendBan: true, large: true };
    t.equal(await fixture.store.channel(info), undefined);
    t.equal(await fixture.store.createChannel(info, ["a", "b", "a"]), true);
    t.equal(await fixture.store.createChannel(group("g"), ["c"]), false);
    t.same(await fixture.store.channel({ id: "g", type: 2 }), info);
    t.equal((await fixture.store.groupFacts("g", "c")).isSubscriber, false);
    await fixture.reopen();
    t.same(await fixture.store.channel({ id: "g", type: 2 }), info);
    t.equal((await fixture.store.groupFacts("g", "b")).isSubscriber, true);
  });

  t.test("a group and a user may have the same id", async (t) => {
    const { store } = await createFixture(t);
    await store.createChannel(group("x"), []);
    t.equal(await store.channel({ id: "x", type: 1 }), undefined);
    t.equal(await store.createChannel(person("x"), []), true);
  });

  t.test(
    "exactly one of several concurrent creations of a channel succeeds, and only its members are stored",
    async (t) => {
      const { store } = await createFixture(t);
      const results = await Promise.all(
        Array.from({ length: 10 }, (_, i) => store.createChannel(group("g"), [`m${i}`])),
      );
      t.equal(results.filter(Boolean).length, 1);
      for (const [i, isCreated] of results.entries())
        t.equal((await store.groupFacts("g", `m${i}`)).isSubscriber, isCreated);
    },
  );

  t.test("changing a flag leaves the other flags and the members unchanged", async (t) => {
    const { store } = await createFixture(t);
    t.equal(await store.updateChannel(group("g"), { ban: true }), undefined);
    await store.createChannel(group("g"), ["a"]);
    t.same(await store.updateChannel(group("g"), { ban: true }), {
      ...group("g"),
      ban: true,
    });
    t.same(await store.updateChannel(group("g"), { large: true }), {
      ...group("g"),
      ban: true,
      large: true,
    });
    t.equal((await store.groupFacts("g", "a")).info?.ban, true);
    t.equal((await store.groupFacts("g", "a")).isSubscriber, true);
  });

  t.test("a disbanded channel stays disbanded, and its id cannot be used again", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.createChannel(group("g"), ["a"]);
    await fixture.store.updateChannel(group("g"), { disband: true });
    const updated = await fixture.store.updateChannel(group("g"), {
      disband: false,
      ban: false,
    });
    t.equal(updated?.disband, true);
    t.equal(await fixture.store.createChannel(group("g"), []), false);
    await fixture.reopen();
    t.equal((await fixture.store.channel(group("g")))?.disband, true);
  });

  t.test("concurrent changes to a channel are all stored", async (t) => {
    const { store } = await createFixture(t);
    await store.createChannel(group("g"), []);
    await Promise.all([
      store.updateChannel(group("g"), { ban: true }),
      store.updateChannel(group("g"), { sendBan: true }),
      store.addSubscribers(group("g"), ["a"], PERMANENT),
      store.addSubscribers(group("g"), ["b"], PERMANENT),
    ]);
    const { info, isSubscriber } = await store.groupFacts("g", "b");
    t.same([info?.ban, info?.sendBan, isSubscriber], [true, true, true]);
    t.equal((await store.groupFacts("g", "a")).isSubscriber, true);
  });
}

export async function facts(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a group that does not exist has no record and no subscribers", async (t) => {
    const { store } = await createFixture(t);
    t.same(await store.groupFacts("g", "a"), {
      ...{ info: undefined, isSubscriber: false },
      ...NO_LISTS,
    });
  });

  t.test("a read that begins after a membership change returned sees the change", async (t) => {
    const { store } = await createFixture(t);
    await store.createChannel(group("g"), []);
    for (let i = 0; i < 50; i++) {
      await store.addSubscribers(group("g"), ["a"], PERMANENT);
      if (!(await store.groupFacts("g", "a")).isSubscriber) t.fail("an added member is not seen");
      await store.removeSubscribers(group("g"), ["a"], "permanent");
      if ((await store.groupFacts("g", "a")).isSubscriber) t.fail("a removed member is still seen");
    }
    t.equal((await store.groupFacts("g", "a")).isSubscriber, false);
  });

  t.test(
    "personFacts returns the records of both users and whether the sender is a contact",
    async (t) => {
      const { store } = await createFixture(t);
      t.same(await store.personFacts("a", "b"), {
        receiver: undefined,
        receiverHasContacts: false,
        isContact: false,
        sender: undefined,
        ...NO_LISTS,
      });
      const b = { ...person("b"), allowStranger: true, clientEvents: false };
      const a = { ...person("a"), sendBan: true };
      await store.createChannel(b, []);
      await store.createChannel(a, []);
      t.same(await store.personFacts("a", "b"), {
        receiver: b,
        receiverHasContacts: false,
        isContact: false,
        sender: a,
        ...NO_LISTS,
      });
      await store.addSubscribers(b, ["c"], PERMANENT);
      t.match(await store.personFacts("a", "b"), {
        receiverHasContacts: true,
        isContact: false,
      });
      t.match(await store.personFacts("c", "b"), { isContact: true });
      await store.removeSubscribers(b, ["c"], "permanent");
      t.match(await store.personFacts("c", "b"), {
        receiverHasContacts: false,
        isContact: false,
      });
    },
  );

  t.test(
    "joinState returns which of the requested groups a user is in, and whether the user is in other groups",
    async (t) => {
      const { store } = await createFixture(t);
      const session: SessionRecord = {
        ...{ sessionId: "s", nodeId: "n", uid: "a" },
        ...{ flag: 0, level: 0, deviceId: "", tokenTag: "" },
      };
      for (const id of ["g1", "g2", "g3"]) await store.createChannel(group(id), ["a", "b"]);
      const login = await store.login(session, "n:1");
      const groups = login.kind === "entered" ? [...login.groups].sort() : [];
      t.same(groups, ["g1", "g2", "g3"], "a login returns all groups of the user");
      await store.removeSubscribers(group("g1"), ["a"], "permanent");
      await store.updateChannel(group("g2"), { disband: true });
      const among = async (ids: readonly string[]) => {
        const state = await joinStateOf(store, "a", { groups: ids });
        return [...state.groups].sort().join() + (state.isAll ? "" : "…");
      };
      t.equal(
        await among(groups),
        "g3",
        "groups that the user left or that were disbanded are left out",
      );
      await store.createChannel(group("g4"), ["a"]);
      t.equal(
        await among(groups),
        "g3…",
        "the result is incomplete if it lacks a group of the user",
      );
      t.equal(await among([...groups, "g4", "none"]), "g3,g4");
      t.equal(await among([]), "…");
      t.same([...(await store.groupsOf("a"))].sort(), ["g3", "g4"]);
      t.match(await joinStateOf(store, "nobody", {}), { groups: [], isAll: true });
    },
  );

  t.test(
    "groupsOf lists permanent and temporary memberships, without disbanded groups",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      for (const id of ["g1", "g2", "g3", "g4"])
        await store.createChannel(group(id), id === "g2" ? [] : ["a"]);
      await store.createChannel(person("p"), ["a"]);
      await store.addSubscribers(group("g2"), ["a"], TEMPORARY);
      await store.removeSubscribers(group("g3"), ["a"], "permanent");
      await store.updateChannel(group("g4"), { disband: true });
      await store.createChannel(group("other"), ["ab"]);
      t.same([...(await store.groupsOf("a"))].sort(), ["g1", "g2"]);
      t.same(await store.groupsOf("nobody"), []);
      await fixture.reopen();
      t.same([...(await fixture.store.groupsOf("a"))].sort(), ["g1", "g2"]);
    },
  );
}
