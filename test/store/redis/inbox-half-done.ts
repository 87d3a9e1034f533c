// Commands whose copies were not put into all inboxes at once: retries and sweeps of any node
// complete such a command, and each recipient receives one copy.

import type { Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import { bucketOf } from "../../../src/broker/log-frame.ts";
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
  pendingIn,
} from "./inbox-bench.ts";

/** Starts inboxes for a test. */
export type Start = (t: Test, over?: Partial<InboxOptions>) => Promise<InboxBench>;

/** Returns a command with a `clientMsgNo`. Sending the command a second time is a retry. */
export const retry = (over: Parameters<typeof commandOf>[0] = {}) =>
  commandOf({ clientMsgNo: "c-1", ...over });

/** Sends a command whose copy for `uid` cannot be put into the inbox and stays pending. */
async function leavePending(
  { inbox, link }: InboxBench,
  uid: string,
  over: Parameters<typeof commandOf>[0] = {},
): Promise<void> {
  const key = link.keys.user("inbox", uid);
  await link.call("set", key, "no inbox");
  const call = inbox.appendCommand(commandOf({ recipients: [uid], ...over }));
  if ((await codeOf(call)) !== "internal") throw new Error("the copy was put");
  await link.call("del", key);
}

export const USERS = Array.from({ length: 40 }, (_, i) => `u${i}`);

/**
 * Sends a command that only some of USERS receive. Returns the node that could not complete the
 * command, and `repair`, after which the command can be completed.
 */
async function sendIncomplete(t: Test, start: Start, limits: Partial<RedisStoreLimits> = {}) {
  const prefix = freshPrefix();
  const failed = await start(t, { prefix, limits });
  const { link, inbox } = failed;
  await inbox.appendCommand(commandOf({ recipients: USERS }));
  const brokenInbox = link.keys.user("inbox", "u30");
  await link.call("rename", brokenInbox, `${brokenInbox}-aside`);
  await link.call("set", brokenInbox, "no inbox");
  const draft = retry({ recipients: USERS, pushOnlyRecipients: ["alice"] });
  t.equal(await codeOf(inbox.appendCommand(draft)), "internal");
  const repair = () => link.call("rename", `${brokenInbox}-aside`, brokenInbox);
  return { prefix, failed, draft, repair };
}

/** Asserts that every user has one copy of the command, except the users who acknowledged it. */
async function assertOneCopyEach(
  t: Test,
  bench: InboxBench,
  acknowledgedBy: readonly string[] = [],
) {
  const counts = await Promise.all(
    USERS.map(async (uid) => {
      const copies = await bench.inbox.readInbox(uid, 0, PAGE);
      return copies.filter(({ message }) => message.clientMsgNo === "c-1").length;
    }),
  );
  t.same(
    counts,
    USERS.map((uid) => (acknowledgedBy.includes(uid) ? 0 : 1)),
  );
  t.equal(await pendingIn(bench, "2:g"), 0, "no copies are pending any more");
}

