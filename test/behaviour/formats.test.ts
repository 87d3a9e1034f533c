// One scenario over every wire format, always with a native client as the peer: members of a
// channel can use different formats.

import { DRIVER } from "../support/driver.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { TCP_LISTENER } from "../support/wkproto-client.ts";
import { closeCode } from "./formats/format.ts";
import { FORMATS } from "./formats/formats.ts";
import { joinFormat, refusalOf } from "./formats/join.ts";
import { eventually, person, seqs, startWorld, untilReceived, wire } from "./world.ts";

const AUTH_FAILED = 2;
const NOT_SUBSCRIBER = 3;
const IDLE_S = 8;

const world = await startWorld(t, TCP_LISTENER);

const START = "___TextMessageStart";
const CONTENT = "___TextMessageContent";
const END = "___TextMessageEnd";

for (const format of FORMATS) {
  const { name } = format;

  t.test(
    `a login with a wrong token is refused over ${name}, with failed authentication as the reason`,
    async (t) => {
      const uid = world.name("ann");
      await world.register(uid);
      const refusal = await refusalOf(joinFormat(t, world, format, uid, { token: "wrong" }));
      t.equal(refusal.reason, AUTH_FAILED, "the reason is a failed authentication");
      t.equal(refusal.closed, closeCode(format, 4201), "the close code forbids a reconnect");
      t.match(await world.status(uid), { online: 0 });
    },
  );

  t.test(`users can send to each other in a personal channel over ${name}`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const client = await joinFormat(t, world, format, ann);
    const peer = await world.join(t, ben);
    await world.untilSubscribed();
    t.equal(await client.send(person(ben), "first"), 1);
    t.same(await untilReceived(peer, 1), ["first"]);
    matchObject(t, peer.pushes[0], { channel: person(ann) });
    await peer.send(person(ann), "second ü 🐂");
    t.same(await client.nextMessage(), {
      channel: person(ben),
      ...{ fromUid: ben, messageSeq: 2, text: "second ü 🐂" },
    });
    t.match(await world.status(ann), { online: 1 });
  });

  t.test(`members can send to each other in a group over ${name}`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const channel = await world.newGroup([ann, ben]);
    const foreign = await world.newGroup([ben]);
    const client = await joinFormat(t, world, format, ann);
    const peer = await world.join(t, ben);
    await world.untilSubscribed();
    t.equal(await client.send(channel, "first", { clientMsgNo: "c-1" }), 1);
    t.same(await untilReceived(peer, 1), ["first"]);
    t.equal(
      await client.send(channel, "first", { clientMsgNo: "c-1" }),
      1,
      "a repeated send returns the first message",
    );
    await peer.send(channel, "second");
    t.same(await client.nextMessage(), {
      channel,
      ...{ fromUid: ben, messageSeq: 2, text: "second" },
    });
    const refusal = await refusalOf(client.send(foreign, "no"));
    t.equal(refusal.reason, NOT_SUBSCRIBER, "a user who is not a member is refused");
    t.equal(await client.send(channel, "third"), 3, "the session continues");
  });

  t.test(`messages, events and streams from a backend are received over ${name}`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const channel = await world.newGroup([ann, ben]);
    const client = await joinFormat(t, world, format, ann);
    const event = (type: string, data: string, fields: object = {}) =>
      world.ok("/event", {
        ...{ ...wire(channel), from_uid: ben, client_msg_no: "s-1" },
        event: { type, data, ...fields },
      });
    await world.send(ben, channel, "by HTTP");
    t.match(await client.nextMessage(), { fromUid: ben, text: "by HTTP" });
    await event("order.paid", '{"order":7}', { id: "e-1" });
    t.same(await client.nextEvent(), {
      ...{ id: "e-1", type: "order.paid", data: '{"order":7}' },
    });
    await event(START, "{}");
    t.match(await client.nextMessage(), { messageSeq: 2, text: "" });
    await event(CONTENT, "wör");
    await event(CONTENT, "ld");
    await event(END, "");
    for (const [type, data] of [
      [START, "{}"],
      [CONTENT, "wör"],
      [CONTENT, "ld"],
      [END, ""],
    ])
      t.same(await client.nextEvent(), { id: "s-1", type, data });
  });

  t.test(
    `a command to an offline or online user is pushed over ${name} until it is acknowledged`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const syncOnce = { header: { sync_once: 1 } };
      await world.register(ann);
      await world.send(ben, person(ann), "early", syncOnce);
      const client = await joinFormat(t, world, format, ann);
      t.equal(await client.nextCommand(), "early");
      await world.send(ben, person(ann), "late", syncOnce);
      t.equal(await client.nextCommand(), "late");
      await eventually(async () => {
        const device = await world.connect(t, ann, { flag: 0 });
        await device.ping();
        const unacknowledged = device.commands.length;
        await device.close();
        return unacknowledged === 0;
      });
    },
  );

  t.test(
    `the connection of a kicked client is closed, and later sends on it are ignored, over ${name}`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const main = { level: 1 } as const;
      const older = await joinFormat(t, world, format, ann, {
        ...main,
        deviceId: "old",
      });
      await older.send(person(ben), "before");
      const newer = await joinFormat(t, world, format, ann, {
        ...main,
        deviceId: "new",
      });
      t.match(await older.closed, { code: closeCode(format, 4200) }, "the socket is closed");
      t.ok(older.isKicked(), "the client gets the reason before the close");
      older.sendWithoutReply(person(ben), "after");
      await newer.ping();
      const reader = await world.join(t, ben);
      const { messages } = await reader.history(person(ann));
      t.same(seqs(messages), [1], "only the message sent before the kick is stored");
    },
  );

  t.test(`a client that uses ${name} can reconnect after its connection breaks`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const device = { deviceId: "phone" };
    const first = await joinFormat(t, world, format, ann, device);
    const peer = await world.join(t, ben);
    first.kill();
    await world.offline(ann);
    const reconnected = await joinFormat(t, world, format, ann, device);
    await peer.send(person(ann), "after the reconnect");
    t.match(await reconnected.nextMessage(), { text: "after the reconnect" });
    t.equal(await reconnected.send(person(ben), "yes"), 2);
    t.same(await untilReceived(peer, 1), ["yes"]);
  });
}

if (DRIVER === "embedded")
  t.test(
    "a connection that sends pings stays open beyond the idle time-out in every wire format",
    async (t) => {
      const short = await startWorld(t, {
        JINDOU_CLIENT_IDLE_TIMEOUT_S: `${IDLE_S}`,
        ...TCP_LISTENER,
      });
      const clients = await Promise.all(
        FORMATS.map((format) => joinFormat(t, short, format, short.name("ann"))),
      );
      const untilMs = performance.now() + (IDLE_S + 1) * 1000;
      await eventually(async () => {
        await Promise.all(clients.map((client) => client.ping()));
        return performance.now() > untilMs;
      }, 1000);
      t.pass("every ping is answered");
    },
  );
