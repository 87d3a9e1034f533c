// The permission to send to a channel, over HTTP and on the socket: the rules of groups and
// personal channels, and the exemptions of the system uid.

import type { Test } from "tap";
import { type ChannelRef, SYSTEM_UID } from "../../src/broker/model.ts";
import { textPayload } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { codeOf, group, person, startWorld, untilReceived, type World, wire } from "./world.ts";

const world = await startWorld(t);

/** Sends over HTTP. Returns `ok` or `<status> <code>`. */
async function post(from: string, channel: ChannelRef): Promise<string> {
  const { status, body } = await world.send(from, channel, "hello");
  return status === 200 ? "ok" : `${status} ${body.code}`;
}

/** Creates a user whose personal record has these rules. */
async function createOwner(rules: object): Promise<string> {
  const uid = world.name("owner");
  await world.ok("/channel", { ...wire(person(uid)), ...rules });
  return uid;
}

for (const [flags, code] of [
  [{ ban: 1 }, "channel_banned"],
  [{ send_ban: 1 }, "send_banned"],
  [{ disband: 1 }, "channel_disbanded"],
] as const) {
  const [flag] = Object.keys(flags);
  // Covers [spec: ban; spec: send_ban; spec: disband; spec: POST /message/send 403]
  // Covers [decisions: Group rules on send]
  t.test(
    `a group with ${flag} 1 refuses its members' sends over HTTP and on the socket with the same code`,
    async (t) => {
      const alice = world.name("alice");
      const channel = await world.newGroup([alice], flags);
      t.equal(await post(alice, channel), `403 ${code}`);
      const client = await world.join(t, alice);
      t.equal(await codeOf(client.send(channel, "hello")), code);
      const { messages } = await historyOf(world, channel);
      t.same(messages, [], "no message is stored");
    },
  );
}

// Covers [decisions: Group rules on send; decisions: Send to a group that was never created]
t.test(
  "a send to a group that was never created, or by a user who is not a subscriber, is refused, and the reply to a backend names the reason",
  async (t) => {
    const mallory = world.name("mallory");
    const client = await world.join(t, mallory);
    const none = group(world.name("none"));
    for (const channel of [await world.newGroup(["alice"]), none]) {
      const expected = channel === none ? "channel_not_found" : "not_subscriber";
      t.equal(await post(mallory, channel), `403 ${expected}`);
      const event = { client_msg_no: world.name("event"), from_uid: mallory, ...wire(channel) };
      for (const type of ["___TextMessageStart", "___ToolCallStart", "typing"]) {
        const { status, body } = await world.call("/event", { ...event, event: { type } });
        t.equal(`${status} ${body.code}`, `403 ${expected}`, type);
        if (channel === none) t.ok(body.error.includes(none.id), "the error names the group");
      }
      const code = await codeOf(client.send(channel, "hello"));
      t.equal(code, "not_subscriber");
    }
  },
);

// Covers [spec: temp_subscriber]
t.test("a temporary subscriber may send like a permanent one", async (t) => {
  const guest = world.name("guest");
  const channel = await world.newGroup(["alice"]);
  await world.ok("/channel/subscriber_add", {
    ...wire(channel),
    subscribers: [guest],
    temp_subscriber: 1,
  });
  t.equal(await post(guest, channel), "ok");
});

// Covers [decisions: Group rules on send; decisions: System uid]
t.test("the system uid may send to every group that is not disbanded", async (t) => {
  const bob = world.name("bob");
  const muted = await world.newGroup([bob], { ban: 1, send_ban: 1 });
  const client = await world.join(t, bob);
  t.equal(await post(SYSTEM_UID, muted), "ok");
  t.same(await untilReceived(client, 1), ["hello"]);
  t.equal(client.messages[0]?.fromUid, SYSTEM_UID);
  const disbanded = await world.newGroup([bob], { disband: 1 });
  t.equal(await post(SYSTEM_UID, disbanded), "403 channel_disbanded");
});

// Covers [decisions: Personal channel record]
t.test("two users without a channel record may send to each other", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  t.equal(await post(alice, person(bob)), "ok");
  t.equal(await post(bob, person(alice)), "ok");
});

// Covers [spec: ban; decisions: Personal channel record]
t.test(
  "only the system uid and system accounts may send to the owner of a personal channel with ban 1, but the owner may still send",
  async (t) => {
    const [uid, alice] = [await createOwner({ ban: 1 }), world.name("alice")];
    t.equal(await post(alice, person(uid)), "403 channel_banned");
    t.equal(await post(uid, person(alice)), "ok");
    t.equal(await post(SYSTEM_UID, person(uid)), "ok");
  },
);