export function halfDone(t: Test, start: Start): void {
  t.test("a command that all recipients have received is not pending", async (t) => {
    const bench = await start(t);
    await bench.inbox.appendCommand(retry({ recipients: USERS }));
    await assertOneCopyEach(t, bench);
  });

  t.test("a retry on another node completes a command without duplicate copies", async (t) => {
    const { prefix, draft, repair } = await sendIncomplete(t, start);
    const users = ["u1", "u2", "u30", "alice"];
    const bench = await start(t, { prefix, users });
    t.equal(await codeOf(bench.inbox.appendCommand(draft)), "internal");
    await repair();
    t.equal(await bench.inbox.acknowledgeCommands("u1", [2]), 1);
    const [first, second] = await Promise.all([
      bench.inbox.appendCommand(draft),
      bench.inbox.appendCommand(draft),
    ]);
    t.same(first, { ...first, messageSeq: 0, duplicate: true });
    t.same(second, first);
    await assertOneCopyEach(t, bench, ["u1"]);
    await bench.arrived();
    const copies = copiesOf(bench).filter(({ uid }) => uid !== "alice");
    t.same(
      copies.map(({ uid }) => uid),
      ["u30"],
      "users that already have the command receive no second event",
    );
    t.equal(
      copiesOf(bench).some(({ uid }) => uid === "alice"),
      bench.link.isCluster,
      "on a single server, the first call has notified alice",
    );
    t.same(await bench.inbox.appendCommand(draft), first);
    await bench.arrived();
    t.equal(copiesOf(bench).filter(({ uid }) => uid === "u30").length, 1);
  });

  t.test("`settle` completes an incomplete command", async (t) => {
    const { prefix, failed, repair } = await sendIncomplete(t, start);
    const [{ message } = { message: undefined }] = (
      await failed.inbox.readInbox("u0", 1, PAGE)
    ).values();
    const bench = await start(t, { prefix });
    await repair();
    await bench.inbox.commands.settle("2:g", message?.messageId ?? 0);
    await assertOneCopyEach(t, bench);
    await bench.inbox.commands.settle("2:g", message?.messageId ?? 0);
    await bench.inbox.commands.settle("2:g", 1);
  });

  t.test("a sweep completes a command that no node has worked on for a minute", async (t) => {
    const { prefix, repair } = await sendIncomplete(t, start);
    const bench = await start(t, { prefix });
    await repair();
    bench.time.nowMs += 59_999;
    await bench.inbox.commands.sweep();
    t.equal(await pendingIn(bench, "2:g"), 1);
    bench.time.nowMs += 2;
    await bench.inbox.commands.sweep();
    await assertOneCopyEach(t, bench);
  });

  t.test("a command that cannot be completed or decoded does not stop a sweep", async (t) => {
    const { prefix } = await sendIncomplete(t, start);
    const bench = await start(t, { prefix });
    const { link, inbox } = bench;
    const pendingKey = link.keys.bucket("commands", bucketOf("2:g"));
    const [[last]] = (await link.call("xrange", pendingKey, "-", "+")) as [[Buffer]];
    const id = Number.parseInt(String(last), 10) + 1;
    const newer = ["h", Buffer.from([0x91, 99]), "r", "", "u", ""];
    await link.call("xadd", pendingKey, `${id}-0`, ...newer);
    bench.time.nowMs += 60_002;
    await inbox.commands.sweep();
    t.equal(bench.problems.length, 2);
    t.equal(await link.call("xlen", pendingKey), 2, "both pending commands are kept");
    t.equal(await codeOf(inbox.commands.settle("2:g", id)), "internal");
  });

  t.test(
    "a sweep completes a command even if it follows many commands that cannot be completed",
    async (t) => {
      const { prefix } = await sendIncomplete(t, start);
      const bench = await start(t, { prefix });
      const { inbox, time } = bench;
      const failing = commandOf({ recipients: ["u30"] });
      const calls = Array.from({ length: 110 }, () => inbox.appendCommand(failing));
      await Promise.allSettled(calls);
      time.nowMs += 10;
      const payload = new Uint8Array(700_000);
      const users = ["bob", "carol", "dave"];
      for (const uid of users) await leavePending(bench, uid, { payload });
      time.nowMs += 60_010;
      await inbox.commands.sweep();
      t.same(await Promise.all(users.map(bench.seqs)), [[1], [1], [1]]);
      t.equal(await pendingIn(bench, "2:g"), 111);
    },
  );

  t.test(
    "a sweep does not complete a command that has been pending for an hour, but a retry does",
    async (t) => {
      const limits = { inboxTtlS: 1_000_000 };
      const { prefix, draft, repair } = await sendIncomplete(t, start, limits);
      const over = { prefix, limits: { ...limits, dedupeWindowS: 2 * HOUR_S } };
      const bench = await start(t, over);
      const { inbox, time } = bench;
      await repair();
      time.nowMs += HOUR_S * 1000 + 1;
      await inbox.commands.sweep();
      t.same(await bench.seqs("u30"), [1]);
      t.equal((await inbox.appendCommand(draft)).duplicate, true);
      await assertOneCopyEach(t, bench);
    },
  );

  t.test(
    "only one node at a time sweeps a bucket of commands, and after a failure no node sweeps the bucket for a minute",
    async (t) => {
      const { prefix, repair } = await sendIncomplete(t, start);
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
      if (node === undefined) throw new Error("the test has started no node");
      t.equal(await pendingIn(node, "2:g"), 1);
      await sweepAt(1_000);
      await assertOneCopyEach(t, node);

      await leavePending(node, "zoe");
      await sweepAt(30_000);
      await leavePending(node, "yves");
      const seqsOfBoth = () => Promise.all(["zoe", "yves"].map(node.seqs));
      await sweepAt(30_002);
      t.same(await seqsOfBoth(), [[1], []]);
      await sweepAt(30_000);
      t.same(
        await seqsOfBoth(),
        [[1], [1]],
        "the previous sweep was complete, so the next one may start at once",
      );
    },
  );

  t.test("a sweep removes a command whose copies have expired", async (t) => {
    const { prefix } = await sendIncomplete(t, start);
    const bench = await start(t, { prefix });
    bench.time.nowMs += HOUR_S * 1000 + 1;
    await bench.inbox.commands.sweep();
    t.equal(await pendingIn(bench, "2:g"), 0);
    t.same(bench.problems, []);
  });

  t.test(
    "a command that reached fewer than redis.minReplicas replicas is rejected, and its retry is a duplicate",
    async (t) => {
      let failures = 1;
      const observeReplicas = () => async () => {
        if (failures-- > 0) throw new BrokerError("unavailable");
      };
      const bench = await start(t, { observeReplicas });
      const draft = retry({ recipients: USERS });
      t.equal(await codeOf(bench.inbox.appendCommand(draft)), "unavailable");
      t.equal((await bench.inbox.appendCommand(draft)).duplicate, true);
      await assertOneCopyEach(t, bench);
    },
  );
}
