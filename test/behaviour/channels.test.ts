// Channels and their members as a backend manages them, and the immediate effect of each change on
// live sessions.

import type { Test } from "tap";
import { SYSTEM_UID } from "../../src/broker/model.ts";
import { tempFolder } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { codeOf, group, person, receivedTexts, startWorld, untilReceived, wire } from "./world.ts";

const world = await startWorld(t);
const ADD = "/channel/subscriber_add";
const REMOVE = "/channel/subscriber_remove";

/**
 * Creates a group of alice and bob. `client` is a session of bob, and `send` sends as alice over
 * HTTP.
 */
async function aliceAndBob(t: Test) {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const channel = await world.newGroup([alice, bob]);
  const client = await world.join(t, bob);
  const send = (text: string) => world.send(alice, channel, text);
  return { alice, bob, channel, client, send };
}

// Covers [spec: POST /channel 200; spec: channel_id; spec: channel_type]
// Covers [spec: subscribers of a channel]
t.test(
  "POST /channel creates a channel, and its subscribers can immediately send and receive messages",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const live = await world.join(t, bob);
    const channel = group(world.name("group"));
    const body = { ...wire(channel), subscribers: [alice, bob, bob] };
    const response = await world.call("/channel", body);
    t.equal(response.status, 200);
    t.same(response.body, { status: "ok" });
    t.equal((await world.send(alice, channel, "hello")).status, 200);
    t.same(await untilReceived(live, 1), ["hello"]);
  },
);

// Covers [spec: POST /channel 200]
t.test(
  "POST /channel can create a group without subscribers, and no user may send to this group",
  async (t) => {
    const channel = await world.newGroup([]);
    const response = await world.send(world.name("alice"), channel, "hello");
    t.match(response, { status: 403, body: { code: "not_subscriber" } });
  },
);

// Covers [spec: POST /channel 409; decisions: Create again]
t.test(
  "POST /channel responds with 409 to an existing id of the same type and changes nothing",
  async (t) => {
    const alice = world.name("alice");
    const channel = await world.newGroup([alice]);
    const repeated = { ...wire(channel), ban: 1, subscribers: ["mallory"] };
    t.equal(await world.refusal("/channel", repeated), "409 channel_exists");
    t.equal((await world.send(alice, channel, "hello")).status, 200);
    t.equal((await world.send("mallory", channel, "hello")).status, 403);
    await world.ok("/channel", { ...wire(channel), channel_type: 1 });
  },
);

// Covers [decisions: Create again; spec: disband; spec: Channel state]
t.test("POST /channel with disband 1 disbands an existing channel permanently", async (t) => {
  const alice = world.name("alice");
  const channel = await world.newGroup([alice]);
  await world.ok("/channel", { ...wire(channel), disband: 1 });
  const refused = { status: 403, body: { code: "channel_disbanded" } };
  t.match(await world.send(alice, channel, "hello"), refused);
  const create = { ...wire(channel), subscribers: [alice] };
  t.equal(await world.refusal("/channel", create), "409 channel_exists");
  await world.ok("/channel", { ...wire(channel), disband: 1 });
  await world.ok("/channel/info", { ...wire(channel), disband: 0 });
  t.match(await world.send(alice, channel, "hello"), refused);
  const add = { ...wire(channel), subscribers: ["bob"] };
  t.equal(await world.refusal(ADD, add), "403 channel_disbanded");
});

// Covers [spec: POST /channel 400]
t.test("POST /channel responds with 400 to an invalid id, type, flag or subscriber", async (t) => {
  const valid = { channel_id: world.name("group"), channel_type: 2 };
  for (const change of [
    { channel_id: undefined },
    { channel_type: undefined },
    { channel_type: 3 },
    { ban: 2 },
    { disband: "1" },
    { send_ban: true },
    { allow_stranger: -1 },
    { large: 0.5 },
    { subscribers: "bob" },
  ])
    t.equal(
      await world.refusal("/channel", { ...valid, ...change }),
      "400 bad_request",
      `${JSON.stringify(change)} is refused`,
    );
  for (const change of [{ channel_id: "a&b" }, { subscribers: ["a", ""] }])
    t.equal(await world.refusal("/channel", { ...valid, ...change }), "400 bad_id");
  await world.ok("/channel", valid);
});

