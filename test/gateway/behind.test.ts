// What a session is not given yet, one object at a time: where snapshots, what was shown before, and what is withheld meet.

import t from "tap";
import {
  type ChannelEvent,
  STREAM_CONTENT,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import { Group } from "../../src/gateway/group.ts";
import { seeded } from "./random.ts";
import { group, type Joiner, World } from "./world.ts";

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
    stream:
      index === undefined
        ? undefined
        : { ...place, nextIndex: index + 1, state: "active" },
  };
}

function joiner(maxHeldBytes = 10_000): Joiner {
  return new World(seeded(1)).session({ uid: "alice", maxHeldBytes });
}

/** Kind and content of each push. */
const contents = ({ connection }: Joiner): readonly string[] =>
  connection.seen.map((one) => {
    if (one.kind === "stream") return `snapshot ${one.snapshot.text}`;
    return one.kind === "event" ? one.event.data || "end" : one.kind;
  });

t.test(
  "a joining session is given the snapshot and what follows",
  async (t) => {
    const alice = joiner();
    const behind = new Group("g").add(alice.session);
    for (const index of [2, 3, 4, 5]) behind.withhold(eventOf(index));
    behind.settle([snapshotOf(3)], []);
    t.same(contents(alice), ["snapshot abc", "d", "e"]);
  },
);

t.test(
  "of content that came merged the session is given what the snapshot lacks",
  async (t) => {
    const alice = joiner();
    const behind = new Group("g").add(alice.session);
    const place = { messageSeq: 1, index: 2, nextIndex: 6, textOffset: 1 };
    behind.withhold({
      ...eventOf(2),
      data: "bcde",
      stream: { ...place, state: "active" },
    });
    behind.withhold(eventOf(6));
    behind.settle([snapshotOf(3)], []);
    t.same(contents(alice), ["snapshot abc", "de", "f"]);
  },
);

t.test("what belongs to a stream that is over is left out", async (t) => {
  const alice = joiner();
  const behind = new Group("g").add(alice.session);
  behind.withhold(eventOf(5));
  behind.settle([], []);
  t.same(contents(alice), []);
});

t.test(
  "a stream the client was shown and that ended meanwhile is told to its end",
  async (t) => {
    const alice = joiner();
    alice.session.opened(snapshotOf(2));
    alice.session.opened(snapshotOf(1)); // an older answer
    const behind = new Group("g").add(alice.session);
    t.ok(behind.mustRead);
    behind.withhold(eventOf(undefined));
    behind.settle([], [snapshotOf(5, true)]);
    t.same(contents(alice), ["cde", "end", "beside"]);
  },
);

t.test("a client that was told more is not set back", async (t) => {
  const alice = joiner();
  const behind = new Group("g").add(alice.session);
  behind.shown(snapshotOf(4));
  for (const index of [3, 4, 5]) behind.withhold(eventOf(index));
  behind.settle([snapshotOf(2)], []);
  t.same(contents(alice), ["e"]);
});

t.test(
  "of a stream the store has lost nothing more is told, nor of a gap",
  async (t) => {
    const alice = joiner();
    const behind = new Group("g").add(alice.session);
    behind.shown(snapshotOf(1));
    behind.wait();
    behind.withhold(eventOf(2));
    behind.read();
    behind.withhold(eventOf(3));
    behind.settle([], []);
    t.same(contents(alice), []);
  },
);

t.test("leaving the group gives back what was kept", async (t) => {
  const { session } = joiner(1000);
  const g = new Group("g");
  for (let round = 0; round < 10; round++) {
    const behind = g.add(session);
    for (const index of [1, 2]) behind.withhold(eventOf(index));
    g.remove(session);
    t.ok(behind.isOver);
  }
  t.equal(session.ended, undefined);
});
