// Who may send where, over HTTP and on the socket alike: the rules of groups, of personal channels,
// and what the system may.

import type { Test } from "tap";
import { type ChannelRef, SYSTEM_UID } from "../../src/broker/model.ts";
import { textPayload } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { codeOf, group, person, receives, startWorld, type World, wire } from "./world.ts";

const world = await startWorld(t);

/** How a send ends over HTTP; "ok" or `<status> <code>`. */
async function post(from: string, channel: ChannelRef): Promise<string> {
  const { status, body } = await world.send(from, channel, "hello");
  return status === 200 ? "ok" : `${status} ${body.code}`;
}

/** A user whose personal record has these rules. */
async function owner(rules: object): Promise<string> {
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
  t.test(
    `a group with ${flag} 1 refuses its members with 403, and on the socket with the same code [spec: ban; spec: send_ban; spec: disband; spec: POST /message/send 403; decisions: Group rules on send]`,
    async (t) => {
      const alice = world.name("alice");
      const channel = await world.newGroup([alice], flags);
      t.equal(await post(alice, channel), `403 ${code}`);
      const client = await world.join(t, alice);
      t.equal(await codeOf(client.send(channel, "hello")), code);
      const { messages } = await historyOf(world, channel);
      t.same(messages, [], "nothing is stored");
    },
  );
}

t.test(
  "a group refuses who is no subscriber, as does one that does not exist [decisions: Group rules on send]",
  async (t) => {
    const mallory = world.name("mallory");
    const client = await world.join(t, mallory);
    const none = group(world.name("none"));
    for (const channel of [await world.newGroup(["alice"]), none]) {
      t.equal(await post(mallory, channel), "403 not_subscriber");
      const code = await codeOf(client.send(channel, "hello"));
      t.equal(code, "not_subscriber");
    }
  },
);

t.test("a temporary subscriber may send as a permanent one [spec: temp_subscriber]", async (t) => {
  const guest = world.name("guest");
  const channel = await world.newGroup(["alice"]);
  await world.ok("/channel/subscriber_add", {
    ...wire(channel),
    subscribers: [guest],
    temp_subscriber: 1,
  });
  t.equal(await post(guest, channel), "ok");
});

t.test(
  "the system uid is exempt from all group rules but disband, and members receive it [decisions: Group rules on send; decisions: System uid]",
  async (t) => {
    const bob = world.name("bob");
    const muted = await world.newGroup([bob], { ban: 1, send_ban: 1 });
    const client = await world.join(t, bob);
    t.equal(await post(SYSTEM_UID, muted), "ok");
    t.same(await receives(client, 1), ["hello"]);
    t.equal(client.messages[0]?.fromUid, SYSTEM_UID);
    const gone = await world.newGroup([bob], { disband: 1 });
    t.equal(await post(SYSTEM_UID, gone), "403 channel_disbanded");
  },
);

t.test(
  "two users talk without any record, online or registered or not [decisions: Personal channel record]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    t.equal(await post(alice, person(bob)), "ok");
    t.equal(await post(bob, person(alice)), "ok");
  },
);

t.test(
  "ban 1 on a personal channel: nobody may send to the owner, who may send [spec: ban; decisions: Personal channel record]",
  async (t) => {
    const [uid, alice] = [await owner({ ban: 1 }), world.name("alice")];
    t.equal(await post(alice, person(uid)), "403 channel_banned");
    t.equal(await post(uid, person(alice)), "ok");
    t.equal(await post(SYSTEM_UID, person(uid)), "ok");
  },
);

t.test(
  "send_ban 1 on a personal channel: the owner may receive but not send [spec: send_ban; decisions: Personal channel record]",
  async (t) => {
    const [uid, alice] = [await owner({ send_ban: 1 }), world.name("alice")];
    t.equal(await post(uid, person(alice)), "403 send_banned");
    t.equal(await post(alice, person(uid)), "ok");
    const client = await world.join(t, uid);
    t.equal(await codeOf(client.send(person(alice), "x")), "send_banned");
  },
);

t.test(
  "allow_stranger: strangers are refused when there are contacts and it is 0 [spec: allow_stranger; decisions: Personal channel record]",
  async (t) => {
    const [friend, stranger] = [world.name("friend"), world.name("stranger")];
    const both = async (rules: object) => {
      const channel = person(await owner(rules));
      return [await post(friend, channel), await post(stranger, channel)];
    };
    const subscribers = [friend];
    t.same(await both({ subscribers }), ["ok", "403 stranger_refused"]);
    t.same(await both({ subscribers, allow_stranger: 1 }), ["ok", "ok"]);
    t.same(await both({ allow_stranger: 0 }), ["ok", "ok"], "no contacts");
  },
);

t.test(
  "the owner of a list of contacts may send to anybody, and to itself [decisions: Personal channel record]",
  async (t) => {
    const uid = await owner({ subscribers: ["friend"] });
    t.equal(await post(uid, person(world.name("other"))), "ok");
    t.equal(await post(uid, person(uid)), "ok");
  },
);

t.test(
  "disband 1 on a personal channel: it carries no more, in no direction and not for the system [spec: disband]",
  async (t) => {
    const [uid, alice] = [await owner({ disband: 1 }), world.name("alice")];
    t.equal(await post(alice, person(uid)), "403 channel_disbanded");
    t.equal(await post(uid, person(alice)), "403 channel_disbanded");
    t.equal(await post(SYSTEM_UID, person(uid)), "403 channel_disbanded");
  },
);

