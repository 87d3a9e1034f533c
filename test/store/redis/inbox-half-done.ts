// Commands on Redis that were not put into all inboxes at once, whoever should have done it:
// retries and sweeps finish them, each recipient has one.

import type { Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import { bucketOf } from "../../../src/redis/keys.ts";
import type { RedisStoreLimits } from "../../../src/store/redis/ports.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import {
  copiesOf,
  freshPrefix,
  HOUR_S,
  type InboxBench,
  type InboxOptions,
  PAGE,
  unfinishedIn,
} from "./inbox-bench.ts";

export type Start = (t: Test, over?: Partial<InboxOptions>) => Promise<InboxBench>;

export const retry = (over: Parameters<typeof commandOf>[0] = {}) =>
  commandOf({ clientMsgNo: "c-1", ...over });

/** A command that is noted and that `uid` has no copy of. */
async function leftFor(
  { inbox, link }: InboxBench,
  uid: string,
  over: Parameters<typeof commandOf>[0] = {},
): Promise<void> {
  const key = link.keys.user("inbox", uid);
  await link.call("set", key, "no inbox");
  const call = inbox.appendCommand(commandOf({ recipients: [uid], ...over }));
  if ((await codeOf(call)) !== "internal") throw new Error("it was put");
  await link.call("del", key);
}

export const USERS = Array.from({ length: 40 }, (_, i) => `u${i}`);

/**
 * A command that some of USERS have and some do not, with the node that failed to finish it;
 * `repair` makes it possible.
 */
async function halfDoneIn(t: Test, start: Start, limits: Partial<RedisStoreLimits> = {}) {
  const prefix = freshPrefix();
  const failed = await start(t, { prefix, limits });
  const { link, inbox } = failed;
  await inbox.appendCommand(commandOf({ recipients: USERS }));
  const bad = link.keys.user("inbox", "u30");
  await link.call("rename", bad, `${bad}-aside`);
  await link.call("set", bad, "no inbox");
  const draft = retry({ recipients: USERS, pushOnlyRecipients: ["alice"] });
  t.equal(await codeOf(inbox.appendCommand(draft)), "internal");
  const repair = () => link.call("rename", `${bad}-aside`, bad);
  return { prefix, failed, draft, repair };
}

