// One group on one node: members by format, and who is still catching up.

import t from "tap";
import type { Message } from "../../src/broker/model.ts";
import { Behind } from "../../src/gateway/behind.ts";
import { Group } from "../../src/gateway/group.ts";
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

/** A session of its own world that holds nothing. */
function live(format: string): Joiner {
  const joiner = new World(seeded(1)).session({ uid: "u", format });
  joiner.session.release(new Map());
  return joiner;
}

t.test("a group is empty until someone joins or follows", async (t) => {
  const g = new Group("g");
  const one = live("a");
  t.ok(g.isEmpty);
  g.hold(one.session);
  t.notOk(g.isEmpty);
  t.equal(g.members, 0, "not live yet");
  g.add(one.session);
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
  g.hold(one.session);
  g.remove(one.session);
  t.ok(g.isEmpty);
  t.equal(one.session.joining, undefined);
});

t.test("a format nobody speaks any more is not encoded", async (t) => {
  const g = new Group("g");
  const [a1, a2, b] = [live("a"), live("a"), live("b")];
  for (const { session } of [a1, a2, b]) g.add(session);
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
  g.add(first.session);
  g.add(second.session);
  for (const topic of second.connection.topics) listening.subscribe(topic);
  g.remove(first.session);
  t.equal(g.deliver(MESSAGE, undefined, wire), 1);
  t.same(listening.messageNos, ["n1"]);
});

t.test("who is joining is given the message to hold", async (t) => {
  const g = new Group("g");
  const [one, own] = [live("a"), live("a")];
  g.hold(one.session);
  g.hold(own.session);
  t.equal(g.deliver(MESSAGE, own.session, new Wire()), 0);
  one.session.release(new Map());
  own.session.release(new Map());
  t.same(one.connection.messageNos, ["n1"]);
  t.same(own.connection.messageNos, [], "the origin has it already");
});

t.test(
  "a session that does not follow the group is not withheld or given its events",
  async (t) => {
    const g = new Group("g");
    const [member, removed] = [live("a"), live("b")];
    g.add(member.session);
    g.goLive(new Behind(member.session, g, false));
    g.add(removed.session);
    g.remove(removed.session);
    const behind = new Behind(removed.session, g, false);
    g.fallBehind(behind);
    t.equal(g.behindOf(removed.session), undefined);
    g.goLive(behind);
    t.same([...removed.connection.topics], []);
    g.remove(member.session);
    t.ok(g.isEmpty, "it leaves no format behind");
  },
);
