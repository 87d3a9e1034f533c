// Events that clients send (EMIT): who receives them, who may send them, and their limits.

import type { Test } from "tap";
import { matchObject } from "../support/match-object.ts";
import type { NativeClient } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { TCP_LISTENER } from "../support/wkproto-client.ts";
import { FORMATS } from "./formats/formats.ts";
import { joinFormat } from "./formats/join.ts";
import { codeOf, eventually, group, person, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t, { ...TCP_LISTENER, JINDOU_CLIENT_MAX_EVENTS_PER_SECOND: "0" });

/** Returns the types of the events that the client has received. */
async function typesOf(client: NativeClient): Promise<readonly string[]> {
  await client.ping();
  return client.events.map(({ type }) => type);
}

async function createGroup(t: Test, flags: object = {}) {
  const [ann, ben] = [world.name("ann"), world.name("ben")];
  const channel = await world.newGroup([ann, ben], flags);
  const sender = await world.join(t, ann);
  const member = await world.join(t, ben);
  await world.untilSubscribed();
  return { ann, ben, channel, sender, member };
}

// Covers [feature: Client-made events]
t.test(
  "a client event reaches the members who are online, except the connection that sent it",
  async (t) => {
    const { ann, channel, sender, member } = await createGroup(t);
    const device = await world.connect(t, ann);
    const stranger = await world.join(t, world.name("eve"));
    await world.untilSubscribed();
    await sender.emit(channel, "typing", '{"by":"käthe"}');
    await member.waitFor(() => member.events.length > 0, "the event");
    await device.waitFor(() => device.events.length > 0, "the event on the other device");
    matchObject(t, member.pushes, [
      {
        ...{ kind: "event", channel },
        event: {
          ...{ fromUid: ann, clientMsgNo: "", type: "typing", data: '{"by":"käthe"}' },
          stream: undefined,
        },
      },
    ]);
    t.same(await typesOf(device), ["typing"]);
    t.same(await typesOf(sender), [], "the connection that sent the event does not get it");
    t.same(await typesOf(stranger), []);
  },
);

t.test(
  "a client event is not stored: it has no seq, is not in the history and is not sent to a client that resumes",
  async (t) => {
    const { ben, channel, sender, member } = await createGroup(t);
    await sender.send(channel, "before");
    const { sessionId } = member.connack;
    member.kill();
    await world.offline(ben);
    await sender.emit(channel, "typing");
    const returned = await world.connect(t, ben, {
      ...{ session: sessionId, resume: [{ channel, lastSeq: 1 }] },
    });
    await world.untilSubscribed();
    t.same(await typesOf(returned), []);
    const { headSeq, messages } = await returned.history(channel);
    t.same([headSeq, messages.length], [1, 1]);
    await sender.send(channel, "after");
    await returned.waitFor(() => returned.messages.length > 0, "the next message");
    t.same(
      returned.messages.map(({ messageSeq }) => messageSeq),
      [2],
    );
  },
);

t.test(
  "an event to a user reaches the receiver's devices and the sender's other devices, with the other user's uid as the channel id",
  async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const sender = await world.join(t, ann);
    const device = await world.connect(t, ann);
    const receiver = await world.join(t, ben);
    await world.untilSubscribed();
    await sender.emit(person(ben), "recording", "1");
    await receiver.waitFor(() => receiver.events.length > 0, "the event");
    await device.waitFor(() => device.events.length > 0, "the event on the other device");
    matchObject(t, receiver.pushes, [{ channel: person(ann), event: { type: "recording" } }]);
    matchObject(t, device.pushes, [{ channel: person(ben), event: { type: "recording" } }]);
    t.same(await typesOf(sender), []);
  },
);

for (const format of FORMATS)
  t.test(`client events are received over ${format.name}`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const channel = await world.newGroup([ann, ben]);
    const receiver = await joinFormat(t, world, format, ben);
    const sender = await world.join(t, ann);
    await world.untilSubscribed();
    await sender.emit(channel, "typing", "to the group");
    await sender.emit(person(ben), "typing", "to the user");
    t.match(await receiver.nextEvent(), { type: "typing", data: "to the group" });
    t.match(await receiver.nextEvent(), { type: "typing", data: "to the user" });
  });

t.test("events that one connection sends to one channel keep their order", async (t) => {
  const { channel, sender, member } = await createGroup(t);
  const texts = range(1, 50).map((number) => `${number}`);
  for (const text of texts) sender.emitUnanswered(channel, "cursor", text);
  await member.waitFor(() => member.events.length >= texts.length, "all events");
  t.same(
    member.events.map(({ data }) => data),
    texts,
  );
  await sender.ping();
  t.same(sender.errors, [], "an event without a ref has no reply");
});

