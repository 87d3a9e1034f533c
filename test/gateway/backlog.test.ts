// The backlog of a session, tested as a single object: how snapshots, positions and withheld events
// fit together.

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
import { fanOutTurns, group, type Joiner, person, World } from "./world.ts";

const STREAM = {
  ...{ key: "2:g", channel: group("g"), fromUid: "bob", clientMsgNo: "s" },
  ...{ messageId: 1, messageSeq: 1, startData: "", notes: [] },
};

/** Returns the stream after its start and this number of chunks of one letter. */
function snapshotOf(chunks: number, isEnded = false): StreamSnapshot {
  return {
    ...STREAM,
    state: isEnded ? "closed" : "active",
    text: "abcdefgh".slice(0, chunks),
    nextIndex: chunks + (isEnded ? 2 : 1),
    endData: isEnded ? "" : undefined,
  };
}

/**
 * Returns the chunk at `index`, counted from 1. If `index` is `undefined`, returns an event outside
 * of the stream.
 */
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

/** Returns the backlog of a session that is live for messages. The backlog keeps all events. */
function added({ session }: Joiner): Backlog {
  const g = new Group("g", fanOutTurns());
  const backlog = g.addJoining(session);
  g.add(backlog);
  backlog.keepAll();
  return backlog;
}

/** Returns kind and content of each push. */
const contents = ({ connection }: Joiner): readonly string[] =>
  connection.seen.map((frame) => {
    if (frame.kind === "stream") return `snapshot ${frame.snapshot.text}`;
    return frame.kind === "event" ? frame.event.data || "end" : frame.kind;
  });

t.test(
  "a joining session receives the snapshot of a stream and then the events after it",
  async (t) => {
    const alice = joiner();
    const backlog = added(alice);
    for (const index of [2, 3, 4, 5]) backlog.receiveEvent(eventOf(index));
    backlog.flush([snapshotOf(3)], []);
    t.same(contents(alice), ["snapshot abc", "d", "e"]);
  },
);

