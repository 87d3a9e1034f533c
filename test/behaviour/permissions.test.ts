// Who may send where, over HTTP and on the socket alike: the rules of groups, of personal channels,
// and what the system may.

import { type ChannelRef, SYSTEM_UID } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import {
  codeOf,
  group,
  person,
  receives,
  startWorld,
  type World,
  wire,
} from "./world.ts";

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

t.test(
  "a temporary subscriber may send as a permanent one [spec: temp_subscriber]",
  async (t) => {
    const guest = world.name("guest");
    const channel = await world.newGroup(["alice"]);
    await world.ok("/channel/subscriber_add", {
      ...wire(channel),
      subscribers: [guest],
      temp_subscriber: 1,
    });
    t.equal(await post(guest, channel), "ok");
  },
);

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

async function historyOf(world: World, channel: ChannelRef) {
  const query = new URLSearchParams({
    channel_id: channel.id,
    channel_type: String(channel.type),
  });
  return (await world.call(`/channel/messages?${query}`)).body;
}
