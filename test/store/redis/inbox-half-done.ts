// Commands on Redis that were not put into all inboxes at once, whoever should have done it: retries and sweeps finish them, each recipient has one.

import type { Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import type { CommandDraft } from "../../../src/broker/ports.ts";
import { bucketOf } from "../../../src/redis/keys.ts";
import { claim } from "../../../src/store/redis/inbox-claims.ts";
import { notedCommand } from "../../../src/store/redis/inbox-record.ts";
import type { RedisStoreLimits } from "../../../src/store/redis/parts.ts";
import { codeOf } from "../../contract/store-bench.ts";
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

export type Start = (
  t: Test,
  over?: Partial<InboxOptions>,
) => Promise<InboxBench>;

export const retry = (over: Parameters<typeof commandOf>[0] = {}) =>
  commandOf({ clientMsgNo: "c-1", dedupe: true, ...over });

/** A node takes the command and dies. */
const leftBy = (
  { link, time, problems }: InboxBench,
  draft: CommandDraft,
): Promise<unknown> => {
  const nowMs = time.nowMs;
  const command = notedCommand(draft, nowMs, HOUR_S * 1000);
  const limits = { dedupeWindowS: HOUR_S } as RedisStoreLimits;
  const onProblem = (error: unknown) => problems.push(error);
  return claim({ link, limits, onProblem }, draft, { command, nowMs });
};

export const USERS = Array.from({ length: 40 }, (_, i) => `u${i}`);

/** A command that some of USERS have and some do not, with the node that failed to finish it; `repair` makes it possible. */
async function halfDoneIn(
  t: Test,
  start: Start,
  limits: Partial<RedisStoreLimits> = {},
) {
  const prefix = freshPrefix();
  const failed = await start(t, { prefix, limits });
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

export function halfDone(t: Test, start: Start): void {
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

  t.test("however many cannot be finished, others have a turn", async (t) => {
    const { prefix } = await halfDoneIn(t, start);
    const bench = await start(t, { prefix });
    const { inbox, time } = bench;
    const bad = commandOf({ recipients: ["u30"] });
    const calls = Array.from({ length: 110 }, () => inbox.appendCommand(bad));
    await Promise.allSettled(calls);
    time.nowMs += 1;
    await leftBy(bench, commandOf({ recipients: ["bob"] }));
    const large = new Uint8Array(700_000);
    for (const uid of ["carol", "dave"])
      await leftBy(bench, commandOf({ recipients: [uid], payload: large }));
    time.nowMs += 60_000;
    const have = async () =>
      (await Promise.all(["bob", "carol", "dave"].map(bench.seqs))).flat();
    const counts: number[] = [];
    for (let sweeps = 0; sweeps < 3; sweeps++) {
      await inbox.sweep();
      counts.push((await have()).length);
    }
    t.same(counts, [0, 2, 3], "a hundred or a megabyte at once");
    t.equal(await unfinishedIn(bench, "2:g"), 111);
  });

  t.test(
    "one that is finished late is given to nobody who may have had it",
    async (t) => {
      const limits = { inboxTtlS: 1_000_000 };
      const { prefix, repair } = await halfDoneIn(t, start, limits);
      const bench = await start(t, { prefix, limits });
      const { inbox, time } = bench;
      await inbox.acknowledgeCommands("u1", [1, 2]);
      await inbox.acknowledgeCommands("u2", [1, 2]);
      for (let i = 0; i < 150; i++) {
        time.nowMs += 60_000;
        const recipients = i < 90 ? ["u1", "u2"] : ["u1"];
        await inbox.appendCommand(commandOf({ recipients }));
      }
      await repair();
      await inbox.sweep();
      t.equal((await bench.seqs("u1")).length, 150, "forgotten");
      t.equal((await bench.seqs("u2")).length, 90, "still known");
      t.equal((await bench.seqs("u30")).length, 2, "it never had it");
      t.equal(inbox.counts.dropped, 1);
      await eachHasItOnce(t, bench, ["u1", "u2"]);
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
