// One group on one node: its members by wire format, and the sessions that are still catching up.

import type { Message } from "../../src/broker/model.ts";
import { Backlog } from "../../src/gateway/backlog.ts";
import { Group } from "../../src/gateway/groups.ts";
import { t } from "../support/suite.ts";
import { seeded } from "./random.ts";
import { Wire } from "./recorder.ts";
import { fanOutTurns, group, type Joiner, World } from "./world.ts";

const MESSAGE: Message = {
  messageId: 1,
  messageSeq: 1,
  key: "2:g",
  channel: group("g"),
  fromUid: "bob",
  clientMsgNo: "n1",
  timestampMs: 0,
  header: { noPersist: false, redDot: true },
  expireS: 0,
  streamNo: undefined,
  tagKey: undefined,
  payload: new Uint8Array(4),
  stream: undefined,
};

/** Creates a session in a world of its own. */
const live = (format: string): Joiner => new World(seeded(1)).session({ uid: "u", format });

/** Makes the session a member at once. */
function add(g: Group, { session }: Joiner): Backlog {
  const backlog = g.addJoining(session);
  g.add(backlog);
  return backlog;
}

t.test("a group on a node is empty while no session joins or follows it", async (t) => {
  const g = new Group("g", fanOutTurns());
  const alice = live("a");
  t.ok(g.isEmpty);
  const backlog = g.addJoining(alice.session);
  t.notOk(g.isEmpty);
  t.equal(g.members, 0, "the session is not live yet");
  g.add(backlog);
  t.equal(g.members, 1);
  t.equal(alice.session.joining, undefined);
  g.remove(alice.session);
  g.remove(alice.session);
  t.ok(g.isEmpty);
  t.equal(g.members, 0);
  t.equal(alice.connection.topics.size, 0);
  t.equal(alice.session.groups.size, 0);
});

t.test(
  "a group on a node is empty after its only session leaves while it is joining",
  async (t) => {
    const g = new Group("g", fanOutTurns());
    const alice = live("a");
    const backlog = g.addJoining(alice.session);
    g.remove(alice.session);
    t.ok(backlog.isOver);
    t.ok(g.isEmpty);
    t.equal(alice.session.joining, undefined);
  },
);

t.test("a message is not encoded in a wire format that members no longer use", async (t) => {
  const g = new Group("g", fanOutTurns());
  const [a1, a2, b] = [live("a"), live("a"), live("b")];
  for (const joiner of [a1, a2, b]) add(g, joiner);
  t.equal(g.deliver(MESSAGE, undefined, new Wire()), 3);
  g.remove(b.session);
  t.equal(g.deliver(MESSAGE, undefined, new Wire()), 2);
  t.equal(a1.codec.encodedPushes, 2);
  t.equal(b.codec.encodedPushes, 1);
});

t.test("a wire format stays in use after the first of its sessions has left", async (t) => {
  const g = new Group("g", fanOutTurns());
  const wire = new Wire();
  const [first, second] = [live("a"), live("a")];
  const listening = wire.connect();
  add(g, first);
  add(g, second);
  for (const topic of second.connection.topics) listening.subscribe(topic);
  g.remove(first.session);
  t.equal(g.deliver(MESSAGE, undefined, wire), 1);
  t.same(listening.messageNos, ["n1"]);
});

t.test("a message is held for joining sessions, except for the session that sent it", async (t) => {
  const g = new Group("g", fanOutTurns());
  const [other, own] = [live("a"), live("a")];
  const backlogs = [other, own].map(({ session }) => g.addJoining(session));
  for (const backlog of backlogs) backlog.hold();
  t.equal(g.deliver(MESSAGE, own.session, new Wire()), 0);
  for (const backlog of backlogs) g.add(backlog);
  t.same(other.connection.messageNos, ["n1"]);
  t.same(own.connection.messageNos, [], "the origin already has the message");
});

t.test(
  "events of a group are neither pushed to nor withheld from a session that does not follow the group",
  async (t) => {
    const g = new Group("g", fanOutTurns());
    const [member, removed] = [live("a"), live("b")];
    add(g, member);
    g.goLive(new Backlog(member.session, g, "streams"));
    add(g, removed);
    g.remove(removed.session);
    const backlog = new Backlog(removed.session, g, "streams");
    g.withholdEvents(backlog);
    t.equal(g.backlogOf(removed.session), undefined);
    g.goLive(backlog);
    t.same([...removed.connection.topics], []);
    g.remove(member.session);
    t.ok(g.isEmpty, "no wire format is left behind");
  },
);

t.test(
  "frames for a session with a wire format of its own are sent directly and not through a topic",
  async (t) => {
    const g = new Group("g", fanOutTurns());
    const wire = new Wire();
    const [own, other, shared] = [live("private-1"), live("private-2"), live("a")];
    for (const joiner of [own, other, shared]) add(g, joiner);
    t.equal(g.members, 3);
    t.equal(g.deliver(MESSAGE, own.session, wire), 2);
    t.same(own.connection.messageNos, [], "the origin already has the message");
    t.same(other.connection.messageNos, ["n1"]);
    const event = {
      ...{ key: "2:g", channel: MESSAGE.channel, fromUid: "x", data: "" },
      ...{ clientMsgNo: "c", eventId: "e", type: "x", timestampMs: 0 },
      stream: undefined,
    };
    g.deliverEvent(event, undefined, wire);
    t.equal(other.connection.frames.length, 1, "the event is withheld from the new member");
    g.goLive(new Backlog(other.session, g, "streams"));
    g.deliverEvent(event, undefined, wire);
    t.equal(other.connection.frames.length, 2);
    g.withholdEvents(new Backlog(other.session, g, "streams"));
    g.deliverEvent(event, undefined, wire);
    t.equal(other.connection.frames.length, 2, "the event is withheld while the session lags");
    t.equal(own.connection.topics.size + other.connection.topics.size, 0);
    for (const { session } of [own, other, shared]) g.remove(session);
    t.equal(g.deliver(MESSAGE, undefined, wire), 0);
    t.equal(other.connection.frames.length, 2);
    t.ok(g.isEmpty);
  },
);
