// One group on one node: members by format, and who is still catching up.

import type { Message } from "../../src/broker/model.ts";
import { Backlog } from "../../src/gateway/backlog.ts";
import { Group } from "../../src/gateway/groups.ts";
import { t } from "../support/suite.ts";
import { seeded } from "./random.ts";
import { Wire } from "./recorder.ts";
import { group, type Joiner, World } from "./world.ts";

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

/** A session of its own world. */
const live = (format: string): Joiner => new World(seeded(1)).session({ uid: "u", format });

/** Makes it a member at once. */
function add(g: Group, { session }: Joiner): Backlog {
  const backlog = g.addJoining(session);
  g.add(backlog);
  return backlog;
}

t.test("a group is empty until someone joins or follows", async (t) => {
  const g = new Group("g");
  const one = live("a");
  t.ok(g.isEmpty);
  const backlog = g.addJoining(one.session);
  t.notOk(g.isEmpty);
  t.equal(g.members, 0, "not live yet");
  g.add(backlog);
  t.equal(g.members, 1);
  t.equal(one.session.joining, undefined);
  g.remove(one.session);
  g.remove(one.session);
  t.ok(g.isEmpty);
  t.equal(g.members, 0);
  t.equal(one.connection.topics.size, 0);
  t.equal(one.session.groups.size, 0);
});

t.test("who leaves while joining leaves nothing", async (t) => {
  const g = new Group("g");
  const one = live("a");
  const backlog = g.addJoining(one.session);
  g.remove(one.session);
  t.ok(backlog.isOver);
  t.ok(g.isEmpty);
  t.equal(one.session.joining, undefined);
});

t.test("a format nobody speaks any more is not encoded", async (t) => {
  const g = new Group("g");
  const [a1, a2, b] = [live("a"), live("a"), live("b")];
  for (const one of [a1, a2, b]) add(g, one);
  t.equal(g.deliver(MESSAGE, undefined, new Wire()), 3);
  g.remove(b.session);
  t.equal(g.deliver(MESSAGE, undefined, new Wire()), 2);
  t.equal(a1.codec.encodedPushes, 2);
  t.equal(b.codec.encodedPushes, 1);
});

t.test("the format outlives the session that brought it", async (t) => {
  const g = new Group("g");
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

t.test("who is joining is given the message to hold", async (t) => {
  const g = new Group("g");
  const [one, own] = [live("a"), live("a")];
  const backlogs = [one, own].map(({ session }) => g.addJoining(session));
  for (const backlog of backlogs) backlog.hold();
  t.equal(g.deliver(MESSAGE, own.session, new Wire()), 0);
  for (const backlog of backlogs) g.add(backlog);
  t.same(one.connection.messageNos, ["n1"]);
  t.same(own.connection.messageNos, [], "the origin has it already");
});

t.test(
  "a session that does not follow the group is not withheld or given its events",
  async (t) => {
    const g = new Group("g");
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
    t.ok(g.isEmpty, "it leaves no format behind");
  },
);

t.test("a session whose format nobody shares is sent its frames without a topic", async (t) => {
  const g = new Group("g");
  const wire = new Wire();
  const [own, other, shared] = [live("private-1"), live("private-2"), live("a")];
  for (const one of [own, other, shared]) add(g, one);
  t.equal(g.members, 3);
  t.equal(g.deliver(MESSAGE, own.session, wire), 2);
  t.same(own.connection.messageNos, [], "the origin has it already");
  t.same(other.connection.messageNos, ["n1"]);
  const event = {
    ...{ key: "2:g", channel: MESSAGE.channel, fromUid: "x", data: "" },
    ...{ clientMsgNo: "c", eventId: "e", type: "x", timestampMs: 0 },
    stream: undefined,
  };
  g.deliverEvent(event, wire);
  t.equal(other.connection.frames.length, 1, "withheld as of others");
  g.goLive(new Backlog(other.session, g, "streams"));
  g.deliverEvent(event, wire);
  t.equal(other.connection.frames.length, 2);
  g.withholdEvents(new Backlog(other.session, g, "streams"));
  g.deliverEvent(event, wire);
  t.equal(other.connection.frames.length, 2, "it lags");
  t.equal(own.connection.topics.size + other.connection.topics.size, 0);
  for (const one of [own, other, shared]) g.remove(one.session);
  t.equal(g.deliver(MESSAGE, undefined, wire), 0);
  t.equal(other.connection.frames.length, 2);
  t.ok(g.isEmpty);
});