// Covers [decisions: Group rules on send]
t.test("a client event is refused under the same rules as a message", async (t) => {
  const [ann, ben] = [world.name("ann"), world.name("ben")];
  const sender = await world.join(t, ann);
  const receiver = await world.join(t, ben);
  const emitTo = (channel: { readonly id: string; readonly type: 1 | 2 }) =>
    codeOf(sender.emit(channel, "typing"));
  const refused = async (flags: object) => emitTo(await world.newGroup([ann, ben], flags));
  t.equal(await refused({ ban: 1 }), "channel_banned");
  t.equal(await refused({ send_ban: 1 }), "send_banned");
  t.equal(await refused({ disband: 1 }), "channel_disbanded");
  t.equal(await emitTo(await world.newGroup([ben])), "not_subscriber");
  t.equal(await emitTo(group(world.name("none"))), "not_subscriber");
  const denied = await world.newGroup([ann, ben]);
  await world.ok("/channel/blacklist_add", { ...wire(denied), uids: [ann] });
  t.equal(await emitTo(denied), "denylisted");
  await world.ok("/channel", { ...wire(person(ben)), subscribers: ["eve"] });
  t.equal(await emitTo(person(ben)), "stranger_refused");
  await world.ok("/channel", { ...wire(person(ann)), send_ban: 1 });
  t.equal(await emitTo(person(world.name("carl"))), "send_banned");
  const open = await world.newGroup([ann, ben]);
  await world.untilSubscribed();
  t.equal(await emitTo(open), "ok");
  await world.ok("/channel/subscriber_remove", { ...wire(open), subscribers: [ann] });
  t.equal(await emitTo(open), "not_subscriber", "a removed member may send no events");
  await receiver.waitFor(() => receiver.events.length > 0, "the event that was allowed");
  t.same(await typesOf(receiver), ["typing"], "only the event that was allowed is received");
});

t.test(
  "client_events of a channel allows or refuses client events, and is 0 by default in a large group",
  async (t) => {
    const { ann, ben, channel, sender, member } = await createGroup(t, { client_events: 0 });
    const emitTo = (target: typeof channel) => codeOf(sender.emit(target, "typing"));
    const shown = async (target: typeof channel) => {
      const query = `channel_id=${target.id}&channel_type=${target.type}`;
      return (await world.call(`/channel/state?${query}`)).body.client_events;
    };
    t.equal(await emitTo(channel), "client_events_off");
    t.equal(await shown(channel), 0);
    await world.ok("/channel/info", { ...wire(channel), client_events: 1 });
    t.equal(await emitTo(channel), "ok");
    t.equal(await shown(channel), 1);
    await world.ok("/channel/info", { ...wire(channel), ban: 0 });
    t.equal(await shown(channel), 1, "a call without client_events does not change the flag");
    const large = await world.newGroup([ann, ben], { large: 1 });
    t.equal(await emitTo(large), "client_events_off");
    t.equal(await emitTo(await world.newGroup([ann], { large: 1, client_events: 1 })), "ok");
    t.equal(await sender.send(large, "hi").then(({ messageSeq }) => messageSeq), 1);
    await world.ok("/channel", { ...wire(person(ben)), client_events: 0 });
    t.equal(await emitTo(person(ben)), "client_events_off");
    t.equal(await codeOf(member.emit(person(ann), "typing")), "ok", "the owner may still send");
    t.equal(
      await world.refusal("/channel", { ...wire(group(world.name("g"))), client_events: 2 }),
      "400 bad_request",
    );
    await member.waitFor(() => member.events.length > 0, "the event that was allowed");
    t.same(await typesOf(member), ["typing"]);
    const fromBackend = await world.call("/event", {
      ...{ ...wire(large), from_uid: ann, client_msg_no: "c-1" },
      event: { type: "paid", data: "" },
    });
    t.equal(fromBackend.status, 200, "the flag does not affect events of backends");
  },
);

t.test("an event with an invalid type or more than 4,096 bytes of data is refused", async (t) => {
  const { channel, sender, member } = await createGroup(t);
  const emit = (type: string, data = "") => codeOf(sender.emit(channel, type, data));
  t.equal(await emit("x".repeat(64), "d".repeat(4096)), "ok");
  t.equal(await emit("é", "ü".repeat(2048)), "ok");
  t.equal(await emit(""), "event_type_empty");
  t.equal(await emit("x".repeat(65)), "bad_request");
  for (const type of ["___TextMessageStart", "___", "___typing", "auth.expiring"])
    t.equal(await emit(type), "bad_request", type);
  t.equal(await emit("typing", "d".repeat(4097)), "too_large");
  t.equal(await emit("typing", "ü".repeat(2049)), "too_large");
  t.equal(await codeOf(sender.emit(group("a@b"), "typing")), "bad_id");
  await member.waitFor(() => member.events.length > 1, "the events that were accepted");
  t.same(await typesOf(member), ["x".repeat(64), "é"]);
});

t.test(
  "events over client.maxEventsPerSecond are refused, and all connections of a user share this limit",
  async (t) => {
    const limited = await startWorld(t, {
      JINDOU_CLIENT_MAX_EVENTS_PER_SECOND: "5",
      // Each node limits events by itself. The next setting makes the driver start a single node.
      JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER: "2",
    });
    const [ann, ben] = [limited.name("ann"), limited.name("ben")];
    const channel = await limited.newGroup([ann, ben]);
    const senders = [await limited.join(t, ann), await limited.connect(t, ann)];
    const member = await limited.join(t, ben);
    await limited.untilSubscribed();
    const codes = await Promise.all(
      range(1, 60).map((number) =>
        codeOf(senders[number % 2]?.emit(channel, "cursor") ?? Promise.reject()),
      ),
    );
    const accepted = codes.filter((code) => code === "ok").length;
    t.ok(codes.includes("rate_limited"));
    t.equal(accepted + codes.filter((code) => code === "rate_limited").length, codes.length);
    const [refusal] = senders.flatMap(({ errors }) => errors);
    t.ok((refusal?.retryAfterMs ?? 0) > 0, "the refusal has the time to wait");
    await eventually(async () => (await typesOf(member)).length === accepted);
    const [sender] = senders;
    t.equal((await sender?.send(channel, "message"))?.messageSeq, 1, "messages are not limited");
  },
);