// Covers [spec: send_ban; decisions: Personal channel record]
t.test("the owner of a personal channel with send_ban 1 may receive but not send", async (t) => {
  const [uid, alice] = [await createOwner({ send_ban: 1 }), world.name("alice")];
  t.equal(await post(uid, person(alice)), "403 send_banned");
  t.equal(await post(alice, person(uid)), "ok");
  const client = await world.join(t, uid);
  t.equal(await codeOf(client.send(person(alice), "x")), "send_banned");
});

// Covers [spec: allow_stranger; decisions: Personal channel record]
t.test("strangers are refused if the receiver has contacts and allow_stranger is 0", async (t) => {
  const [friend, stranger] = [world.name("friend"), world.name("stranger")];
  const sendBoth = async (rules: object) => {
    const channel = person(await createOwner(rules));
    return [await post(friend, channel), await post(stranger, channel)];
  };
  const subscribers = [friend];
  t.same(await sendBoth({ subscribers }), ["ok", "403 stranger_refused"]);
  t.same(await sendBoth({ subscribers, allow_stranger: 1 }), ["ok", "ok"]);
  t.same(
    await sendBoth({ allow_stranger: 0 }),
    ["ok", "ok"],
    "strangers are accepted if the receiver has no contacts",
  );
});

// Covers [decisions: Personal channel record]
t.test(
  "a user with contacts may also send to a user who is not a contact and to the user's own uid",
  async (t) => {
    const uid = await createOwner({ subscribers: ["friend"] });
    t.equal(await post(uid, person(world.name("other"))), "ok");
    t.equal(await post(uid, person(uid)), "ok");
  },
);

// Covers [spec: disband]
t.test(
  "a personal channel with disband 1 refuses messages in both directions, even from the system uid",
  async (t) => {
    const [uid, alice] = [await createOwner({ disband: 1 }), world.name("alice")];
    t.equal(await post(alice, person(uid)), "403 channel_disbanded");
    t.equal(await post(uid, person(alice)), "403 channel_disbanded");
    t.equal(await post(SYSTEM_UID, person(uid)), "403 channel_disbanded");
  },
);

// Covers [feature: channel/info]
t.test(
  "a change to a channel's rules applies to the next message that a live session sends",
  async (t) => {
    const alice = world.name("alice");
    const channel = await world.newGroup([alice]);
    const client = await world.join(t, alice);
    await client.send(channel, "before");
    await world.ok("/channel/info", { ...wire(channel), ban: 1 });
    t.equal(await codeOf(client.send(channel, "after")), "channel_banned");
  },
);

/**
 * Sends a message, a command and an event over HTTP and a message on the socket. Returns the
 * outcome of each send.
 */
async function sendInEveryWay(
  t: Test,
  from: string,
  channel: ChannelRef,
  target: World = world,
): Promise<readonly string[]> {
  const client = await target.join(t, from);
  const body = { from_uid: from, ...wire(channel) };
  const outcome = async (path: string, fields: object) => {
    const response = await target.call(path, { ...body, ...fields });
    return response.status === 200 ? "ok" : response.body.code;
  };
  const payload = textPayload("hello");
  return [
    await outcome("/message/send", { payload }),
    await outcome("/message/send", { payload, header: { sync_once: 1 } }),
    await outcome("/event", {
      client_msg_no: target.name("event"),
      event: { type: "status", data: "" },
    }),
    await codeOf(client.send(channel, "hello")),
  ];
}

const EVERY = (outcome: string) => [outcome, outcome, outcome, outcome];

t.test(
  "a member on the denylist receives but cannot send a message, command or event until removed from the list",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob], { ban: 0 });
    const reader = await world.join(t, bob);
    const list = { ...wire(channel), uids: [bob] };
    await world.ok("/channel/blacklist_add", list);
    t.same(await sendInEveryWay(t, bob, channel), EVERY("denylisted"));
    const { status } = await world.send(bob, channel, "hello");
    t.equal(status, 403);
    t.equal(await post(alice, channel), "ok");
    t.same(await untilReceived(reader, 1), ["hello"]);
    await world.ok("/channel/blacklist_remove", list);
    t.same(await sendInEveryWay(t, bob, channel), EVERY("ok"));
    await world.ok("/channel/blacklist_set", list);
    t.equal(await post(bob, channel), "403 denylisted");
    await world.ok("/channel/blacklist_remove_all", wire(channel));
    t.equal(await post(bob, channel), "ok");
  },
);

t.test(
  "only members on a group's allowlist, the system uid and system accounts may send, unless the list is empty",
  async (t) => {
    const names = ["admin", "bob", "outsider"].map((name) => world.name(name));
    const [admin = "", bob = "", outsider = ""] = names;
    const channel = await world.newGroup([admin, bob]);
    const list = { ...wire(channel), uids: [admin, outsider] };
    await world.ok("/channel/whitelist_set", list);
    t.same(await sendInEveryWay(t, bob, channel), EVERY("not_allowlisted"));
    t.same(await sendInEveryWay(t, admin, channel), EVERY("ok"));
    t.equal(await post(outsider, channel), "403 not_subscriber");
    t.equal(await post(SYSTEM_UID, channel), "ok");
    await world.ok("/channel/whitelist_add", { ...list, uids: [bob] });
    t.equal(await post(bob, channel), "ok");
    await world.ok("/channel/whitelist_remove", { ...list, uids: [bob] });
    t.equal(await post(bob, channel), "403 not_allowlisted");
    await world.ok("/channel/whitelist_remove_all", wire(channel));
    t.equal(await post(bob, channel), "ok");
  },
);