/** Every user has the command once, `acked` none of it any more. */
async function eachHasItOnce(t: Test, bench: InboxBench, acked: readonly string[] = []) {
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

export function halfDone(t: Test, start: Start): void {
  t.test("nothing is noted of a command that all have", async (t) => {
    const bench = await start(t);
    await bench.inbox.appendCommand(retry({ recipients: USERS }));
    await eachHasItOnce(t, bench);
  });

  t.test("a retry on another node finishes it; nobody gets it twice", async (t) => {
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
    await bench.arrived();
    const told = copiesOf(bench).filter(({ uid }) => uid !== "alice");
    t.same(
      told.map(({ uid }) => uid),
      ["u30"],
      "who has it is not told again",
    );
    t.ok(copiesOf(bench).some(({ uid }) => uid === "alice"));
    t.same(await bench.inbox.appendCommand(draft), one);
    await bench.arrived();
    t.equal(copiesOf(bench).filter(({ uid }) => uid === "u30").length, 1);
  });

  t.test("who is about to answer a retry can have it finished", async (t) => {
    const { prefix, failed, repair } = await halfDoneIn(t, start);
    const [{ message } = { message: undefined }] = (
      await failed.inbox.readInbox("u0", 1, PAGE)
    ).values();
    const bench = await start(t, { prefix });
    await repair();
    await bench.inbox.commands.settle("2:g", message?.messageId ?? 0);
    await eachHasItOnce(t, bench);
    await bench.inbox.commands.settle("2:g", message?.messageId ?? 0);
    await bench.inbox.commands.settle("2:g", 1);
  });

  t.test("a sweep finishes it when it is surely nobody's", async (t) => {
    const { prefix, repair } = await halfDoneIn(t, start);
    const bench = await start(t, { prefix });
    await repair();
    bench.time.nowMs += 59_999;
    await bench.inbox.commands.sweep();
    t.equal(await unfinishedIn(bench, "2:g"), 1);
    bench.time.nowMs += 2;
    await bench.inbox.commands.sweep();
    await eachHasItOnce(t, bench);
  });

  t.test("what cannot be finished or read keeps no other from it", async (t) => {
    const { prefix } = await halfDoneIn(t, start);
    const bench = await start(t, { prefix });
    const { link, inbox } = bench;
    const notes = link.keys.bucket("commands", bucketOf("2:g"));
    const [[last]] = (await link.call("xrange", notes, "-", "+")) as [[Buffer]];
    const id = Number.parseInt(String(last), 10) + 1;
    const newer = ["h", Buffer.from([0x91, 99]), "r", "", "u", ""];
    await link.call("xadd", notes, `${id}-0`, ...newer);
    bench.time.nowMs += 60_002;
    await inbox.commands.sweep();
    t.equal(bench.problems.length, 2);
    t.equal(await link.call("xlen", notes), 2, "both are kept");
    t.equal(await codeOf(inbox.commands.settle("2:g", id)), "internal");
  });

  t.test("however many cannot be finished, others are", async (t) => {
    const { prefix } = await halfDoneIn(t, start);
    const bench = await start(t, { prefix });
    const { inbox, time } = bench;
    const bad = commandOf({ recipients: ["u30"] });
    const calls = Array.from({ length: 110 }, () => inbox.appendCommand(bad));
    await Promise.allSettled(calls);
    time.nowMs += 10;
    const payload = new Uint8Array(700_000);
    const users = ["bob", "carol", "dave"];
    for (const uid of users) await leftFor(bench, uid, { payload });
    time.nowMs += 60_010;
    await inbox.commands.sweep();
    t.same(await Promise.all(users.map(bench.seqs)), [[1], [1], [1]]);
    t.equal(await unfinishedIn(bench, "2:g"), 111);
  });

  t.test("what sweeps could not finish within an hour is left to a retry", async (t) => {
    const limits = { inboxTtlS: 1_000_000 };
    const { prefix, draft, repair } = await halfDoneIn(t, start, limits);
    const over = { prefix, limits: { ...limits, dedupeWindowS: 2 * HOUR_S } };
    const bench = await start(t, over);
    const { inbox, time } = bench;
    await repair();
    time.nowMs += HOUR_S * 1000 + 1;
    await inbox.commands.sweep();
    t.same(await bench.seqs("u30"), [1]);
    t.equal((await inbox.appendCommand(draft)).duplicate, true);
    await eachHasItOnce(t, bench);
  });

  t.test(
    "of many nodes one at a time finishes what a bucket has, and none for a minute what could not be",
    async (t) => {
      const { prefix, repair } = await halfDoneIn(t, start);
      const nodes = await Promise.all(Array.from({ length: 4 }, () => start(t, { prefix })));
      const sweepAt = async (laterMs: number) => {
        for (const { time } of nodes) time.nowMs += laterMs;
        await Promise.all(nodes.map(({ inbox }) => inbox.commands.sweep()));
        return nodes.reduce((sum, { problems }) => sum + problems.length, 0);
      };
      t.equal(await sweepAt(60_002), 1);
      t.equal(await sweepAt(59_000), 1);
      t.equal(await sweepAt(1_000), 2);
      await repair();
      t.equal(await sweepAt(59_000), 2);
      const [node] = nodes;
      if (node === undefined) throw new Error("no node");
      t.equal(await unfinishedIn(node, "2:g"), 1);
      await sweepAt(1_000);
      await eachHasItOnce(t, node);

      await leftFor(node, "zoe");
      await sweepAt(30_000);
      await leftFor(node, "yves");
      const have = () => Promise.all(["zoe", "yves"].map(node.seqs));
      await sweepAt(30_002);
      t.same(await have(), [[1], []]);
      await sweepAt(30_000);
      t.same(await have(), [[1], [1]], "the node before was done");
    },
  );

  t.test("a command that ended meanwhile is only forgotten", async (t) => {
    const { prefix } = await halfDoneIn(t, start);
    const bench = await start(t, { prefix });
    bench.time.nowMs += HOUR_S * 1000 + 1;
    await bench.inbox.commands.sweep();
    t.equal(await unfinishedIn(bench, "2:g"), 0);
    t.same(bench.problems, []);
  });

  t.test("what replicas may not have is not acknowledged; its retry is one", async (t) => {
    let failures = 1;
    const waitForReplicas = () =>
      failures-- > 0 ? Promise.reject(new BrokerError("unavailable")) : undefined;
    const bench = await start(t, { waitForReplicas });
    const draft = retry({ recipients: USERS });
    t.equal(await codeOf(bench.inbox.appendCommand(draft)), "unavailable");
    t.equal((await bench.inbox.appendCommand(draft)).duplicate, true);
    await eachHasItOnce(t, bench);
  });
}