// Covers [spec: large; decisions: large]
t.test("a group with `large` 1 delivers and stores messages like other groups", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const channel = await world.newGroup([alice, bob], { large: 1 });
  const live = await world.join(t, bob);
  await world.send(alice, channel, "hello");
  t.same(await untilReceived(live, 1), ["hello"]);
  const { messages } = await live.history(channel);
  t.equal(messages.length, 1);
});

// Covers [feature: channel/info]
t.test(
  "POST /channel/info changes only the given flags, and responds with 404 for an unknown channel",
  async (t) => {
    const alice = world.name("alice");
    const channel = await world.newGroup([alice], { ban: 1, send_ban: 1 });
    const code = async () => {
      const { body } = await world.send(alice, channel, "hello");
      return body.code;
    };
    const change = (flags: object) => world.ok("/channel/info", { ...wire(channel), ...flags });
    t.same(await change({ ban: 0 }), { status: "ok" });
    t.equal(await code(), "send_banned");
    await change({ send_ban: 0 });
    t.equal(await code(), undefined);
    await change({ disband: 1 });
    t.equal(await code(), "channel_disbanded");
    const missing = { ...wire(group(world.name("none"))), ban: 1 };
    const refusal = await world.refusal("/channel/info", missing);
    t.equal(refusal, "404 channel_not_found");
  },
);

// Covers [feature: subscriber_add; feature: Membership reaches live sessions]
t.test(
  "subscriber_add immediately lets the added user's live sessions receive and send",
  async (t) => {
    const { alice, channel, send } = await aliceAndBob(t);
    const carol = world.name("carol");
    const phone = await world.join(t, carol);
    const laptop = await world.join(t, carol, { flag: 2 });
    await send("before");
    const body = { ...wire(channel), subscribers: [carol, alice] };
    t.same(await world.ok(ADD, body), { status: "ok" });
    await world.ok(ADD, body); // adding a member again has no effect
    await send("after");
    t.same(await untilReceived(phone, 1), ["after"]);
    t.same(await untilReceived(laptop, 1), ["after"]);
    t.equal((await phone.send(channel, "hello")).messageSeq, 3);
  },
);

// Covers [feature: subscriber_add]
t.test(
  "subscriber_add with reset 1 replaces the members, and a dropped member receives nothing more",
  async (t) => {
    const { alice, channel, client, send } = await aliceAndBob(t);
    const carol = world.name("carol");
    const added = await world.join(t, carol);
    await world.ok(ADD, {
      ...wire(channel),
      subscribers: [alice, carol],
      reset: 1,
    });
    await send("after");
    t.same(await receivedTexts(client), []);
    t.same(await untilReceived(added, 1), ["after"]);
  },
);

// Covers [feature: subscriber_add]
t.test(
  "subscriber_add responds with 404 to an unknown channel and with 400 to an empty list",
  async (t) => {
    const body = { channel_id: world.name("none"), channel_type: 2 };
    const add = { ...body, subscribers: ["bob"] };
    t.equal(await world.refusal(ADD, add), "404 channel_not_found");
    t.equal(await world.refusal(ADD, { ...body, subscribers: [] }), "400 bad_request");
  },
);

// Covers [spec: POST /channel/subscriber_remove 200; decisions: After removal]
// Covers [feature: Membership reaches live sessions]
t.test(
  "subscriber_remove immediately stops the removed user's live sessions from receiving and sending",
  async (t) => {
    const { bob, channel, client, send } = await aliceAndBob(t);
    const laptop = await world.join(t, bob, { flag: 2 });
    const carol = world.name("carol");
    await world.ok(ADD, { ...wire(channel), subscribers: [carol] });
    const remaining = await world.join(t, carol);
    await send("before");
    const body = { ...wire(channel), subscribers: [bob] };
    t.same(await world.ok(REMOVE, body), { status: "ok" });
    await send("after");
    t.same(await untilReceived(client, 1), ["before"]);
    t.same(await untilReceived(laptop, 1), ["before"]);
    t.same(await untilReceived(remaining, 2), ["before", "after"]);
    await t.rejects(client.send(channel, "x"), { code: "not_subscriber" });
    await t.rejects(client.history(channel), { code: "not_in_channel" });
    const reconnected = await world.connect(t, bob);
    await send("later");
    t.same(await receivedTexts(reconnected), []);
  },
);

// Covers [spec: POST /channel/subscriber_remove 200]
t.test("subscriber_remove can remove several members in one call", async (t) => {
  const uids = ["a", "b", "c"].map((name) => world.name(name));
  const channel = await world.newGroup(uids);
  await world.ok(REMOVE, { ...wire(channel), subscribers: uids.slice(1) });
  const statuses = uids.map(async (uid) => (await world.send(uid, channel, "x")).status);
  t.same(await Promise.all(statuses), [200, 403, 403]);
});

