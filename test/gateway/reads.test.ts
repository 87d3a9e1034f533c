// How the reads of one connection wait for each other, and for the client to take what was read.

import { createHistoryTurns, isRead, Reads } from "../../src/gateway/reads.ts";
import type { OperationKind } from "../../src/protocol/protocol.ts";
import { t } from "../support/suite.ts";
import { operator } from "./operation-world.ts";
import { seeded } from "./random.ts";
import { World } from "./world.ts";

const MAX_UNREAD = 100;

const turns = async (): Promise<void> => {
  for (let i = 0; i < 5; i++) await new Promise((done) => setImmediate(done));
};

/** Reads of a session, each of which goes on with `end`. */
function stage(uid = "a", line = createHistoryTurns()) {
  const { session, connection } = new World(seeded(1)).session({ uid });
  const reads = new Reads(session, MAX_UNREAD, line);
  const begun: string[] = [];
  const ends = new Map<string, () => void>();
  const run = (kind: OperationKind, name: string) =>
    reads.run(kind, () => {
      begun.push(name);
      return new Promise((done) => ends.set(name, () => done(undefined)));
    });
  const end = async (name: string) => {
    ends.get(name)?.();
    await turns();
  };
  return { session, connection, begun, run, end };
}

t.test("operations that read are known by their kind", async (t) => {
  const kinds: OperationKind[] = [
    ...(["history", "conversations", "stream", "presence", "watch"] as const),
    ...(["send", "recvack", "commandack", "cancel", "ping"] as const),
  ];
  t.same(kinds.filter(isRead), kinds.slice(0, 5));
});

t.test("four reads are under way at once, the rest wait in line", async (t) => {
  const { begun, run, end } = stage();
  const done = ["1", "2", "3", "4", "5", "6"].map((name) => run("history", name));
  t.same(begun, ["1", "2", "3", "4"], "at once");
  await turns();
  t.equal(begun.length, 4);
  await end("2");
  t.same(begun.slice(4), ["5"]);
  for (const name of ["1", "3", "4", "5", "6"]) await end(name);
  await Promise.all(done);
});

t.test("one list is made at a time, other reads pass", async (t) => {
  const { begun, run, end } = stage();
  for (const name of ["a", "b", "c"]) void run("conversations", name);
  for (const name of ["1", "2", "3", "4"]) void run("presence", name);
  t.same(begun, ["a", "1", "2", "3"]);
  await end("1");
  t.same(begun.slice(4), ["4"]);
  await end("a");
  t.same(begun.slice(5), ["b"]);
});

t.test("a read keeps its place until the client took its answer", async (t) => {
  const { session, connection, begun, run, end } = stage();
  for (const name of ["1", "2", "3", "4", "5"]) void run("history", name);
  connection.unread = MAX_UNREAD + 1;
  await end("1");
  t.same(begun.slice(4), []);
  connection.unread = MAX_UNREAD;
  session.drained();
  await turns();
  t.same(begun.slice(4), ["5"]);
});

t.test(
  "histories begin a few in a turn of the event loop, and hold up no others while the store is asked",
  async (t) => {
    const line = createHistoryTurns();
    const users = Array.from({ length: 20 }, (_, at) => stage(`u${at}`, line));
    const done = users.map(({ run }) => run("history", "1"));
    const begun = () => users.filter((one) => one.begun.length > 0).length;
    t.equal(begun(), 8, "at once");
    for (let at = 0; at < 3; at++) await turns();
    t.equal(begun(), 20, "though none has ended");
    for (const { end } of users) await end("1");
    await Promise.all(done);
  },
);

t.test("a read that fails gives up its place", async (t) => {
  const { session } = stage();
  const reads = new Reads(session, MAX_UNREAD, createHistoryTurns());
  for (let i = 0; i < 9; i++)
    await t.rejects(
      reads.run("conversations", () => Promise.reject(new Error("no"))),
      { message: "no" },
    );
});

t.test("what waits when the session ends is not read", async (t) => {
  const { session, begun, run, end } = stage();
  const done = ["a", "b", "c"].map((name) => run("conversations", name));
  session.disconnected("goodbye");
  await end("a");
  await Promise.all(done);
  t.same(begun, ["a"]);
});

t.test("a session's operations stand in one line", async (t) => {
  const world = new World(seeded(1));
  const alice = world.session({ uid: "alice" });
  const asked: number[] = [];
  const ends: (() => void)[] = [];
  const run = operator(world, {
    conversations: {
      async list(_uid, { offset }) {
        asked.push(offset);
        await new Promise<void>((done) => ends.push(done));
        return { conversations: [], more: false, looked: 0 };
      },
      change: () => Promise.reject(new Error("not asked for")),
    },
  });
  const done = [1, 2, 3].map((offset) =>
    run(alice, { kind: "conversations", ref: offset, limit: 1, offset }),
  );
  await turns();
  t.same(asked, [1]);
  await run(alice, { kind: "ping", ref: 9 });
  for (const count of [2, 3, 3]) {
    ends.shift()?.();
    await turns();
    t.equal(asked.length, count);
  }
  await Promise.all(done);
  t.match(
    alice.connection.seen.map((one) => one.kind === "reply" && one.reply.ref),
    [9, 1, 2, 3],
  );
});
