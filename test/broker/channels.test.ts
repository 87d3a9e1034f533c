// Changes of channels and their members, and the notifications of live sessions about them.

import { createChannels } from "../../src/broker/channels.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { group, person, rules, startNode, type TestNode } from "./node.ts";

const PERMANENT = { membership: "permanent", reset: false } as const;
const TEMPORARY = { membership: "temporary", reset: false } as const;

/**
 * Returns the notifications since the last call: additions as `+uid@group`, removals as
 * `-uid@group`.
 */
function takeNotifications({ events }: TestNode): readonly string[] {
  return events.splice(0).flatMap((event) => {
    if (event.kind === "addition") return [`+${event.uid}@${event.channelId}`];
    if (event.kind !== "removal") return [event.kind];
    return event.uids?.map((uid) => `-${uid}@${event.channelId}`) ?? [];
  });
}

/** Returns the members of the group among `uids`. */
async function members(
  { store }: TestNode,
  channelId: string,
  uids: readonly string[],
): Promise<readonly string[]> {
  const facts = await Promise.all(uids.map((uid) => store.groupFacts(channelId, uid)));
  return uids.filter((_, at) => facts[at]?.isSubscriber);
}

t.test(
  "a new group has the subscribers that were passed at its creation, and each is notified once",
  async (t) => {
    const node = await startNode(t);
    const info = rules(group("g"), { large: true });
    await node.channels.create(info, ["alice", "bob", "alice"]);
    t.same(takeNotifications(node), ["+alice@g", "+bob@g"]);
    t.same(await node.store.channel(group("g")), info);
    t.same(await members(node, "g", ["alice", "bob", "carol"]), ["alice", "bob"]);
  },
);

t.test("a group and a personal channel can have the same id, but two groups cannot", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(group("x")), ["alice"]);
  await node.channels.create(rules(person("x")), []);
  takeNotifications(node);
  await t.rejects(node.channels.create(rules(group("x"), { ban: true }), ["bob"]), {
    code: "channel_exists",
  });
  t.same(takeNotifications(node), []);
  t.match(await node.store.channel(group("x")), { ban: false });
  t.same(await members(node, "x", ["bob"]), []);
});

t.test("exactly one of several concurrent creations of a group succeeds", async (t) => {
  const { channels } = await startNode(t);
  const results = await Promise.allSettled(
    Array.from({ length: 10 }, () => channels.create(rules(group("g")), [])),
  );
  const created = results.filter(({ status }) => status === "fulfilled");
  t.equal(created.length, 1);
});

t.test("creating an existing group with disband 1 disbands it permanently", async (t) => {
  const node = await startNode(t);
  const disbanded = rules(group("g"), { disband: true });
  await node.channels.create(rules(group("g"), { ban: true }), ["alice"]);
  takeNotifications(node);
  await node.channels.create(disbanded, ["bob"]);
  t.match(await node.store.channel(group("g")), { disband: true, ban: true });
  t.same(await members(node, "g", ["bob"]), []);
  await t.rejects(node.channels.create(rules(group("g")), []), {
    code: "channel_exists",
  });
  await t.resolves(node.channels.create(disbanded, []), "a disbanded group can be disbanded again");
  const info = await node.channels.update(group("g"), { disband: false });
  t.equal(info.disband, true);
  t.same(takeNotifications(node), [], "no addition to a disbanded group is announced");
});

t.test("changing a flag of a group leaves the other flags unchanged", async (t) => {
  const { channels, store } = await startNode(t);
  await channels.create(rules(group("g"), { sendBan: true }), []);
  const info = await channels.update(group("g"), { ban: true });
  t.match(info, { ban: true, sendBan: true, large: false });
  t.same(await store.channel(group("g")), info);
  await t.rejects(channels.update(group("other"), { ban: true }), {
    code: "channel_not_found",
  });
});

