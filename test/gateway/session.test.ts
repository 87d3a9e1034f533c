// A session: the limit of held bytes, waiting until the client has read, and ending once.

import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { seeded } from "./random.ts";
import { type Joiner, World } from "./world.ts";

const joiner = (maxHeldBytes = 10_000): Joiner =>
  new World(seeded(1)).session({ uid: "alice", maxHeldBytes });

const turn = (): Promise<void> => new Promise((done) => setImmediate(done));

t.test(
  "`session.writable(n)` resolves when the number of unread bytes has fallen to n",
  async (t) => {
    const { session, connection } = joiner();
    connection.unread = 101;
    let isWritable = false;
    const waiting = session.writable(100).then(() => {
      isWritable = true;
    });
    await turn();
    session.drained();
    await turn();
    t.notOk(isWritable, "the client has not read enough yet");
    connection.unread = 100;
    session.drained();
    await waiting;
  },
);

t.test(
  "calls to `session.writable` with different limits all resolve when the unread bytes fall to the lowest limit",
  async (t) => {
    const { session, connection } = joiner();
    connection.unread = 101;
    const waiting = Promise.all([session.writable(100), session.writable(50)]);
    await turn();
    connection.unread = 50;
    session.drained();
    await t.resolves(waiting);
  },
);

t.test("`session.writable` resolves when the session ends", async (t) => {
  for (const over of ["ended", "gone"] as const) {
    const { session, connection } = joiner();
    connection.unread = 1000;
    const waiting = session.writable(100);
    await turn();
    if (over === "ended") session.end("kicked");
    else session.disconnected("goodbye");
    await t.resolves(waiting, over);
  }
});

t.test("a session that is ended several times ends once, with the first reason", async (t) => {
  const { session, connection } = joiner();
  session.end("kicked");
  session.end("draining");
  session.disconnected("goodbye");
  t.equal(session.ended, "kicked");
  t.match(connection.seen, [{ kind: "disconnect", reason: "kicked" }]);
  t.equal(connection.seen.length, 1);
  t.equal(connection.endedWith, CLOSE_REASONS.kicked.code);
});

t.test("a replaced session is closed without a disconnect frame", async (t) => {
  const { session, connection } = joiner();
  session.end("replaced");
  t.same(connection.frames, []);
  t.equal(connection.endedWith, CLOSE_REASONS.replaced.code);
});

t.test("a session whose connection closed sends nothing more", async (t) => {
  const { session, connection } = joiner();
  session.disconnected("slow_reader");
  session.end("kicked");
  t.equal(session.ended, "slow_reader");
  t.same(connection.frames, []);
});

t.test(
  "a session is ended as a slow reader if its backlogs together exceed `maxHeldBytes`",
  async (t) => {
    const { session, connection } = joiner(2000);
    session.charge(1000);
    session.charge(900);
    session.charge(-900);
    session.charge(900);
    t.equal(session.ended, undefined);
    session.charge(200);
    t.equal(session.ended, "slow_reader");
    t.equal(connection.endedWith, CLOSE_REASONS.slow_reader.code);
  },
);
