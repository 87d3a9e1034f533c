// Command inboxes on Redis: what the contract does not ask. Bounds, expiry and reclaimed storage, retries of half-done commands, large fan-outs.

import t, { type Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import type { CommandDraft } from "../../../src/broker/ports.ts";
import { bucketOf } from "../../../src/redis/keys.ts";
import { codeOf } from "../../contract/store-bench.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { startRedis, startRedisCluster } from "../../support/redis.ts";
import {
  copiesOf,
  freshPrefix,
  HOUR_S,
  type InboxBench,
  type InboxOptions,
  keysOf,
  PAGE,
  startInbox,
  unfinishedIn,
} from "./inbox-bench.ts";

type Start = (t: Test, over?: Partial<InboxOptions>) => Promise<InboxBench>;

const retry = (over: Parameters<typeof commandOf>[0] = {}) =>
  commandOf({ clientMsgNo: "c-1", dedupe: true, ...over });

function bounds(t: Test, start: Start): void {
  t.test("a full inbox loses its oldest copies, counted", async (t) => {
    const bench = await start(t, { limits: { maxInbox: 5 } });
    const { inbox } = bench;
    for (let i = 0; i < 4; i++) await inbox.appendCommand(commandOf());
    t.equal(await inbox.acknowledgeCommands("bob", [2, 3]), 2);
    await Promise.all(
      Array.from({ length: 5 }, () =>
        inbox.appendCommand(commandOf({ recipients: ["bob", "carol"] })),
      ),
    );
    t.same(await bench.seqs("bob"), [5, 6, 7, 8, 9]);
    t.same(await bench.seqs("carol"), [1, 2, 3, 4, 5]);
    t.same(inbox.counts, { commands: 9, duplicates: 0, dropped: 2 });
  });

  t.test("what expired makes room and is not counted as lost", async (t) => {
    const bench = await start(t, { limits: { maxInbox: 3, inboxTtlS: 100 } });
    const { inbox, time } = bench;
    await inbox.appendCommand(commandOf());
    await inbox.appendCommand(commandOf({ expireS: 10 }));
    time.nowMs += 50_000;
    await inbox.appendCommand(commandOf());
    await inbox.appendCommand(commandOf());
    t.same(await bench.seqs("bob"), [1, 3, 4]);
    time.nowMs += 50_000;
    await inbox.appendCommand(commandOf());
    t.same(await bench.seqs("bob"), [3, 4, 5]);
    t.equal(inbox.counts.dropped, 0);
  });

  t.test("an expired copy is not counted when acknowledged", async (t) => {
    const { inbox, time, seqs } = await start(t, { limits: { inboxTtlS: 60 } });
    await inbox.appendCommand(commandOf());
    await inbox.appendCommand(commandOf({ expireS: 1 }));
    time.nowMs += 59_999;
    t.same(await seqs("bob"), [1]);
    await inbox.appendCommand(commandOf());
    time.nowMs += 1;
    t.same(await seqs("bob"), [3]);
    t.equal(await inbox.acknowledgeCommands("bob", [1, 2, 3]), 1);
  });

  t.test(
    "the storage of an idle inbox is reclaimed; its seq stays",
    async (t) => {
      const bench = await start(t, { limits: { inboxTtlS: 60 } });
      const { inbox } = bench;
      await inbox.appendCommand(commandOf({ expireS: 10 }));
      t.ok((await keysOf(bench, "bob")).copies <= 10_000);
      await inbox.appendCommand(commandOf());
      await inbox.appendCommand(commandOf({ expireS: 20 }));
      const ttls = await keysOf(bench, "bob");
      t.equal(ttls.inseq, -1);
      t.ok(ttls.copies > 50_000 && ttls.copies <= 60_000, "the last copy's");
      t.ok(ttls.ends > 10_000 && ttls.ends <= 20_000);
      t.ok(ttls.ids > 0);
    },
  );

  t.test("what a user was given is not remembered for ever", async (t) => {
    const bench = await start(t);
    const { inbox, link, time } = bench;
    for (let i = 0; i < 300; i++) {
      await inbox.appendCommand(commandOf());
      time.nowMs += 60_000;
    }
    const ids = await link.call("zcard", link.keys.user("inids", "bob"));
    t.ok(Number(ids) <= 101, `${ids} ids`);
  });

  t.test("more under way than may be held is refused", async (t) => {
    const { inbox } = await start(t);
    const payload = new Uint8Array(20 * 1024 * 1024);
    const draft = commandOf({ recipients: [], payload });
    const calls = Array.from({ length: 4 }, () => inbox.appendCommand(draft));
    const codes = await Promise.all(calls.map(codeOf));
    t.same(codes, [undefined, undefined, undefined, "overloaded"]);
    t.equal(await codeOf(inbox.appendCommand(commandOf())), undefined);
  });
}

const USERS = Array.from({ length: 40 }, (_, i) => `u${i}`);

/** A command that some of USERS have and some do not, with the node that failed to finish it; `repair` makes it possible. */
async function halfDoneIn(t: Test, start: Start) {
  const prefix = freshPrefix();
  const failed = await start(t, { prefix });
  const { link, inbox } = failed;
  await inbox.appendCommand(commandOf({ recipients: USERS }));
  const bad = link.keys.user("in", "u30");
  await link.call("rename", bad, `${bad}-aside`);
  await link.call("set", bad, "no inbox");
  const draft = retry({ recipients: USERS, alsoTell: ["alice"] });
  t.equal(await codeOf(inbox.appendCommand(draft)), "internal");
  const repair = () => link.call("rename", `${bad}-aside`, bad);
  return { prefix, failed, draft, repair };
}

/** Every user has the command once, `acked` none of it any more. */
async function eachHasItOnce(
  t: Test,
  bench: InboxBench,
  acked: readonly string[] = [],
) {
  const counts = await Promise.all(
    USERS.map(async (uid) => {
      const has = await bench.inbox.readInbox(uid, 0, PAGE);
      return has.filter((c) => c.message.clientMsgNo === "c-1").length;
    }),
  );
  t.same(
    counts,
    USERS.map((uid) => (acked.includes(uid) ? 0 : 1)),
  );
  t.equal(await unfinishedIn(bench, "2:g"), 0, "nothing is noted any more");
}

function halfDone(t: Test, start: Start): void {
  t.test("nothing is noted of a command that all have", async (t) => {
    const bench = await start(t);
    await bench.inbox.appendCommand(retry({ recipients: USERS }));
    await eachHasItOnce(t, bench);
  });

  t.test(
    "a retry on another node finishes it; nobody gets it twice",
    async (t) => {
      const { prefix, draft, repair } = await halfDoneIn(t, start);
      const users = ["u1", "u2", "u30", "alice"];
      const bench = await start(t, { prefix, users });
      t.equal(await codeOf(bench.inbox.appendCommand(draft)), "internal");
      await repair();
      t.equal(await bench.inbox.acknowledgeCommands("u1", [2]), 1);
      const [one, other] = await Promise.all([
        bench.inbox.appendCommand(draft),
        bench.inbox.appendCommand(draft),
      ]);
      t.same(one, { ...one, messageSeq: 0, duplicate: true });
      t.same(other, one);
      await eachHasItOnce(t, bench, ["u1"]);
      const told = copiesOf(bench).filter(({ uid }) => uid !== "alice");
      t.same(
        told.map(({ uid }) => uid),
        ["u30"],
        "who has it is not told again",
      );
      t.ok(copiesOf(bench).some(({ uid }) => uid === "alice"));
      t.same(await bench.inbox.appendCommand(draft), one);
      t.equal(copiesOf(bench).filter(({ uid }) => uid === "u30").length, 1);
    },
  );

  t.test("who is about to answer a retry can have it finished", async (t) => {
    const { prefix, failed, repair } = await halfDoneIn(t, start);
    const [{ message } = { message: undefined }] = (
      await failed.inbox.readInbox("u0", 1, PAGE)
    ).values();
    const bench = await start(t, { prefix });
    await repair();
    await bench.inbox.settle("2:g", message?.messageId ?? 0);
    await eachHasItOnce(t, bench);
    await bench.inbox.settle("2:g", message?.messageId ?? 0);
    await bench.inbox.settle("2:g", 1);
  });

  t.test("a sweep finishes it when it is surely nobody's", async (t) => {
    const { prefix, repair } = await halfDoneIn(t, start);
    const bench = await start(t, { prefix });
    await repair();
    bench.time.nowMs += 59_999;
    await bench.inbox.sweep();
    t.equal(await unfinishedIn(bench, "2:g"), 1);
    bench.time.nowMs += 1;
    await bench.inbox.sweep();
    await eachHasItOnce(t, bench);
  });

  t.test(
    "what cannot be finished or read keeps no other from it",
    async (t) => {
      const { prefix } = await halfDoneIn(t, start);
      const bench = await start(t, { prefix });
      const { link, inbox } = bench;
      const bucket = bucketOf("2:g");
      const [at, notes] = [
        link.keys.bucket("cmdat", bucket),
        link.keys.bucket("cmd", bucket),
      ];
      await link.call("zadd", at, 2, "2");
      await link.call("hset", notes, "2", Buffer.from([0x91, 99]));
      await link.call("zadd", at, 1, "1"); // its note is gone
      bench.time.nowMs += 60_000;
      await inbox.sweep();
      t.equal(bench.problems.length, 2);
      t.equal(await link.call("zcard", at), 2, "both are kept");
      t.equal(await codeOf(inbox.settle("2:g", 2)), "internal");
    },
  );

  t.test("a command that ended meanwhile is only forgotten", async (t) => {
    const { prefix } = await halfDoneIn(t, start);
    const bench = await start(t, { prefix });
    bench.time.nowMs += HOUR_S * 1000;
    await bench.inbox.sweep();
    t.equal(await unfinishedIn(bench, "2:g"), 0);
    t.same(bench.problems, []);
  });

  t.test(
    "what replicas may not have is not acknowledged; its retry is one",
    async (t) => {
      let failures = 1;
      const written = () =>
        failures-- > 0
          ? Promise.reject(new BrokerError("unavailable"))
          : undefined;
      const bench = await start(t, { written });
      const draft = retry({ recipients: USERS });
      t.equal(await codeOf(bench.inbox.appendCommand(draft)), "unavailable");
      t.equal((await bench.inbox.appendCommand(draft)).duplicate, true);
      await eachHasItOnce(t, bench);
    },
  );
}

function atOnce(t: Test, start: Start): void {
  t.test(
    "of the same call on three nodes one is new, and each recipient has it once",
    async (t) => {
      const prefix = freshPrefix();
      const nodes = await Promise.all(
        [1, 2, 3].map(() => start(t, { prefix, users: ["u0"] })),
      );
      for (let i = 0; i < 10; i++) {
        const draft = retry({ clientMsgNo: `c-${i}`, recipients: USERS });
        const answers = await Promise.all(
          nodes.map(async (node) => {
            const answer = await node.inbox.appendCommand(draft);
            t.equal(copiesOf(node).length, i + 1, "its listener has it");
            return answer;
          }),
        );
        t.equal(new Set(answers.map((a) => a.messageId)).size, 1);
        t.equal(answers.filter((a) => !a.duplicate).length, 1);
      }
      const [node] = nodes;
      for (const uid of USERS)
        t.same(await node?.seqs(uid), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    },
  );

  t.test(
    "commands of two nodes come in the order of their inboxSeqs",
    async (t) => {
      const prefix = freshPrefix();
      const users = ["bob", "carol"];
      const nodes = await Promise.all(
        [1, 2].map(() => start(t, { prefix, users })),
      );
      await Promise.all(
        Array.from({ length: 100 }, (_, i) =>
          nodes[i % 2]?.inbox.appendCommand(
            commandOf({
              fromUid: `f${i % 3}`,
              channel: { id: `g${i % 5}`, type: 2 },
              recipients: users,
            }),
          ),
        ),
      );
      const expected = Array.from({ length: 100 }, (_, i) => i + 1);
      for (const node of nodes)
        for (const uid of users)
          t.same(
            copiesOf(node)
              .filter((c) => c.uid === uid)
              .map((c) => c.inboxSeq),
            expected,
          );
    },
  );

  t.test(
    "a large command stays within what may be in flight, and small ones pass it",
    async (t) => {
      const bench = await start(t, { maxInFlight: 100 });
      const recipients = Array.from({ length: 3000 }, (_, i) => `user-${i}`);
      const done: string[] = [];
      const send = async (id: string, to: readonly string[]) => {
        const channel = { id, type: 2 } as const;
        await bench.inbox.appendCommand(commandOf({ channel, recipients: to }));
        done.push(`${id} ${to.length}`);
      };
      await Promise.all([
        send("a", recipients),
        send("a", ["user-2999"]),
        send("b", ["user-0"]),
      ]);
      t.same(done, ["b 1", "a 3000", "a 1"]);
      t.same(await bench.seqs("user-1500"), [1]);
      const last = await bench.inbox.readInbox("user-2999", 0, PAGE);
      const ids = last.map((c) => c.message.messageId);
      t.same(
        ids,
        ids.toSorted((x, y) => x - y),
        "one channel keeps its order",
      );
    },
  );
}

const suites = (t: Test, start: Start): void => {
  bounds(t, start);
  halfDone(t, start);
  atOnce(t, start);
};

t.test("one server", async (t) => {
  const server = await startRedis(t);
  const { url } = server;
  suites(t, (t, over = {}) => startInbox(t, { url, ...over }));

  t.test(
    "calls cut off and retried give each recipient one copy",
    async (t) => {
      const bench = await startInbox(t, { url });
      const client = server.client();
      const until = async (draft: CommandDraft): Promise<number> => {
        for (let cuts = 0; ; cuts++)
          try {
            await bench.inbox.appendCommand(draft);
            return cuts;
          } catch (error) {
            if (!(error instanceof BrokerError && error.code === "unavailable"))
              throw error;
            await new Promise((resolve) => setTimeout(resolve, 10));
          }
      };
      const recipients = Array.from({ length: 400 }, (_, i) => `u${i}`);
      let cuts = 0;
      for (let round = 0; round < 5; round++) {
        const calls = Array.from({ length: 10 }, (_, i) =>
          until(retry({ clientMsgNo: `${round}-${i}`, recipients })),
        );
        await new Promise(setImmediate);
        await client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
        for (const count of await Promise.all(calls)) cuts += count;
      }
      t.ok(cuts > 0, "some were cut off");
      for (const uid of ["u0", "u200", "u399"]) {
        const nos = (await bench.inbox.readInbox(uid, 0, PAGE)).map(
          (c) => c.message.clientMsgNo,
        );
        t.equal(nos.length, 50);
        t.equal(new Set(nos).size, 50);
      }
    },
  );
});

t.test("a Cluster", async (t) => {
  const { url } = await startRedisCluster(t);
  suites(t, (t, over = {}) => startInbox(t, { url, ...over }));
});