t.test(
  "members that are added to a group are notified, even if they were already members",
  async (t) => {
    const node = await startNode(t);
    await node.channels.create(rules(group("g")), ["alice"]);
    takeNotifications(node);
    await node.channels.addSubscribers(group("g"), ["alice", "bob", "bob"], PERMANENT);
    t.same(takeNotifications(node), ["+alice@g", "+bob@g"]);
    await node.channels.addSubscribers(group("g"), ["bob", "carol"], TEMPORARY);
    t.same(takeNotifications(node), ["+bob@g", "+carol@g"]);
  },
);

t.test(
  "a repeated creation of a group notifies the listed members again, but a repeated removal notifies nobody",
  async (t) => {
    const node = await startNode(t);
    const create = (...uids: string[]): Promise<void> =>
      node.channels.create(rules(group("g")), uids);
    const remove = (...uids: string[]): Promise<void> =>
      node.channels.removeSubscribers(group("g"), uids, "permanent");
    await create("alice", "bob");
    await node.channels.addSubscribers(group("g"), ["bob"], TEMPORARY);
    takeNotifications(node);
    await t.rejects(create("alice", "erin"), { code: "channel_exists" });
    t.same(takeNotifications(node), ["+alice@g"], "erin is not a member and is not notified");
    await remove("alice", "bob");
    t.same(
      takeNotifications(node),
      ["-alice@g"],
      "bob remains a temporary member and is not reported as removed",
    );
    await t.rejects(remove("alice", "bob"), { code: "not_in_channel" });
    t.same(takeNotifications(node), []);
    await node.channels.update(group("g"), { disband: true });
    await t.rejects(create("bob"), { code: "channel_exists" });
    t.same(takeNotifications(node), [], "members of a disbanded group are not notified");
  },
);

t.test(
  "replacing the list of members notifies all members of the new list and the removed members",
  async (t) => {
    const node = await startNode(t);
    await node.channels.create(rules(group("g")), ["alice", "bob", "carol"]);
    await node.channels.addSubscribers(group("g"), ["carol"], TEMPORARY);
    takeNotifications(node);
    await node.channels.addSubscribers(group("g"), ["bob", "dave"], {
      membership: "permanent",
      reset: true,
    });
    t.same([...takeNotifications(node)].sort(), ["+bob@g", "+dave@g", "-alice@g"]);
  },
);

t.test("members cannot be added to a group that does not exist or is disbanded", async (t) => {
  const { channels } = await startNode(t);
  await channels.create(rules(group("disbanded"), { disband: true }), []);
  await t.rejects(channels.addSubscribers(group("none"), ["a"], PERMANENT), {
    code: "channel_not_found",
  });
  await t.rejects(channels.addSubscribers(group("disbanded"), ["a"], PERMANENT), {
    code: "channel_disbanded",
  });
});

t.test("a removal removes all listed members or none, and notifies removed members", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(group("g")), ["alice", "bob", "carol"]);
  await node.channels.addSubscribers(group("g"), ["bob", "dave"], TEMPORARY);
  takeNotifications(node);
  const remove = (...uids: string[]): Promise<void> =>
    node.channels.removeSubscribers(group("g"), uids, "permanent");
  await t.rejects(remove("alice", "dave", "erin"), {
    code: "not_in_channel",
    details: [{ message: "dave" }, { message: "erin" }],
  });
  t.same(takeNotifications(node), []);
  t.same(await members(node, "g", ["alice"]), ["alice"]);
  await remove("alice", "bob", "alice");
  t.same(takeNotifications(node), ["-alice@g"], "bob remains a temporary member");
  t.same(await members(node, "g", ["alice", "bob"]), ["bob"]);
  await node.channels.removeSubscribers(group("g"), ["bob"], "temporary");
  t.same(takeNotifications(node), ["-bob@g"]);
});

t.test(
  "members cannot be removed from a group that does not exist or is disbanded, and a removal must name a member",
  async (t) => {
    const node = await startNode(t);
    await node.channels.create(rules(group("g")), ["alice"]);
    const remove = (id: string, uids: readonly string[]): Promise<void> =>
      node.channels.removeSubscribers(group(id), uids, "permanent");
    await t.rejects(remove("none", ["alice"]), { code: "channel_not_found" });
    await t.rejects(remove("g", []), { code: "bad_request" });
    await node.channels.update(group("g"), { disband: true });
    await t.rejects(remove("g", ["alice"]), { code: "channel_disbanded" });
  },
);