t.test("merged stream content is pushed without the part that the snapshot contains", async (t) => {
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

t.test("an event of a stream that has ended is not pushed to a joining session", async (t) => {
  const alice = joiner();
  const backlog = added(alice);
  backlog.receiveEvent(eventOf(5));
  backlog.flush([], []);
  t.same(contents(alice), []);
});

t.test(
  "if a stream ends while its events are withheld, the rest of its text and its end are pushed",
  async (t) => {
    const alice = joiner();
    const g = new Group("g", fanOutTurns());
    const backlog = g.addJoining(alice.session);
    backlog.recordSnapshot(snapshotOf(2));
    backlog.recordSnapshot(snapshotOf(1)); // an older reply
    g.add(backlog);
    t.ok(backlog.mustRead);
    backlog.receiveEvent(eventOf(undefined));
    backlog.flush([], [snapshotOf(5, true)]);
    t.same(contents(alice), ["cde", "end", "beside"]);
  },
);

t.test("an older snapshot is not pushed to a client that has more of the stream", async (t) => {
  const alice = joiner();
  const backlog = added(alice);
  backlog.recordSnapshot(snapshotOf(4));
  for (const index of [3, 4, 5]) backlog.receiveEvent(eventOf(index));
  backlog.flush([snapshotOf(2)], []);
  t.same(contents(alice), ["e"]);
});

t.test("events of a stream are no longer pushed after the store has lost the stream", async (t) => {
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

t.test("a session that leaves a group releases the bytes held for the group", async (t) => {
  const { session } = joiner(1000);
  const g = new Group("g", fanOutTurns());
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

/** Creates a session that is about to join the group and holds messages. */
function holding(maxHeldBytes = 10_000): Joiner & {
  readonly g: Group;
  readonly backlog: Backlog;
} {
  const alice = joiner(maxHeldBytes);
  const g = new Group("g", fanOutTurns());
  const backlog = g.addJoining(alice.session);
  backlog.hold();
  return { ...alice, g, backlog };
}

t.test(
  "messages of a group are held until the joining session is live in the group, and are pushed in the order of arrival",
  async (t) => {
    const { backlog, g, connection } = holding();
    for (const seq of [3, 0, 4]) backlog.receiveMessage(messageOf(seq));
    t.same(connection.frames, []);
    g.add(backlog);
    t.notOk(backlog.isHolding);
    t.same(connection.messageNos, ["n3", "n0", "n4"]);
  },
);

t.test(
  "held messages that were already read from the store are skipped, and unstored messages are pushed",
  async (t) => {
    const { backlog, g, connection } = holding();
    for (const seq of [3, 4, 0, 5]) backlog.receiveMessage(messageOf(seq));
    backlog.advance("2:g", 4);
    g.add(backlog);
    t.same(connection.messageNos, ["n0", "n5"]);
  },
);

t.test(
  "a backlog that leaves stored messages for a later read of the store holds only unstored messages",
  async (t) => {
    const { backlog, g, connection } = holding();
    backlog.receiveMessage(messageOf(1));
    backlog.receiveMessage(messageOf(0));
    backlog.leaveToStore();
    backlog.receiveMessage(messageOf(2));
    backlog.hold();
    backlog.receiveMessage(messageOf(3));
    g.add(backlog);
    t.same(connection.messageNos, ["n0", "n3"]);
  },
);

t.test(
  "messages of personal channels are held even if stored messages of groups are left for a later read of the store",
  async (t) => {
    const { session, connection } = joiner();
    const backlog = new Backlog(session, PERSONAL_CHANNELS, "holding");
    const message = messageOf(1);
    backlog.receiveMessage({ ...message, channel: person("alice"), key: "1:alice" });
    backlog.leaveToStore();
    PERSONAL_CHANNELS.add(backlog);
    t.same(connection.messageNos, ["n1"]);
  },
);

t.test("a session that holds more than `maxHeldBytes` bytes ends as a slow reader", async (t) => {
  const { session, backlog, g, connection } = holding(2000);
  backlog.receiveMessage(messageOf(1, 1000));
  t.equal(session.ended, undefined);
  backlog.receiveMessage(messageOf(2, 1000));
  t.equal(session.ended, "slow_reader");
  backlog.receiveMessage(messageOf(3));
  g.add(backlog);
  t.match(connection.seen, [{ kind: "disconnect", reason: "slow_reader" }]);
});

t.test("messages without a payload count towards `maxHeldBytes`", async (t) => {
  const { session, backlog } = holding(10_000);
  for (let seq = 1; seq <= 100; seq++) backlog.receiveMessage(messageOf(seq, 0));
  t.equal(session.ended, "slow_reader");
});

t.test(
  "`maxHeldBytes` limits the bytes that are held at any one time, not their total over time",
  async (t) => {
    const { session, backlog } = holding(2000);
    const drops = [() => backlog.leaveToStore(), () => backlog.forgetGroup("g")];
    for (const drop of drops)
      for (let seq = 1; seq <= 10; seq++) {
        backlog.hold();
        backlog.receiveMessage(messageOf(seq, 1000));
        drop();
      }
    t.equal(session.ended, undefined);
  },
);

t.test(
  "dropping the held messages of one group keeps the held messages of other channels",
  async (t) => {
    const { session, connection } = joiner();
    const backlog = new Backlog(session, PERSONAL_CHANNELS, "holding");
    backlog.receiveMessage(messageOf(1));
    backlog.receiveMessage({ ...messageOf(2), channel: group("h"), key: "2:h" });
    backlog.receiveMessage({ ...messageOf(3), channel: person("g"), key: "1:g" });
    backlog.forgetGroup("g");
    PERSONAL_CHANNELS.add(backlog);
    t.same(connection.messageNos, ["n2", "n3"]);
  },
);

t.test("an event outside of streams keeps its place among the held messages", async (t) => {
  const { backlog, g, connection } = holding();
  backlog.receiveMessage(messageOf(1));
  backlog.receiveEvent(eventOf(undefined));
  backlog.receiveMessage(messageOf(2));
  g.add(backlog);
  const kinds = connection.seen.map(({ kind }) => kind);
  t.same(kinds, ["message", "event", "message"]);
});
