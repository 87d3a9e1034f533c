// A session's pushes: holding and releasing, the bound on what is held, waiting for the client to read, ending once.

import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import type { Message } from "../../src/broker/model.ts";
import { seeded } from "./random.ts";
import { group, type Joiner, World } from "./world.ts";

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

const joiner = (maxHeldBytes = 10_000): Joiner =>
  new World(seeded(1)).session({ uid: "alice", maxHeldBytes });

const turn = (): Promise<void> => new Promise((done) => setImmediate(done));

t.test("a new session holds until it is released, in order", async (t) => {
  const { session, connection } = joiner();
  t.ok(session.isHolding);
  for (const seq of [3, 0, 4]) session.hold(messageOf(seq));
  t.same(connection.frames, []);
  session.release(new Map());
  t.notOk(session.isHolding);
  t.same(connection.messageNos, ["n3", "n0", "n4"]);
});

t.test("a release leaves out what the cursors say it has", async (t) => {
  const { session, connection } = joiner();
  for (const seq of [3, 4, 0, 5]) session.hold(messageOf(seq));
  session.release(
    new Map([
      ["2:g", 4],
      ["2:other", 9],
    ]),
  );
  t.same(connection.messageNos, ["n0", "n5"], "and what has no seq passes");
});

t.test("holding again starts from nothing", async (t) => {
  const { session, connection } = joiner();
  session.hold(messageOf(1));
  session.release(new Map());
  session.startHolding();
  session.hold(messageOf(2));
  session.startHolding();
  session.release(new Map());
  t.same(connection.messageNos, ["n1", "n2"]);
});

t.test(
  "more than the bound held ends the session as a slow reader",
  async (t) => {
    const { session, connection } = joiner(2000);
    session.hold(messageOf(1, 1000));
    t.equal(session.ended, undefined);
    session.hold(messageOf(2, 1000));
    t.equal(session.ended, "slow_reader");
    t.equal(connection.endedWith, CLOSE_REASONS.slow_reader.code);
    session.hold(messageOf(3));
    session.release(new Map());
    t.match(connection.seen, [{ kind: "disconnect", reason: "slow_reader" }]);
  },
);

t.test("messages without a payload are bounded too", async (t) => {
  const { session } = joiner(10_000);
  for (let seq = 1; seq <= 100; seq++) session.hold(messageOf(seq, 0));
  t.equal(session.ended, "slow_reader");
});

t.test("the bound is on what is held at one time", async (t) => {
  const { session } = joiner(2000);
  for (let seq = 1; seq <= 10; seq++) {
    session.startHolding();
    session.hold(messageOf(seq, 1000));
    if (seq % 2 === 0) session.dropHeld("g");
    else session.release(new Map());
  }
  t.equal(session.ended, undefined);
});

t.test("what is dropped of one group leaves the others", async (t) => {
  const { session, connection } = joiner();
  session.hold(messageOf(1));
  session.hold({ ...messageOf(2), channel: group("h"), key: "2:h" });
  session.hold({ ...messageOf(3), channel: { id: "g", type: 1 }, key: "1:g" });
  session.dropHeld("g");
  session.release(new Map());
  t.same(connection.messageNos, ["n2", "n3"]);
  session.dropHeld("g");
  t.notOk(session.isHolding, "dropping of a live session starts no hold");
});

t.test("it is writable once the client has read enough", async (t) => {
  const { session, connection } = joiner();
  connection.unread = 101;
  let isWritable = false;
  const waiting = session.writable(100).then(() => {
    isWritable = true;
  });
  await turn();
  session.drained();
  await turn();
  t.notOk(isWritable, "drained, but not enough");
  connection.unread = 100;
  session.drained();
  await waiting;
});

t.test("all who wait are woken once the client has read enough", async (t) => {
  const { session, connection } = joiner();
  connection.unread = 101;
  const waiting = Promise.all([session.writable(100), session.writable(50)]);
  await turn();
  connection.unread = 50;
  session.drained();
  await t.resolves(waiting);
});

t.test("what is kept elsewhere counts against the same bound", async (t) => {
  const { session } = joiner(2000);
  session.hold(messageOf(1, 700));
  session.charge(900);
  session.charge(-900);
  session.charge(900);
  t.equal(session.ended, undefined);
  session.charge(200);
  t.equal(session.ended, "slow_reader");
});

t.test("an event keeps its turn among held messages", async (t) => {
  const { session, connection } = joiner();
  const channel = group("g");
  const event = {
    ...{ key: "2:g", channel, fromUid: "bob", clientMsgNo: "e", eventId: "1" },
    ...{ type: "x", data: "", timestampMs: 0, stream: undefined },
  };
  session.hold(messageOf(1));
  session.pushInTurn({ kind: "event", channel, event });
  session.hold(messageOf(2));
  session.dropHeld("other");
  session.release(new Map());
  session.pushInTurn({ kind: "event", channel, event });
  const kinds = connection.seen.map(({ kind }) => kind);
  t.same(kinds, ["message", "event", "message", "event"]);
});

t.test("nobody waits for a client that is gone", async (t) => {
  for (const over of ["ended", "gone"] as const) {
    const { session, connection } = joiner();
    connection.unread = 1000;
    const waiting = session.writable(100);
    await turn();
    if (over === "ended") session.end("kicked");
    else session.gone("goodbye");
    await t.resolves(waiting, over);
  }
});

t.test("it ends once, for the first reason", async (t) => {
  const { session, connection } = joiner();
  session.end("kicked");
  session.end("draining");
  session.gone("goodbye");
  t.equal(session.ended, "kicked");
  t.match(connection.seen, [{ kind: "disconnect", reason: "kicked" }]);
  t.equal(connection.seen.length, 1);
  t.equal(connection.endedWith, CLOSE_REASONS.kicked.code);
});

t.test("a replaced session is closed without a word", async (t) => {
  const { session, connection } = joiner();
  session.end("replaced");
  t.same(connection.frames, []);
  t.equal(connection.endedWith, CLOSE_REASONS.replaced.code);
});

t.test("a session whose connection is gone says nothing more", async (t) => {
  const { session, connection } = joiner();
  session.hold(messageOf(1));
  session.gone("slow_reader");
  session.end("kicked");
  session.release(new Map());
  t.equal(session.ended, "slow_reader");
  t.same(connection.frames, []);
});
