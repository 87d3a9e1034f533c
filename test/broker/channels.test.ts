// Channels and their members, and what live sessions are told of each change.

import { createChannels } from "../../src/broker/channels.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { group, person, rules, startNode, type TestNode } from "./node.ts";

const PERMANENT = { membership: "permanent", reset: false } as const;
const TEMPORARY = { membership: "temporary", reset: false } as const;

/** The additions announced and the removals published since the last call, as `+uid` and `-uid`. */
function announced({ events }: TestNode): readonly string[] {
  return events.splice(0).flatMap((one) => {
    if (one.kind === "addition") return [`+${one.uid}@${one.channelId}`];
    if (one.kind !== "removal") return [one.kind];
    return one.uids?.map((uid) => `-${uid}@${one.channelId}`) ?? [];
  });
}

async function members(
  { store }: TestNode,
  channelId: string,
  uids: readonly string[],
): Promise<readonly string[]> {
  const facts = await Promise.all(uids.map((uid) => store.groupFacts(channelId, uid)));
  return uids.filter((_, at) => facts[at]?.isSubscriber);
}

t.test("a created group has its subscribers, told once each", async (t) => {
  const node = await startNode(t);
  const info = rules(group("g"), { large: true });
  await node.channels.create(info, ["alice", "bob", "alice"]);
  t.same(announced(node), ["+alice@g", "+bob@g"]);
  t.same(await node.store.channel(group("g")), info);
  t.same(await members(node, "g", ["alice", "bob", "carol"]), ["alice", "bob"]);
});

t.test("an id is taken once per type", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(group("x")), ["alice"]);
  await node.channels.create(rules(person("x")), []);
  announced(node);
  await t.rejects(node.channels.create(rules(group("x"), { ban: true }), ["bob"]), {
    code: "channel_exists",
  });
  t.same(announced(node), []);
  t.match(await node.store.channel(group("x")), { ban: false });
  t.same(await members(node, "x", ["bob"]), []);
});

t.test("of creations at once exactly one wins", async (t) => {
  const { channels } = await startNode(t);
  const results = await Promise.allSettled(
    Array.from({ length: 10 }, () => channels.create(rules(group("g")), [])),
  );
  const won = results.filter(({ status }) => status === "fulfilled");
  t.equal(won.length, 1);
});

t.test("creating with disband disbands the existing one for good", async (t) => {
  const node = await startNode(t);
  const gone = rules(group("g"), { disband: true });
  await node.channels.create(rules(group("g"), { ban: true }), ["alice"]);
  announced(node);
  await node.channels.create(gone, ["bob"]);
  t.match(await node.store.channel(group("g")), { disband: true, ban: true });
  t.same(await members(node, "g", ["bob"]), []);
  await t.rejects(node.channels.create(rules(group("g")), []), {
    code: "channel_exists",
  });
  await t.resolves(node.channels.create(gone, []), "disbanding again is done");
  const info = await node.channels.update(group("g"), { disband: false });
  t.equal(info.disband, true);
  t.same(announced(node), [], "nobody is told into a group that is gone");
});

t.test("flags change one by one", async (t) => {
  const { channels, store } = await startNode(t);
  await channels.create(rules(group("g"), { sendBan: true }), []);
  const info = await channels.update(group("g"), { ban: true });
  t.match(info, { ban: true, sendBan: true, large: false });
  t.same(await store.channel(group("g")), info);
  await t.rejects(channels.update(group("other"), { ban: true }), {
    code: "channel_not_found",
  });
});

t.test("who is added is told, and again when the call is repeated", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(group("g")), ["alice"]);
  announced(node);
  await node.channels.addSubscribers(group("g"), ["alice", "bob", "bob"], PERMANENT);
  t.same(announced(node), ["+alice@g", "+bob@g"]);
  await node.channels.addSubscribers(group("g"), ["bob", "carol"], TEMPORARY);
  t.same(announced(node), ["+bob@g", "+carol@g"]);
});

t.test("a creation that is repeated tells the members again, a removal nobody", async (t) => {
  const node = await startNode(t);
  const create = (...uids: string[]): Promise<void> =>
    node.channels.create(rules(group("g")), uids);
  const remove = (...uids: string[]): Promise<void> =>
    node.channels.removeSubscribers(group("g"), uids, "permanent");
  await create("alice", "bob");
  await node.channels.addSubscribers(group("g"), ["bob"], TEMPORARY);
  announced(node);
  await t.rejects(create("alice", "erin"), { code: "channel_exists" });
  t.same(announced(node), ["+alice@g"], "erin is no member");
  await remove("alice", "bob");
  t.same(announced(node), ["-alice@g"], "bob is a member still");
  await t.rejects(remove("alice", "bob"), { code: "not_in_channel" });
  t.same(announced(node), []);
  await node.channels.update(group("g"), { disband: true });
  await t.rejects(create("bob"), { code: "channel_exists" });
  t.same(announced(node), [], "nobody joins what is gone");
});

