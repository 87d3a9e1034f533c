// An owner that was paused while another process acquired its folder no longer writes or answers
// anything, at whatever point it was paused. The paused process runs in a pid namespace of its own,
// like a process of another container. In a shared namespace, a living process never counts as
// dead.

import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { commit } from "../../../src/store/embedded/engine/database.ts";
import { FolderLock } from "../../../src/store/embedded/engine/folder-lock.ts";
import { openTables } from "../../../src/store/embedded/engine/tables.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { t } from "../../support/suite.ts";
import { ALL, openStore, storeIn, testFolder } from "./folder.ts";
import { startChild } from "./process.ts";

const IN_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"];
const WITH_PROC = "--mount-proc";
const WAYS = [
  [...IN_NAMESPACE, WITH_PROC],
  [...IN_NAMESPACE, WITH_PROC, "--user", "--map-root-user"],
];
const realNamespace = WAYS.find(
  ([command = "", ...args]) => spawnSync(command, [...args, "true"]).status === 0,
);
/**
 * Command that starts the child in a new pid namespace. If the machine does not allow new
 * namespaces, the child only pretends to be in another one.
 */
const inNamespace = realNamespace ?? ["env", "JINDOU_TEST_PID_NAMESPACE=other"];

const SILENCE_MS = 5000;
const EXIT_CODE = 3; // as in child.ts
const POINTS = [
  { name: "while idle", order: "send", durability: "process" },
  { name: "before the write", order: "send", durability: "process" },
  { name: "after the write", order: "send", durability: "process" },
  { name: "after the sync", order: "send", durability: "disk" },
  { name: "before the transaction", order: "command", durability: "process" },
] as const;

t.jobs = POINTS.length + 1; // most of the time is spent waiting
for (const { name, order, durability } of POINTS)
  t.test(
    `a data folder's owner that was paused while another process acquired the folder answers no call and exits (paused ${name})`,
    async (t) => {
      const path = testFolder(t);
      const first = startChild(t, [path, "obey", durability], inNamespace);
      const say = (line: object) => first.process.stdin?.write(`${JSON.stringify(line)}\n`);
      await first.line((l) => l.started !== undefined);
      for (const send of ["a1", "a2", "a3"]) say({ send });
      await first.line((l) => l.clientMsgNo === "a3");
      if (name !== "while idle") {
        say({ pauseAt: name });
        say({ [order]: "paused" });
        await first.line((l) => l.pausing === name);
      }
      const outer = first.process.pid ?? 0;
      const pid = realNamespace === undefined ? outer : childOf(outer);
      process.kill(pid, "SIGSTOP");
      for (const send of ["late1", "late2"]) say({ send });
      say({ command: "late3" });

      const before = performance.now();
      const second = storeIn(path, { segmentBytes: 64 });
      await second.start();
      t.ok(performance.now() - before >= SILENCE_MS, "the second process waited for a heartbeat");
      t.teardown(() => second.close());
      const acknowledged = new Map<string, number>();
      const send = async (clientMsgNo: string) => {
        const draft = draftOf({ clientMsgNo });
        const { messageSeq } = await second.append(draft);
        acknowledged.set(clientMsgNo, messageSeq);
      };
      for (const no of ["b1", "b2", "b3"]) await send(no);
      await second.checkpoint();

      const ended = once(first.process, "exit");
      process.kill(pid, "SIGCONT");
      const last = await first.line(
        ({ lost, clientMsgNo = "" }) => lost !== undefined || /late|paused/.test(clientMsgNo),
      );
      t.match(last, { lost: /acquired the data folder/ });
      if (last?.lost === undefined) await first.kill();
      t.same((await ended)[0], EXIT_CODE);
      await first.line(() => false);
      const answers = first.lines.filter((l) => l.messageSeq ?? l.messageId ?? l.code);
      t.same(
        answers.map((l) => l.clientMsgNo),
        ["a1", "a2", "a3"],
        "nothing was answered after the folder was lost",
      );
      for (const { clientMsgNo = "", messageSeq = 0 } of answers)
        acknowledged.set(clientMsgNo, messageSeq);

      await second.checkpoint();
      await send("b4");
      await second.close();
      const third = await openStore(t, path);
      const { messages } = await third.readMessages("2:g", ALL);
      t.same(
        messages.map((m) => m.messageSeq),
        messages.map((_, i) => i + 1),
        "the seqs have no gap",
      );
      const seqByNumber = new Map(messages.map((m) => [m.clientMsgNo, m.messageSeq]));
      t.equal(seqByNumber.size, messages.length, "no message is stored twice");
      for (const [no, seq] of acknowledged) t.equal(seqByNumber.get(no), seq, no);
      t.same(await third.readInbox("u", 0, { limit: 9, maxBytes: 9999 }), []);
    },
  );

t.test(
  "a second process with the same pid, as in another container, is refused",
  realNamespace === undefined ? { skip: "this machine does not allow new pid namespaces" } : {},
  async (t) => {
    const path = testFolder(t);
    const first = startChild(t, [path, "obey", "process"], inNamespace);
    await first.line((l) => l.started !== undefined);
    const second = startChild(t, [path, "obey", "process"], inNamespace);
    const line = await second.line((l) => l.refused !== undefined);
    t.match(line?.refused, /in use by a process of another container/);
  },
);

// Imports internal modules, because a process that lost the folder usually ends before such a
// transaction.
t.test(
  "a transaction of a former owner writes nothing, and the loss of the folder is reported once",
  async (t) => {
    const path = testFolder(t);
    const tables = openTables(join(path, "lmdb"));
    const losses: string[] = [];
    const owner = new FolderLock(tables, path, (e) => losses.push(e.code));
    await owner.acquire();
    t.teardown(async () => {
      owner.release();
      await tables.env.close();
    });
    const put = (name: string) => commit(tables, () => void tables.meta.put(name, [1]));
    await put("before");
    // Acts as another process that acquires the folder.
    tables.env.transactionSync(() => tables.fence.next());
    await t.rejects(put("after"), { code: "unavailable" });
    await t.rejects(put("again"), { code: "unavailable" });
    t.same(
      ["before", "after", "again"].map((name) => tables.meta.get(name)),
      [[1], undefined, undefined],
    );
    t.same(losses, ["unavailable"], "the loss is reported once");
    t.throws(() => owner.assertHeldNow(), { code: "unavailable" });
  },
);

/** Returns the only child of a process, as this process sees it. */
function childOf(pid: number): number {
  return Number(readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8"));
}