t.test(
  "a user's denylist applies even without a channel record, and the user's allowlist has no effect unless messages.friendsOnly is set",
  async (t) => {
    const names = ["owner", "troll", "friend"].map((name) => world.name(name));
    const [owner = "", troll = "", friend = ""] = names;
    const own = wire(person(owner));
    await world.ok("/channel/blacklist_add", { ...own, uids: [troll] });
    await world.ok("/channel/whitelist_add", { ...own, uids: [friend] });
    t.same(await sendInEveryWay(t, troll, person(owner)), EVERY("denylisted"));
    t.equal(await post(friend, person(owner)), "ok");
    t.equal(await post(world.name("other"), person(owner)), "ok");
    t.equal(await post(owner, person(troll)), "ok", "the owner may send to the denylisted user");
    t.equal(await post(SYSTEM_UID, person(owner)), "ok");
    await world.ok("/channel", own); // the record is created after the lists
    t.equal(await post(troll, person(owner)), "403 denylisted");
  },
);

t.test(
  "a change to the denylist or allowlist of an unknown or disbanded group is refused",
  async (t) => {
    const disbandedGroup = await world.newGroup([], { disband: 1 });
    for (const call of ["blacklist_add", "whitelist_set"]) {
      const body = { ...wire(group(world.name("none"))), uids: ["a"] };
      const path = `/channel/${call}`;
      t.equal(await world.refusal(path, body), "404 channel_not_found");
      const disbanded = { ...wire(disbandedGroup), uids: ["a"] };
      t.equal(await world.refusal(path, disbanded), "403 channel_disbanded");
    }
  },
);

t.test(
  "if messages.friendsOnly is set, a user receives personal messages only from users on the user's allowlist, the user's own uid, system accounts and the system uid",
  async (t) => {
    const target = await startWorld(t, { JINDOU_MESSAGES_FRIENDS_ONLY: "true" });
    const own = wire(person("owner"));
    t.same(await sendInEveryWay(t, "ann", person("owner"), target), EVERY("not_allowlisted"));
    await target.ok("/channel/whitelist_add", { ...own, uids: ["ann"] });
    t.same(await sendInEveryWay(t, "ann", person("owner"), target), EVERY("ok"));
    const send = async (from: string, receiver: string) =>
      (await target.send(from, person(receiver), "hello")).body.code ?? "ok";
    t.equal(await send("owner", "owner"), "ok");
    t.equal(await send(SYSTEM_UID, "owner"), "ok");
    t.equal(await send("owner", "ann"), "not_allowlisted", "ann has no allowlist");
    await target.ok("/channel/blacklist_add", { ...own, uids: ["ann"] });
    t.equal(await send("ann", "owner"), "denylisted");
  },
);

t.test(
  "with messages.backendMayImpersonate, or in the wukongim dialect, a backend may send to a group on behalf of a user who is not a member, but the user may not",
  async (t) => {
    for (const settings of [
      { JINDOU_MESSAGES_BACKEND_MAY_IMPERSONATE: "true" },
      { JINDOU_API_DIALECT: "wukongim" },
    ]) {
      const target = await startWorld(t, settings);
      await target.ok("/channel", { ...wire(group("team")), subscribers: ["ann"] });
      const send = async (from: string, to: string, fields: object = {}) => {
        const { status } = await target.send(from, group(to), "hello", fields);
        return status === 200;
      };
      const post = async (type: string) => {
        const event = { type, data: "{}" };
        const body = { ...wire(group("team")), from_uid: "eve", client_msg_no: "s", event };
        return (await target.call("/event", body)).status;
      };
      t.ok(await send("eve", "team"), "a message");
      t.ok(await send("eve", "team", { header: { sync_once: 1 } }), "a command");
      t.equal(await post("___TextMessageStart"), 200, "a stream");
      t.notOk(await send("eve", "none"), "a group that does not exist");
      await target.ok("/channel/blacklist_add", { ...wire(group("team")), uids: ["mallory"] });
      t.notOk(await send("mallory", "team"), "the denylist applies");
      const client = await target.join(t, "eve");
      await t.rejects(client.send(group("team"), "hello"), { code: "not_subscriber" });
    }
  },
);

async function historyOf(world: World, channel: ChannelRef) {
  const query = new URLSearchParams({
    channel_id: channel.id,
    channel_type: String(channel.type),
  });
  return (await world.call(`/channel/messages?${query}`)).body;
}