t.test("changing a user's contacts does not notify sessions", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(person("alice")), ["bob"]);
  await node.channels.addSubscribers(person("alice"), ["carol"], PERMANENT);
  await node.channels.removeSubscribers(person("alice"), ["bob"], "permanent");
  t.same(takeNotifications(node), []);
  t.match(await node.store.personFacts("carol", "alice"), { isContact: true });
  t.match(await node.store.personFacts("bob", "alice"), { isContact: false });
});

t.test("invalid ids are refused in every change of a channel or its members", async (t) => {
  const { channels } = await startNode(t);
  const bad = { code: "bad_id" };
  for (const id of ["", "a@b", "x".repeat(129), "a\u0000"]) {
    await t.rejects(channels.create(rules(group(id)), []), bad);
    await t.rejects(channels.create(rules(group("g")), ["ok", id]), bad);
    await t.rejects(channels.update(group(id), {}), bad);
    await t.rejects(channels.addSubscribers(group("g"), [id], PERMANENT), bad);
    await t.rejects(channels.removeSubscribers(group("g"), [id], "permanent"), bad);
  }
});

t.test(
  "creating a group or adding members fails if the members cannot be notified, and a repetition notifies them",
  async (t) => {
    const node = await startNode(t);
    const { store, cluster } = node;
    let isUnreachable = true;
    const channels = createChannels({
      store,
      publisher: {
        async announce(events) {
          if (isUnreachable) throw new BrokerError("unavailable");
          await cluster.announce(events);
        },
      },
    });
    const cases = [
      {
        call: () => channels.create(rules(group("g")), ["alice"]),
        retryCode: "channel_exists",
        notification: "+alice@g",
      },
      {
        call: () => channels.addSubscribers(group("g"), ["bob"], PERMANENT),
        retryCode: undefined,
        notification: "+bob@g",
      },
    ];
    for (const { call, retryCode, notification } of cases) {
      isUnreachable = true;
      await t.rejects(call(), { code: "unavailable" });
      t.same(takeNotifications(node), []);
      isUnreachable = false;
      if (retryCode === undefined) await call();
      else await t.rejects(call(), { code: retryCode });
      t.same(takeNotifications(node), [notification]);
    }
    isUnreachable = true;
    await channels.removeSubscribers(group("g"), ["bob"], "permanent");
    t.same(takeNotifications(node), ["-bob@g"], "a removal is published by the store");
  },
);

t.test(
  "the pages of a member list contain each member once, in the order of the uids",
  async (t) => {
    const { channels } = await startNode(t);
    const uids = Array.from({ length: 2500 }, (_, i) => `u${i}`).sort();
    await channels.create(rules(group("g")), uids);
    for (const limit of [1, 7, 999, 2499, 2500, 5000]) {
      const isLarge = limit >= 200; // small pages are only read near the end of the list
      const ids: string[] = [];
      let after = isLarge ? "" : (uids.at(-12) ?? "");
      const start = after === "" ? 0 : uids.length - 11;
      for (let more = true; more; ) {
        const page = await channels.uids(group("g"), "members", { after, limit });
        t.ok(
          page.ids.length === limit || !page.more,
          "only the last page is shorter than the limit",
        );
        ids.push(...page.ids);
        after = page.ids.at(-1) ?? "";
        more = page.more;
      }
      t.same(ids, uids.slice(start), `pages of ${limit}`);
    }
    const atEnd = { after: "v", limit: 10 };
    const empty = { ids: [], more: false };
    t.same(await channels.uids(group("g"), "members", atEnd), { ...empty, total: 2500 });
    t.same(await channels.uids(group("none"), "denylist", atEnd), { ...empty, total: 0 });
    const own = await channels.groupsOf("u7", { after: "", limit: 1 });
    t.same(own, { ids: ["g"], more: false, total: 1 });
  },
);