t.test(
  "a change of rules holds for the next send of a live session [issue: channel/info]",
  async (t) => {
    const alice = world.name("alice");
    const channel = await world.newGroup([alice]);
    const client = await world.join(t, alice);
    await client.send(channel, "before");
    await world.ok("/channel/info", { ...wire(channel), ban: 1 });
    t.equal(await codeOf(client.send(channel, "after")), "channel_banned");
  },
);

/** How a send, a command, an event and a send on the socket end. */
async function everyWay(
  t: Test,
  from: string,
  channel: ChannelRef,
  on: World = world,
): Promise<readonly string[]> {
  const client = await on.join(t, from);
  const body = { from_uid: from, ...wire(channel) };
  const outcome = async (path: string, more: object) => {
    const answer = await on.call(path, { ...body, ...more });
    return answer.status === 200 ? "ok" : answer.body.code;
  };
  const payload = textPayload("hello");
  return [
    await outcome("/message/send", { payload }),
    await outcome("/message/send", { payload, header: { sync_once: 1 } }),
    await outcome("/event", {
      client_msg_no: on.name("event"),
      event: { type: "status", data: "" },
    }),
    await codeOf(client.send(channel, "hello")),
  ];
}

const EVERY = (outcome: string) => [outcome, outcome, outcome, outcome];

t.test(
  "a member on the denylist may not send, however it tries, but receives; off the list it may",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob], { ban: 0 });
    const reader = await world.join(t, bob);
    const list = { ...wire(channel), uids: [bob] };
    await world.ok("/channel/blacklist_add", list);
    t.same(await everyWay(t, bob, channel), EVERY("denylisted"));
    const { status } = await world.send(bob, channel, "hello");
    t.equal(status, 403);
    t.equal(await post(alice, channel), "ok");
    t.same(await receives(reader, 1), ["hello"]);
    await world.ok("/channel/blacklist_remove", list);
    t.same(await everyWay(t, bob, channel), EVERY("ok"));
    await world.ok("/channel/blacklist_set", list);
    t.equal(await post(bob, channel), "403 denylisted");
    await world.ok("/channel/blacklist_remove_all", wire(channel));
    t.equal(await post(bob, channel), "ok");
  },
);

t.test(
  "with an allowlist only members on it may send, and the system; an empty one allows all",
  async (t) => {
    const names = ["admin", "bob", "outsider"].map((word) => world.name(word));
    const [admin = "", bob = "", outsider = ""] = names;
    const channel = await world.newGroup([admin, bob]);
    const list = { ...wire(channel), uids: [admin, outsider] };
    await world.ok("/channel/whitelist_set", list);
    t.same(await everyWay(t, bob, channel), EVERY("not_allowlisted"));
    t.same(await everyWay(t, admin, channel), EVERY("ok"));
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
  "a user's denylist refuses single senders, without a record of the user; its allowlist alone refuses nobody",
  async (t) => {
    const names = ["owner", "troll", "friend"].map((word) => world.name(word));
    const [owner = "", troll = "", friend = ""] = names;
    const own = wire(person(owner));
    await world.ok("/channel/blacklist_add", { ...own, uids: [troll] });
    await world.ok("/channel/whitelist_add", { ...own, uids: [friend] });
    t.same(await everyWay(t, troll, person(owner)), EVERY("denylisted"));
    t.equal(await post(friend, person(owner)), "ok");
    t.equal(await post(world.name("other"), person(owner)), "ok");
    t.equal(await post(owner, person(troll)), "ok", "the other direction");
    t.equal(await post(SYSTEM_UID, person(owner)), "ok");
    await world.ok("/channel", own); // the record comes later
    t.equal(await post(troll, person(owner)), "403 denylisted");
  },
);

t.test("lists need a group that is there and not disbanded", async (t) => {
  const gone = await world.newGroup([], { disband: 1 });
  for (const call of ["blacklist_add", "whitelist_set"]) {
    const body = { ...wire(group(world.name("none"))), uids: ["a"] };
    const path = `/channel/${call}`;
    t.equal(await world.refusal(path, body), "404 channel_not_found");
    const disbanded = { ...wire(gone), uids: ["a"] };
    t.equal(await world.refusal(path, disbanded), "403 channel_disbanded");
  }
});

t.test(
  "messages.friendsOnly: a user receives from its allowlist, itself and the system only",
  async (t) => {
    const on = await startWorld(t, { JINDOU_MESSAGES_FRIENDS_ONLY: "true" });
    const own = wire(person("owner"));
    t.same(await everyWay(t, "ann", person("owner"), on), EVERY("not_allowlisted"));
    await on.ok("/channel/whitelist_add", { ...own, uids: ["ann"] });
    t.same(await everyWay(t, "ann", person("owner"), on), EVERY("ok"));
    const send = async (from: string, to: string) =>
      (await on.send(from, person(to), "hello")).body.code ?? "ok";
    t.equal(await send("owner", "owner"), "ok");
    t.equal(await send(SYSTEM_UID, "owner"), "ok");
    t.equal(await send("owner", "ann"), "not_allowlisted", "ann has no list");
    await on.ok("/channel/blacklist_add", { ...own, uids: ["ann"] });
    t.equal(await send("ann", "owner"), "denylisted");
  },
);

async function historyOf(world: World, channel: ChannelRef) {
  const query = new URLSearchParams({
    channel_id: channel.id,
    channel_type: String(channel.type),
  });
  return (await world.call(`/channel/messages?${query}`)).body;
}
