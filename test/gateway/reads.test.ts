// The reads of one connection: how they wait for each other, and for the client to read the
// replies.

import { BrokerError } from "../../src/broker/errors.ts";
import { createHistoryTurns, isRead, Reads } from "../../src/gateway/reads.ts";
import type { Operation, OperationKind } from "../../src/protocol/protocol.ts";
import { codeOf } from "../contract/store-fixture.ts";
import { t } from "../support/suite.ts";
import { operator } from "./operation-world.ts";
import { seeded } from "./random.ts";
import { World } from "./world.ts";

const MAX_UNREAD = 100;

const turns = async (): Promise<void> => {
  for (let i = 0; i < 5; i++) await new Promise((done) => setImmediate(done));
};

/** Creates the reads of a session. Each read runs until `end` is called. */
function createFixture(uid = "a", historyTurns = createHistoryTurns()) {
  const { session, connection } = new World(seeded(1)).session({ uid });
  const reads = new Reads(session, MAX_UNREAD, historyTurns);
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

t.test(
  "the operations `history`, `conversations`, `stream`, `presence` and `watch` count as reads",
  async (t) => {
    const kinds: OperationKind[] = [
      ...(["history", "conversations", "stream", "presence", "watch"] as const),
      ...(["send", "recvack", "commandack", "cancel", "ping"] as const),
    ];
    const isReadOf = (kind: OperationKind) => isRead({ kind } as Operation); // only the kind counts
    t.same(kinds.filter(isReadOf), kinds.slice(0, 5));
  },
);

t.test("a CONVERSATION counts as a read unless it changes the conversation", async (t) => {
  const conversation = { kind: "conversation", ref: 1, channel: { id: "g", type: 2 } } as const;
  t.ok(isRead({ ...conversation, change: undefined }));
  t.notOk(isRead({ ...conversation, change: { kind: "delete" } }));
});

t.test("a read of unknown cost is rejected if it starts while the budget is in debt", async (t) => {
  const { session, begun, run, end } = createFixture();
  const first = ["1", "2", "3", "4"].map((name) => run("stream", name));
  const kinds: OperationKind[] = ["stream", "conversation", "conversations", "members"];
  const waiting = kinds.map((kind) => run(kind, kind));
  const codes = Promise.all(waiting.map((read) => codeOf(read)));
  session.rate = {
    admitEvent() {},
    requirePaid() {
      throw new BrokerError("rate_limited");
    },
    pushedPage() {},
    pageWaitMs: () => 0,
  };
  for (const name of ["1", "2", "3", "4"]) await end(name);
  await Promise.all(first);
  t.same(await codes, Array(kinds.length).fill("rate_limited"));
  t.equal(begun.length, 4, "none of them has begun");
});

t.test("four reads of a session run at the same time, and further reads wait", async (t) => {
  const { begun, run, end } = createFixture();
  const done = ["1", "2", "3", "4", "5", "6"].map((name) => run("stream", name));
  t.same(begun, ["1", "2", "3", "4"], "four reads start at once");
  await turns();
  t.equal(begun.length, 4);
  await end("2");
  t.same(begun.slice(4), ["5"]);
  for (const name of ["1", "3", "4", "5", "6"]) await end(name);
  await Promise.all(done);
});

t.test(
  "only one conversation list is read at a time, and other reads do not wait for it",
  async (t) => {
    const { begun, run, end } = createFixture();
    for (const name of ["a", "b", "c"]) void run("conversations", name);
    for (const name of ["1", "2", "3", "4"]) void run("presence", name);
    t.same(begun, ["a", "1", "2", "3"]);
    await end("1");
    t.same(begun.slice(4), ["4"]);
    await end("a");
    t.same(begun.slice(5), ["b"]);
  },
);

t.test(
  "a read that has ended keeps its slot until the unread bytes of the client are within the limit",
  async (t) => {
    const { session, connection, begun, run, end } = createFixture();
    for (const name of ["1", "2", "3", "4", "5"]) void run("history", name);
    connection.unread = MAX_UNREAD + 1;
    await end("1");
    t.same(begun.slice(4), []);
    connection.unread = MAX_UNREAD;
    session.drained();
    await turns();
    t.same(begun.slice(4), ["5"]);
  },
);

t.test(
  "only two history reads start in the first turn of the event loop, and the others start in later turns, even if no read has ended",
  async (t) => {
    const historyTurns = createHistoryTurns();
    const users = Array.from({ length: 20 }, (_, at) => createFixture(`u${at}`, historyTurns));
    const done = users.map(({ run }) => run("history", "1"));
    const begun = () => users.filter((one) => one.begun.length > 0).length;
    t.equal(begun(), 2, "two reads start at once");
    for (let at = 0; at < 10; at++) await turns();
    t.equal(begun(), 20, "all reads have started, although no read has ended");
    for (const { end } of users) await end("1");
    await Promise.all(done);
  },
);

t.test("a read that fails frees its slot", async (t) => {
  const { session } = createFixture();
  const reads = new Reads(session, MAX_UNREAD, createHistoryTurns());
  for (let i = 0; i < 9; i++)
    await t.rejects(
      reads.run("conversations", () => Promise.reject(new Error("no"))),
      { message: "no" },
    );
});

t.test("reads that are still waiting when the session ends are not run", async (t) => {
  const { session, begun, run, end } = createFixture();
  const done = ["a", "b", "c"].map((name) => run("conversations", name));
  session.disconnected("goodbye");
  await end("a");
  await Promise.all(done);
  t.same(begun, ["a"]);
});

t.test(
  "a session's conversation lists are read one after the other, and a ping does not wait for them",
  async (t) => {
    const world = new World(seeded(1));
    const alice = world.session({ uid: "alice" });
    const cursors: (string | undefined)[] = [];
    const ends: (() => void)[] = [];
    const run = operator(world, {
      conversations: {
        async list(_uid, { cursor }) {
          cursors.push(cursor);
          await new Promise<void>((done) => ends.push(done));
          return { conversations: [], cursor: undefined, readCount: 0 };
        },
        change: () => Promise.reject(new Error("this test changes no conversation")),
      },
    });
    const done = [1, 2, 3].map((ref) =>
      run(alice, { kind: "conversations", ref, limit: 1, cursor: `c${ref}` }),
    );
    await turns();
    t.same(cursors, ["c1"]);
    await run(alice, { kind: "ping", ref: 9 });
    for (const count of [2, 3, 3]) {
      ends.shift()?.();
      await turns();
      t.equal(cursors.length, count);
    }
    await Promise.all(done);
    t.match(
      alice.connection.seen.map((one) => one.kind === "reply" && one.reply.ref),
      [9, 1, 2, 3],
    );
  },
);