// Covers [spec: POST /channel/subscriber_remove 404; decisions: subscriber_remove]
t.test(
  "subscriber_remove responds with 404 and removes no member if the channel does not exist or a listed uid is not a member",
  async (t) => {
    const { bob, channel, client, send } = await aliceAndBob(t);
    const stranger = world.name("stranger");
    const body = { ...wire(channel), subscribers: [bob, stranger] };
    t.equal(await world.refusal(REMOVE, body), "404 not_in_channel");
    await send("unchanged");
    t.same(await untilReceived(client, 1), ["unchanged"]);
    const none = { ...body, channel_id: world.name("none") };
    t.equal(await world.refusal(REMOVE, none), "404 channel_not_found");
  },
);

// Covers [spec: POST /channel/subscriber_remove 403; decisions: subscriber_remove]
t.test("subscriber_remove responds with 403 for a disbanded channel", async (t) => {
  const bob = world.name("bob");
  const channel = await world.newGroup([bob], { disband: 1 });
  const body = { ...wire(channel), subscribers: [bob] };
  t.equal(await world.refusal(REMOVE, body), "403 channel_disbanded");
});

// Covers [spec: POST /channel/subscriber_remove 400; decisions: subscriber_remove]
t.test("subscriber_remove responds with 400 to missing, empty or invalid fields", async (t) => {
  const bob = world.name("bob");
  const valid = { ...wire(await world.newGroup([bob])), subscribers: [bob] };
  for (const change of [
    { subscribers: undefined },
    { subscribers: [] },
    { subscribers: bob },
    { channel_id: undefined },
    { channel_type: undefined },
    { channel_type: 0 },
    { temp_subscriber: 2 },
  ])
    t.equal(
      await world.refusal(REMOVE, { ...valid, ...change }),
      "400 bad_request",
      `${JSON.stringify(change)} is refused`,
    );
  await world.ok(REMOVE, valid);
});

t.test(
  "subscriber_remove_all removes all members, including temporary members, and members can be added again",
  async (t) => {
    const { bob, channel, client, send } = await aliceAndBob(t);
    const guest = world.name("guest");
    const temporary = { subscribers: [guest], temp_subscriber: 1 };
    await world.ok(ADD, { ...wire(channel), ...temporary });
    const visitor = await world.join(t, guest);
    await send("before");
    await world.ok("/channel/subscriber_remove_all", wire(channel));
    t.equal((await send("after")).body.code, "not_subscriber");
    await world.send(SYSTEM_UID, channel, "to nobody");
    t.same(await untilReceived(client, 1), ["before"]);
    t.same(await untilReceived(visitor, 1), ["before"]);
    t.equal(await codeOf(client.send(channel, "x")), "not_subscriber");
    await world.ok(ADD, { ...wire(channel), subscribers: [bob] });
    await world.send(SYSTEM_UID, channel, "welcome");
    t.same(await untilReceived(client, 2), ["before", "welcome"]);
    const none = wire(group(world.name("none")));
    const path = "/channel/subscriber_remove_all";
    t.equal(await world.refusal(path, none), "404 channel_not_found");
  },
);

t.test(
  "/channel/delete disbands a group permanently, and refuses personal channels and unknown groups",
  async (t) => {
    const { channel, client, send } = await aliceAndBob(t);
    const path = "/channel/delete";
    await world.ok(path, wire(channel));
    await world.ok(path, wire(channel)); // a second call succeeds as well
    t.equal((await send("after")).body.code, "channel_disbanded");
    t.equal(await codeOf(client.send(channel, "x")), "channel_disbanded");
    const user = wire(person(world.name("user")));
    t.equal(await world.refusal(path, user), "400 bad_request");
    const none = wire(group(world.name("none")));
    t.equal(await world.refusal(path, none), "404 channel_not_found");
  },
);

