// What a session is not given yet, one object at a time: where snapshots, what was shown before,
// and what is withheld meet.

import {
  type ChannelEvent,
  type Message,
  STREAM_CONTENT,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import { Backlog, PERSONAL_CHANNELS } from "../../src/gateway/backlog.ts";
import { Group } from "../../src/gateway/groups.ts";
import { t } from "../support/suite.ts";
import { seeded } from "./random.ts";
import { group, type Joiner, person, World } from "./world.ts";

const STREAM = {
  ...{ key: "2:g", channel: group("g"), fromUid: "bob", clientMsgNo: "s" },
  ...{ messageId: 1, messageSeq: 1, startData: "", notes: [] },
};

/** After the start and this many chunks of one letter. */
function snapshotOf(chunks: number, isEnded = false): StreamSnapshot {
  return {
    ...STREAM,
    state: isEnded ? "closed" : "active",
    text: "abcdefgh".slice(0, chunks),
    nextIndex: chunks + (isEnded ? 2 : 1),
    endData: isEnded ? "" : undefined,
  };
}

/** The chunk at `index`, from 1; undefined: an event beside the stream that names it. */
function eventOf(index: number | undefined): ChannelEvent {
  const textOffset = (index ?? 1) - 1;
  const place = { messageSeq: 1, index: index ?? 1, textOffset };
  return {
    ...STREAM,
    ...{ eventId: `${index}`, timestampMs: 0 },
    type: index === undefined ? "x" : STREAM_CONTENT,
    data: index === undefined ? "beside" : "abcdefgh".charAt(textOffset),
    stream: index === undefined ? undefined : { ...place, nextIndex: index + 1, state: "active" },
  };
}

function joiner(maxHeldBytes = 10_000): Joiner {
  return new World(seeded(1)).session({ uid: "alice", maxHeldBytes });
}

/** Of a session that was made a member, while the store is read for the last time. */
function added({ session }: Joiner): Backlog {
  const g = new Group("g");
  const backlog = g.addJoining(session);
  g.add(backlog);
  backlog.keepAll();
  return backlog;
}

/** Kind and content of each push. */
const contents = ({ connection }: Joiner): readonly string[] =>
  connection.seen.map((one) => {
    if (one.kind === "stream") return `snapshot ${one.snapshot.text}`;
    return one.kind === "event" ? one.event.data || "end" : one.kind;
  });

t.test("a joining session is given the snapshot and what follows", async (t) => {
  const alice = joiner();
  const backlog = added(alice);
  for (const index of [2, 3, 4, 5]) backlog.receiveEvent(eventOf(index));
  backlog.flush([snapshotOf(3)], []);
  t.same(contents(alice), ["snapshot abc", "d", "e"]);
});

t.test("of content that came merged the session is given what the snapshot lacks", async (t) => {
  const alice = joiner();
  const backlog = added(alice);
  const place = { messageSeq: 1, index: 2, nextIndex: 6, textOffset: 1 };
  backlog.receiveEvent({
    ...eventOf(2),
    data: "bcde",
    stream: { ...place, state: "active" },
  });
  backlog.receiveEvent(eventOf(6));
  backlog.flush([snapshotOf(3)], []);
  t.same(contents(alice), ["snapshot abc", "de", "f"]);
});

t.test("what belongs to a stream that is over is left out", async (t) => {
  const alice = joiner();
  const backlog = added(alice);
  backlog.receiveEvent(eventOf(5));
  backlog.flush([], []);
  t.same(contents(alice), []);
});

t.test("a stream the client was shown and that ended meanwhile is told to its end", async (t) => {
  const alice = joiner();
  const g = new Group("g");
  const backlog = g.addJoining(alice.session);
  backlog.recordSnapshot(snapshotOf(2));
  backlog.recordSnapshot(snapshotOf(1)); // an older answer
  g.add(backlog);
  t.ok(backlog.mustRead);
  backlog.receiveEvent(eventOf(undefined));
  backlog.flush([], [snapshotOf(5, true)]);
  t.same(contents(alice), ["cde", "end", "beside"]);
});

t.test("a client that was told more is not set back", async (t) => {
  const alice = joiner();
  const backlog = added(alice);
  backlog.recordSnapshot(snapshotOf(4));
  for (const index of [3, 4, 5]) backlog.receiveEvent(eventOf(index));
  backlog.flush([snapshotOf(2)], []);
  t.same(contents(alice), ["e"]);
});

t.test("of a stream the store has lost nothing more is told, nor of a gap", async (t) => {
  const alice = joiner();
  const backlog = added(alice);
  backlog.recordSnapshot(snapshotOf(1));
  backlog.leaveStreamsToStore();
  backlog.receiveEvent(eventOf(2));
  backlog.keepAll();
  backlog.receiveEvent(eventOf(3));
  backlog.flush([], []);
  t.same(contents(alice), []);
});

t.test("leaving the group gives back what was kept", async (t) => {
  const { session } = joiner(1000);
  const g = new Group("g");
  for (let round = 0; round < 10; round++) {
    const backlog = g.addJoining(session);
    g.add(backlog);
    for (const index of [1, 2]) backlog.receiveEvent(eventOf(index));
    g.remove(session);
    t.ok(backlog.isOver);
  }
  t.equal(session.ended, undefined);
});

function messageOf(messageSeq: number, payloadBytes = 10): Message {
  return {
    messageId: messageSeq + 1,
    messageSeq,
    key: "2:g",
    channel: group("g"),
    fromUid: "bob",
    clientMsgNo: `n${messageSeq}`,
    timestampMs: 0,
    header: { noPersist: messageSeq === 0, redDot: true },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: new Uint8Array(payloadBytes),
    stream: undefined,
  };
}

/** Of a session that is about to join g, and holds what comes. */
function holding(maxHeldBytes = 10_000): Joiner & {
  readonly g: Group;
  readonly backlog: Backlog;
} {
  const one = joiner(maxHeldBytes);
  const g = new Group("g");
  const backlog = g.addJoining(one.session);
  backlog.hold();
  return { ...one, g, backlog };
}

t.test("what comes is held until the session is a member, in order", async (t) => {
  const { backlog, g, connection } = holding();
  for (const seq of [3, 0, 4]) backlog.receiveMessage(messageOf(seq));
  t.same(connection.frames, []);
  g.add(backlog);
  t.notOk(backlog.isHolding);
  t.same(connection.messageNos, ["n3", "n0", "n4"]);
});

t.test("what the session was given is left out, but not what has no seq", async (t) => {
  const { backlog, g, connection } = holding();
  for (const seq of [3, 4, 0, 5]) backlog.receiveMessage(messageOf(seq));
  backlog.advance("2:g", 4);
  g.add(backlog);
  t.same(connection.messageNos, ["n0", "n5"]);
});

t.test("what is left to the store is not held, but what it has not", async (t) => {
  const { backlog, g, connection } = holding();
  backlog.receiveMessage(messageOf(1));
  backlog.receiveMessage(messageOf(0));
  backlog.leaveToStore();
  backlog.receiveMessage(messageOf(2));
  backlog.hold();
  backlog.receiveMessage(messageOf(3));
  g.add(backlog);
  t.same(connection.messageNos, ["n0", "n3"]);
});

t.test("personal channels are held to the end", async (t) => {
  const { session, connection } = joiner();
  const backlog = new Backlog(session, PERSONAL_CHANNELS, "holding");
  const message = messageOf(1);
  backlog.receiveMessage({ ...message, channel: person("alice"), key: "1:alice" });
  backlog.leaveToStore();
  PERSONAL_CHANNELS.add(backlog);
  t.same(connection.messageNos, ["n1"]);
});

t.test("more than the bound held ends the session as a slow reader", async (t) => {
  const { session, backlog, g, connection } = holding(2000);
  backlog.receiveMessage(messageOf(1, 1000));
  t.equal(session.ended, undefined);
  backlog.receiveMessage(messageOf(2, 1000));
  t.equal(session.ended, "slow_reader");
  backlog.receiveMessage(messageOf(3));
  g.add(backlog);
  t.match(connection.seen, [{ kind: "disconnect", reason: "slow_reader" }]);
});

t.test("messages without a payload are bounded too", async (t) => {
  const { session, backlog } = holding(10_000);
  for (let seq = 1; seq <= 100; seq++) backlog.receiveMessage(messageOf(seq, 0));
  t.equal(session.ended, "slow_reader");
});

t.test("the bound is on what is held at one time", async (t) => {
  const { session, backlog } = holding(2000);
  const drops = [() => backlog.leaveToStore(), () => backlog.forgetGroup("g")];
  for (const drop of drops)
    for (let seq = 1; seq <= 10; seq++) {
      backlog.hold();
      backlog.receiveMessage(messageOf(seq, 1000));
      drop();
    }
  t.equal(session.ended, undefined);
});

t.test("what is forgotten of one group leaves the others", async (t) => {
  const { session, connection } = joiner();
  const backlog = new Backlog(session, PERSONAL_CHANNELS, "holding");
  backlog.receiveMessage(messageOf(1));
  backlog.receiveMessage({ ...messageOf(2), channel: group("h"), key: "2:h" });
  backlog.receiveMessage({ ...messageOf(3), channel: person("g"), key: "1:g" });
  backlog.forgetGroup("g");
  PERSONAL_CHANNELS.add(backlog);
  t.same(connection.messageNos, ["n2", "n3"]);
});

t.test("an event that is of no stream keeps its turn among messages", async (t) => {
  const { backlog, g, connection } = holding();
  backlog.receiveMessage(messageOf(1));
  backlog.receiveEvent(eventOf(undefined));
  backlog.receiveMessage(messageOf(2));
  g.add(backlog);
  const kinds = connection.seen.map(({ kind }) => kind);
  t.same(kinds, ["message", "event", "message"]);
});