t.test("a reset list tells who came and who went", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(group("g")), ["alice", "bob", "carol"]);
  await node.channels.addSubscribers(group("g"), ["carol"], TEMPORARY);
  announced(node);
  await node.channels.addSubscribers(group("g"), ["bob", "dave"], {
    membership: "permanent",
    reset: true,
  });
  t.same([...announced(node)].sort(), ["+bob@g", "+dave@g", "-alice@g"]);
});

t.test("nobody is added to what is not there or gone", async (t) => {
  const { channels } = await startNode(t);
  await channels.create(rules(group("gone"), { disband: true }), []);
  await t.rejects(channels.addSubscribers(group("none"), ["a"], PERMANENT), {
    code: "channel_not_found",
  });
  await t.rejects(channels.addSubscribers(group("gone"), ["a"], PERMANENT), {
    code: "channel_disbanded",
  });
});

t.test("removal is all or nothing, and tells who is a member no more", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(group("g")), ["alice", "bob", "carol"]);
  await node.channels.addSubscribers(group("g"), ["bob", "dave"], TEMPORARY);
  announced(node);
  const remove = (...uids: string[]): Promise<void> =>
    node.channels.removeSubscribers(group("g"), uids, "permanent");
  await t.rejects(remove("alice", "dave", "erin"), {
    code: "not_in_channel",
    details: [{ message: "dave" }, { message: "erin" }],
  });
  t.same(announced(node), []);
  t.same(await members(node, "g", ["alice"]), ["alice"]);
  await remove("alice", "bob", "alice");
  t.same(announced(node), ["-alice@g"], "bob is still there temporarily");
  t.same(await members(node, "g", ["alice", "bob"]), ["bob"]);
  await node.channels.removeSubscribers(group("g"), ["bob"], "temporary");
  t.same(announced(node), ["-bob@g"]);
});

t.test("removal from what is not there or gone is refused", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(group("g")), ["alice"]);
  const remove = (id: string, uids: readonly string[]): Promise<void> =>
    node.channels.removeSubscribers(group(id), uids, "permanent");
  await t.rejects(remove("none", ["alice"]), { code: "channel_not_found" });
  await t.rejects(remove("g", []), { code: "bad_request" });
  await node.channels.update(group("g"), { disband: true });
  await t.rejects(remove("g", ["alice"]), { code: "channel_disbanded" });
});

t.test("a contact list moves no session", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(person("alice")), ["bob"]);
  await node.channels.addSubscribers(person("alice"), ["carol"], PERMANENT);
  await node.channels.removeSubscribers(person("alice"), ["bob"], "permanent");
  t.same(announced(node), []);
  t.match(await node.store.personFacts("carol", "alice"), { isContact: true });
  t.match(await node.store.personFacts("bob", "alice"), { isContact: false });
});

t.test("ids are checked wherever they come in", async (t) => {
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
  "an addition that cannot be announced is refused, and announced when it is repeated",
  async (t) => {
    const node = await startNode(t);
    const { store, cluster } = node;
    let isAway = true;
    const channels = createChannels({
      store,
      publisher: {
        async announce(all) {
          if (isAway) throw new BrokerError("unavailable");
          await cluster.announce(all);
        },
      },
    });
    const cases = [
      {
        call: () => channels.create(rules(group("g")), ["alice"]),
        again: "channel_exists",
        told: "+alice@g",
      },
      {
        call: () => channels.addSubscribers(group("g"), ["bob"], PERMANENT),
        again: undefined,
        told: "+bob@g",
      },
    ];
    for (const { call, again, told } of cases) {
      isAway = true;
      await t.rejects(call(), { code: "unavailable" });
      t.same(announced(node), []);
      isAway = false;
      if (again === undefined) await call();
      else await t.rejects(call(), { code: again });
      t.same(announced(node), [told]);
    }
    isAway = true;
    await channels.removeSubscribers(group("g"), ["bob"], "permanent");
    t.same(announced(node), ["-bob@g"], "the store publishes a removal");
  },
);

t.test("pages of members hold each one once, in order", async (t) => {
  const { channels } = await startNode(t);
  const uids = Array.from({ length: 2500 }, (_, i) => `u${i}`).sort();
  await channels.create(rules(group("g")), uids);
  for (const limit of [1, 7, 999, 2499, 2500, 5000]) {
    const least = Math.max(limit, 200); // single ones are read near the end only
    const found: string[] = [];
    let after = limit === least ? "" : (uids.at(-12) ?? "");
    const start = after === "" ? 0 : uids.length - 11;
    for (let more = true; more; ) {
      const page = await channels.uids(group("g"), "members", { after, limit });
      t.ok(page.ids.length === limit || !page.more, "no page is short but the last");
      found.push(...page.ids);
      after = page.ids.at(-1) ?? "";
      more = page.more;
    }
    t.same(found, uids.slice(start), `by ${limit}`);
  }
  const behind = { after: "v", limit: 10 };
  const none = { ids: [], more: false };
  t.same(await channels.uids(group("g"), "members", behind), none);
  t.same(await channels.uids(group("none"), "denylist", behind), none);
  const own = await channels.groupsOf("u7", { after: "", limit: 1 });
  t.same(own, { ids: ["g"], more: false });
});