t.test(
  "a backend can read a channel's state, pages of its members, denylist and allowlist, and a user's groups",
  async (t) => {
    const uids = ["a", "b", "c", "日本"].map((word) => world.name(word)).sort();
    const [first = "", second = "", third = "", guest = ""] = uids;
    const channel = await world.newGroup([first, second, third], { ban: 1 });
    const add = { subscribers: [guest, first], temp_subscriber: 1 };
    await world.ok(ADD, { ...wire(channel), ...add });
    const list = { ...wire(channel), uids: [third, second] };
    await world.ok("/channel/blacklist_add", list);
    await world.ok("/channel/whitelist_add", list);
    const read = async (path: string, query: object = {}) => {
      const fields = { ...wire(channel), ...query };
      const pairs = Object.entries(fields).map(([k, v]) => [k, String(v)]);
      const text = new URLSearchParams(Object.fromEntries(pairs));
      return (await world.call(`${path}?${text}`)).body;
    };
    t.match(await read("/channel/state"), {
      ...{ ...wire(channel), ban: 1, disband: 0, subscriber_count: 4 },
      ...{ blacklist_count: 2, whitelist_count: 2, last_message_seq: 0 },
    });
    const members = "/channel/members";
    t.same(await read(members), { uids, cursor: "" });
    const page = await read(members, { limit: 3 });
    t.same(page, { uids: uids.slice(0, 3), cursor: third });
    const last = await read(members, { limit: 3, cursor: page.cursor });
    t.same(last, { uids: [guest], cursor: "" });
    const denied = { uids: [second, third], cursor: "" };
    t.same(await read(members, { list: "blacklist" }), denied);
    t.same(await read(members, { list: "whitelist" }), denied);
    const allowed = [{ uid: second }, { uid: third }];
    t.same(await read("/channel/whitelist"), allowed);
    const otherGroup = await world.newGroup([first]);
    const deleted = await world.newGroup([first]);
    await world.ok("/channel/delete", wire(deleted));
    const groups = [wire(channel), wire(otherGroup)];
    t.same(await world.call(`/user/channels?uid=${first}`).then((a) => a.body), {
      channels: groups.sort((a, b) => (a.channel_id < b.channel_id ? -1 : 1)),
      cursor: "",
    });
    const none = { channel_id: world.name("none") };
    t.same(await read(members, none), { uids: [], cursor: "" });
    t.equal((await read("/channel/state", none)).code, "channel_not_found");
  },
);

// Covers [spec: temp_subscriber; decisions: subscriber_remove]
t.test("subscriber_remove removes only the membership that temp_subscriber selects", async (t) => {
  const { bob, channel, client, send } = await aliceAndBob(t);
  const body = { ...wire(channel), subscribers: [bob] };
  const temporary = { ...body, temp_subscriber: 1 };
  t.equal(await world.refusal(REMOVE, temporary), "404 not_in_channel");
  await world.ok(ADD, temporary);
  await world.ok(REMOVE, body);
  await send("still a temporary member");
  t.equal(await world.refusal(REMOVE, body), "404 not_in_channel");
  await world.ok(REMOVE, temporary);
  await send("gone");
  t.same(await untilReceived(client, 1), ["still a temporary member"]);
});

// Covers [decisions: Personal channel record]
t.test(
  "the subscribers of a personal channel are the contacts who may write to its owner",
  async (t) => {
    const [owner, friend] = [world.name("owner"), world.name("friend")];
    const record = wire(person(owner));
    await world.ok("/channel", { ...record, subscribers: [friend] });
    const stranger = world.name("stranger");
    const sendAs = async (uid: string) => (await world.send(uid, person(owner), "x")).status;
    t.same([await sendAs(friend), await sendAs(stranger)], [200, 403]);
    await world.ok(ADD, { ...record, subscribers: [stranger] });
    await world.ok(REMOVE, { ...record, subscribers: [friend] });
    t.same([await sendAs(friend), await sendAs(stranger)], [403, 200]);
  },
);

// Covers [feature: Members survive]
t.test("channels, flags and members survive a restart", async (t) => {
  const folder = await tempFolder(t);
  const before = await startWorld(t, {}, folder);
  const open = await before.newGroup(["alice", "bob"]);
  const banned = await before.newGroup(["alice"], { ban: 1 });
  const disbanded = await before.newGroup(["alice"], { disband: 1 });
  const remove = { ...wire(open), subscribers: ["bob"] };
  await before.ok(REMOVE, remove);
  await before.close();
  const after = await startWorld(t, {}, folder);
  const code = async (uid: string, channel: typeof open) =>
    (await after.send(uid, channel, "x")).body.code;
  t.equal(await code("alice", open), undefined);
  t.equal(await code("bob", open), "not_subscriber");
  t.equal(await code("alice", banned), "channel_banned");
  t.equal(await code("alice", disbanded), "channel_disbanded");
});
