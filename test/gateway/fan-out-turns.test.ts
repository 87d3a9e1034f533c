// Deliveries that would block the event loop: the number of sessions that are sent a frame at once,
// and the order of the frames of each session. A client cannot see the turns of the event loop, so
// connections record them.

import { setImmediate } from "node:timers/promises";
import type { ChannelEvent, Message } from "../../src/broker/model.ts";
import { Backlog } from "../../src/gateway/backlog.ts";
import { Group } from "../../src/gateway/groups.ts";
import { startBroker, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { t } from "../support/suite.ts";
import { connectWkproto } from "../support/wkproto-client.ts";
import { seeded } from "./random.ts";
import { Wire } from "./recorder.ts";
import { fanOutTurns, group, type Joiner, person, World } from "./world.ts";

const LARGE = 60 * 1024;
/** Number of sessions that are sent a large frame at once: the ninth frame exceeds 512 KiB. */
const AT_ONCE = 9;
/** Number of sessions that are sent a small encrypted frame at once. */
const ENCRYPTED_AT_ONCE = 32;

const range = (length: number) => Array.from({ length }, (_, i) => i);

/** Counts the frames that are published to topics. */
class CountingWire extends Wire {
  published = 0;

  override publish(topic: string, frame: Uint8Array | string): void {
    this.published += 1;
    super.publish(topic, frame);
  }
}

function message(clientMsgNo: string, bytes = 4): Message {
  return {
    ...{ messageId: 1, messageSeq: 1, key: "2:g", channel: group("g"), fromUid: "bob" },
    ...{ clientMsgNo, timestampMs: 0, header: { noPersist: false, redDot: true }, expireS: 0 },
    ...{ streamNo: undefined, tagKey: undefined, stream: undefined },
    payload: new Uint8Array(bytes),
  };
}

function event(eventId: string, bytes = 4): ChannelEvent {
  return {
    ...{ key: "2:g", channel: group("g"), fromUid: "bob", clientMsgNo: "c", eventId },
    ...{ type: "x", timestampMs: 0, stream: undefined, data: "x".repeat(bytes) },
  };
}

/** Creates a group whose members are live for messages and events. */
function liveGroup(formats: readonly string[]) {
  const turns = fanOutTurns();
  const g = new Group("g", turns);
  const world = new World(seeded(1));
  const members = formats.map((format) => world.session({ uid: "u", format }));
  for (const { session } of members) {
    const backlog = g.addJoining(session);
    g.add(backlog);
    g.goLive(new Backlog(session, g, "streams"));
  }
  const wire = new CountingWire();
  return { g, members, wire };
}

const native = (count: number) => range(count).map(() => "a");
const encrypted = (count: number) => range(count).map((i) => `private-${i}`);

/** Names of the messages and events that the session was sent, in order. */
function namesOf({ connection }: Joiner): readonly string[] {
  return connection.seen.map((frame) => {
    if (frame.kind === "message" || frame.kind === "command") return frame.message.no;
    return frame.kind === "event" ? frame.event.eventId : frame.kind;
  });
}

const reached = (members: readonly Joiner[], name: string) =>
  members.filter((member) => namesOf(member).includes(name)).length;

async function waitForAll(members: readonly Joiner[], name: string): Promise<void> {
  while (reached(members, name) < members.length) await setImmediate();
}

t.test("one turn of the event loop sends about 512 KiB of copies of a large message", async (t) => {
  const { g, members, wire } = liveGroup(native(100));
  t.equal(g.deliver(message("large", LARGE), undefined, wire), 100);
  t.equal(reached(members, "large"), AT_ONCE);
  await waitForAll(members, "large");
  t.equal(wire.published, 0);
  t.equal(
    members.reduce((sum, { codec }) => sum + codec.encodedPushes, 0),
    1,
    "the message is encoded once",
  );
});

t.test("one turn of the event loop sends about 512 KiB of copies of a large event", async (t) => {
  const { g, members, wire } = liveGroup(native(100));
  t.equal(g.deliverEvent(event("large", LARGE), undefined, wire), 100);
  t.equal(reached(members, "large"), AT_ONCE);
  await waitForAll(members, "large");
});

t.test("one turn of the event loop encrypts a message for at most 32 sessions", async (t) => {
  const { g, members, wire } = liveGroup(encrypted(100));
  g.deliver(message("small"), undefined, wire);
  t.equal(reached(members, "small"), ENCRYPTED_AT_ONCE);
  await waitForAll(members, "small");
  g.deliverEvent(event("event"), undefined, wire);
  t.equal(reached(members, "event"), ENCRYPTED_AT_ONCE);
  await waitForAll(members, "event");
});

t.test(
  "each member is sent its frames in the order of the deliveries, even while a delivery is deferred",
  async (t) => {
    const { g, members, wire } = liveGroup([...native(50), ...encrypted(50)]);
    g.deliver(message("m1", LARGE), undefined, wire);
    g.deliver(message("m2"), undefined, wire);
    g.deliverEvent(event("e3"), undefined, wire);
    g.deliver(message("m4", LARGE), undefined, wire);
    await waitForAll(members, "m4");
    for (const member of members) t.same(namesOf(member), ["m1", "m2", "e3", "m4"]);
    t.equal(wire.published, 0, "nothing overtakes the deferred frames through a topic");
    await setImmediate();
    await setImmediate();
    g.deliver(message("m5"), undefined, wire);
    t.equal(wire.published, 1, "later messages are published again");
  },
);

t.test("a session gets its deferred frames before any other frame except DISCONNECT", async (t) => {
  const { g, members, wire } = liveGroup(native(60));
  g.deliver(message("m1", LARGE), undefined, wire);
  const [replied, removed, ended] = members.slice(-3);
  replied?.session.reply({ kind: "pong", ref: 1, serverTimeMs: 1 });
  if (removed !== undefined) g.remove(removed.session);
  ended?.session.end("kicked");
  t.same(replied && namesOf(replied), ["m1", "reply"]);
  t.same(removed && namesOf(removed), ["m1"], "a message from before the removal");
  t.same(ended && namesOf(ended), ["disconnect"]);
  await waitForAll(members.slice(0, -1), "m1");
  t.same(replied && namesOf(replied), ["m1", "reply"], "the message is not sent twice");
  t.same(removed && namesOf(removed), ["m1"]);
  t.same(ended && namesOf(ended), ["disconnect"], "an ended session is sent nothing more");
});

t.test("a member who joins during a delivery is sent only later messages", async (t) => {
  const { g, members, wire } = liveGroup(native(60));
  g.deliver(message("m1", LARGE), undefined, wire);
  const joiner = new World(seeded(2)).session({ uid: "late", format: "a" });
  g.add(g.addJoining(joiner.session));
  g.deliver(message("m2"), undefined, wire);
  await waitForAll([...members, joiner], "m2");
  t.same(namesOf(joiner), ["m2"]);
});

t.test("deliveries of several groups and users take turns", async (t) => {
  const turns = fanOutTurns();
  const order: string[] = [];
  const world = new World(seeded(1));
  for (const key of ["g", "h"]) {
    const fanOut = turns.begin(key, LARGE);
    for (const _ of range(50))
      fanOut.send(world.session({ uid: key }).session, () => order.push(key));
    fanOut.end();
  }
  t.equal(order.length, AT_ONCE, "one turn sends the large frames of one delivery");
  while (order.length < 100) await setImmediate();
  const firstHalf = order.slice(AT_ONCE, 50);
  t.ok(firstHalf.includes("g") && firstHalf.includes("h"), firstHalf.join(""));
});

t.test(
  "if a delivery would raise the number of deferred copies above 100,000, all copies are sent immediately",
  async (t) => {
    const turns = fanOutTurns();
    const { session } = new World(seeded(1)).session({ uid: "u" });
    let sent = 0;
    const deliver = () => {
      const fanOut = turns.begin("g", LARGE);
      for (const _ of range(30_000)) fanOut.send(session, () => (sent += 1));
      fanOut.end();
    };
    for (const _ of range(3)) deliver();
    t.equal(sent, AT_ONCE);
    deliver();
    t.equal(sent, 4 * 30_000);
  },
);

t.test(
  "personal messages and commands to many sessions are deferred, like group messages",
  async (t) => {
    const world = new World(seeded(3));
    const members: Joiner[] = [];
    for (const _ of range(40)) members.push(await world.live({ uid: "alice", format: "a" }));
    const personal = (name: string, bytes: number) => ({
      ...{ ...message(name, bytes), messageSeq: 0, key: "1:alice@bob", channel: person("alice") },
    });
    const origin = undefined;
    world.hub.deliver({
      ...{ kind: "message", message: personal("m1", LARGE), origin, recipients: undefined },
    });
    t.equal(reached(members, "m1"), AT_ONCE);
    world.hub.deliver({
      ...{ kind: "command", message: personal("c2", LARGE), origin },
      copies: [{ uid: "alice", inboxSeq: 0 }],
    });
    t.equal(reached(members, "c2"), 0);
    await waitForAll(members, "c2");
    for (const member of members) t.same(namesOf(member), ["m1", "c2"]);
  },
);

t.test(
  "the members of a group receive large and small messages in the order of their seqs",
  async (t) => {
    const broker = await startBroker(t, { JINDOU_AUTH_CLIENTS: "none" });
    const uids = range(80).map((i) => `member-${i}`);
    await broker.call("/channel", { channel_id: "g", channel_type: 2, subscribers: uids });
    const port = broker.clientPort;
    const [shared, own] = [uids.slice(0, 40), uids.slice(40)];
    const sessions = await Promise.all(shared.map((uid) => connectNative(t, { port, uid })));
    const others = await Promise.all(own.map((uid) => connectWkproto(t, { port, uid })));
    const payloads = ["x".repeat(LARGE), "y", "x".repeat(LARGE), "z"].map(textPayload);
    await Promise.all(
      payloads.map((payload) =>
        broker.call("/message/send", {
          ...{ channel_id: "g", channel_type: 2, from_uid: "member-0", payload },
        }),
      ),
    );
    await Promise.all([...sessions, ...others].map((session) => session.ping()));
    for (const { messages } of sessions)
      t.same(
        messages.map(({ messageSeq }) => messageSeq),
        [1, 2, 3, 4],
      );
    for (const { received } of others)
      t.same(
        received.filter(({ packet }) => packet === "RECV").map(({ fields }) => fields.messageSeq),
        [1, 2, 3, 4],
      );
  },
);
