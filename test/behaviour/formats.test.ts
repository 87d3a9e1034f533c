// One scenario over every wire format, always with a native client at the other end: members of a
// channel may speak all of them and understand each other.

import { DRIVER } from "../support/driver.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { FORMATS } from "./formats/formats.ts";
import { joinFormat, refusedAs } from "./formats/join.ts";
import { eventually, person, receives, seqs, startWorld, wire } from "./world.ts";

const AUTH_FAILED = 2;
const NOT_SUBSCRIBER = 3;
const IDLE_S = 8;

const world = await startWorld(t);

const START = "___TextMessageStart";
const CONTENT = "___TextMessageContent";
const END = "___TextMessageEnd";

for (const format of FORMATS) {
  const { name } = format;

  t.test(`${name}: a wrong token is refused with a reason`, async (t) => {
    const uid = world.name("ann");
    await world.register(uid);
    const refusal = await refusedAs(joinFormat(t, world, format, uid, { token: "wrong" }));
    t.equal(refusal.reason, AUTH_FAILED, "authentication failed");
    t.equal(refusal.closed, 4201, "closed: do not reconnect");
    t.match(await world.status(uid), { online: 0 });
  });

  t.test(`${name}: messages go both ways in a conversation`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const client = await joinFormat(t, world, format, ann);
    const peer = await world.join(t, ben);
    await world.following();
    t.equal(await client.send(person(ben), "one"), 1);
    t.same(await receives(peer, 1), ["one"]);
    matchObject(t, peer.pushes[0], { channel: person(ann) });
    await peer.send(person(ann), "two ü 🐂");
    t.same(await client.nextMessage(), {
      channel: person(ben),
      ...{ fromUid: ben, messageSeq: 2, text: "two ü 🐂" },
    });
    t.match(await world.status(ann), { online: 1 });
  });

  t.test(`${name}: messages go both ways in a group`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const channel = await world.newGroup([ann, ben]);
    const strange = await world.newGroup([ben]);
    const client = await joinFormat(t, world, format, ann);
    const peer = await world.join(t, ben);
    await world.following();
    t.equal(await client.send(channel, "one", { clientMsgNo: "c-1" }), 1);
    t.same(await receives(peer, 1), ["one"]);
    t.equal(
      await client.send(channel, "one", { clientMsgNo: "c-1" }),
      1,
      "a repeated send has the first one's answer",
    );
    await peer.send(channel, "two");
    t.same(await client.nextMessage(), {
      channel,
      ...{ fromUid: ben, messageSeq: 2, text: "two" },
    });
    const refusal = await refusedAs(client.send(strange, "no"));
    t.equal(refusal.reason, NOT_SUBSCRIBER, "no member");
    t.equal(await client.send(channel, "three"), 3, "and it goes on");
  });

  t.test(`${name}: what a backend sends is received`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const channel = await world.newGroup([ann, ben]);
    const client = await joinFormat(t, world, format, ann);
    const event = (type: string, data: string, more: object = {}) =>
      world.ok("/event", {
        ...{ ...wire(channel), from_uid: ben, client_msg_no: "s-1" },
        event: { type, data, ...more },
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

  t.test(`${name}: a command comes until it is acknowledged`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const syncOnce = { header: { sync_once: 1 } };
    await world.register(ann);
    await world.send(ben, person(ann), "early", syncOnce);
    const client = await joinFormat(t, world, format, ann);
    t.equal(await client.nextCommand(), "early");
    await world.send(ben, person(ann), "late", syncOnce);
    t.equal(await client.nextCommand(), "late");
    await eventually(async () => {
      const other = await world.connect(t, ann, { flag: 0 });
      await other.ping();
      const waiting = other.commands.length;
      await other.close();
      return waiting === 0;
    });
  });

  t.test(`${name}: a kicked client is closed and nothing is taken`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const main = { level: 1 } as const;
    const old = await joinFormat(t, world, format, ann, {
      ...main,
      deviceId: "old",
    });
    await old.send(person(ben), "before");
    const newer = await joinFormat(t, world, format, ann, {
      ...main,
      deviceId: "new",
    });
    t.match(await old.closed, { code: 4200 }, "the socket is closed");
    t.ok(old.isKicked(), "and it was said before that it is a kick");
    old.sendBlindly(person(ben), "after");
    await newer.ping();
    const reader = await world.join(t, ben);
    const { messages } = await reader.history(person(ann));
    t.same(seqs(messages), [1], "only what was sent before");
  });

  t.test(`${name}: a client that was cut off connects again`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const device = { deviceId: "phone" };
    const first = await joinFormat(t, world, format, ann, device);
    const peer = await world.join(t, ben);
    first.kill();
    await world.offline(ann);
    const again = await joinFormat(t, world, format, ann, device);
    await peer.send(person(ann), "there again?");
    t.match(await again.nextMessage(), { text: "there again?" });
    t.equal(await again.send(person(ben), "yes"), 2);
    t.same(await receives(peer, 1), ["yes"]);
  });
}

if (DRIVER === "embedded")
  t.test("with pings, a connection outlives the idle time-out in every format", async (t) => {
    const short = await startWorld(t, {
      JINDOU_CLIENT_IDLE_TIMEOUT_S: `${IDLE_S}`,
    });
    const clients = await Promise.all(
      FORMATS.map((format) => joinFormat(t, short, format, short.name("ann"))),
    );
    const untilMs = performance.now() + (IDLE_S + 1) * 1000;
    await eventually(async () => {
      await Promise.all(clients.map((client) => client.ping()));
      return performance.now() > untilMs;
    }, 1000);
    t.pass("each ping was answered");
  });
