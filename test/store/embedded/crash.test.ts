// Processes that are killed, limited, or compete for a folder.

import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { draftOf } from "../../contract/store-fixture.ts";
import { t } from "../../support/suite.ts";
import { ALL, openAfterKill, openStore, seqsIn, storeIn, testFolder, walFiles } from "./folder.ts";
import { startChild } from "./process.ts";

t.test(
  "every acknowledged message is stored once, under its acknowledged seq and without gaps, after a kill -9 under load",
  async (t) => {
    const path = testFolder(t);
    const acknowledged = new Map<string, Map<number, string>>();
    for (const count of [1, 300, 3000]) {
      const child = startChild(t, [path, "send", "3"]);
      await child.line(() => child.lines.length >= count);
      await child.kill();
      for (const { id, messageSeq, clientMsgNo } of child.lines) {
        if (id === undefined || messageSeq === undefined) continue;
        const seqs = acknowledged.get(id) ?? new Map<number, string>();
        if (seqs.has(messageSeq)) t.fail(`seq ${messageSeq} was assigned twice`);
        seqs.set(messageSeq, clientMsgNo ?? "");
        acknowledged.set(id, seqs);
      }
    }
    const store = await openAfterKill(t, path);
    for (const [id, seqs] of acknowledged) {
      const { messages } = await store.readMessages(`2:${id}`, ALL);
      t.same(
        messages.map((m) => m.messageSeq),
        messages.map((_, i) => i + 1),
      );
      const clientMsgNos = messages.map((m) => m.clientMsgNo);
      t.equal(new Set(clientMsgNos).size, clientMsgNos.length, "no message is stored twice");
      const lost = [...seqs].filter(([seq, no]) => clientMsgNos[seq - 1] !== no);
      t.same(lost, [], `all ${seqs.size} acknowledged messages are stored`);
    }
    t.equal(acknowledged.size, 3);
  },
);

t.test(
  "every acknowledged event is in its stream once, in the order of sending, after a kill -9 under load, and the producer continues",
  async (t) => {
    const CHUNKS = 60; // as in child.ts
    const path = testFolder(t);
    const acknowledged = [0, 0, 0, 0, 0];
    for (const count of [1, 200, 1500, 2500]) {
      const child = startChild(t, [path, "stream", JSON.stringify(acknowledged)]);
      await child.line(() => child.lines.length >= count);
      await child.kill();
      for (const { worker, count, verdict } of child.lines) {
        if (worker === undefined || count === undefined) continue;
        if (verdict !== "done" || count !== acknowledged[worker])
          t.fail(`event ${count} of worker ${worker} was answered with ${verdict}`);
        acknowledged[worker] = count + 1;
      }
    }
    const store = await openAfterKill(t, path);
    for (const [worker, events] of acknowledged.entries()) {
      const full = Math.floor(events / (CHUNKS + 2));
      const pending = events % (CHUNKS + 2);
      t.ok(full >= 2, "some streams were completed");
      for (let n = 0; n < full; n++)
        t.match(await store.stream(`2:g${worker}`, `s${n}`), {
          ...{ text: chunks(CHUNKS), state: "closed" },
          ...{ nextIndex: CHUNKS + 2, messageSeq: n + 1 },
        });
      const last = await store.stream(`2:g${worker}`, `s${full}`);
      const next = last?.nextIndex ?? 0;
      if (next < pending) t.fail(`${pending - next} of ${pending} acknowledged events are lost`);
      t.equal(last?.text ?? "", chunks(Math.min(next - 1, CHUNKS)));
    }
  },
);

function chunks(count: number): string {
  return Array.from({ length: Math.max(count, 0) }, (_, i) => `${i + 1};`).join("");
}

const needsPrlimit = process.platform === "linux" ? {} : { skip: "prlimit is a Linux tool" };

t.test(
  "writes that do not fit on a full disk are refused and leave no gap, and sending works again when there is space",
  needsPrlimit,
  async (t) => {
    const path = testFolder(t);
    // A limit on the file size acts like a full disk. A start writes only far smaller files.
    const limit = ["prlimit", "--fsize=300000:unlimited"];
    const child = startChild(t, [path, "send-some", "40"], limit);
    await child.line((line) => line.waiting === true);
    const answers = child.lines.filter((l) => l.messageSeq ?? l.code);
    const codes = new Set(answers.flatMap((l) => l.code ?? []));
    t.same([...codes], ["unavailable"], "some messages were refused");
    t.ok(answers.length === 40 && answers[0]?.messageSeq === 1);
    const pid = String(child.process.pid);
    spawnSync("prlimit", ["--pid", pid, "--fsize=unlimited:unlimited"]);
    const before = child.lines.length;
    child.process.stdin?.write("go\n");
    await child.line(() => false);
    const storedLater = child.lines.slice(before).flatMap((l) => l.messageSeq ?? []);
    t.equal(storedLater.length, 3, "all later sends are stored");
    const seqs = child.lines.flatMap((l) => l.messageSeq ?? []);
    t.same(
      seqs,
      seqs.map((_, i) => i + 1),
      "the seqs have no gap",
    );
    const store = await openStore(t, path);
    t.same(await seqsIn(store), seqs);
  },
);

t.test(
  "a failed database write ends the process, and the WAL contains the messages that the database lacks",
  needsPrlimit,
  async (t) => {
    const path = testFolder(t);
    const limit = ["prlimit", "--fsize=400000:unlimited"];
    const child = startChild(t, [path, "full-database", "20"], limit);
    const end = await child.line((l) => l.lost !== undefined);
    t.match(
      end?.lost,
      /The database could not be written/,
      "the process ends with an error message",
    );
    await child.line(() => false);
    t.notOk(
      child.lines.some((l) => l.created === true),
      "the group is not acknowledged",
    );
    const seqs = child.lines.flatMap((l) => l.messageSeq ?? []);
    t.equal(seqs.length, 20, "all messages were acknowledged");
    const store = await openStore(t, path);
    t.same(await seqsIn(store), seqs, "no acknowledged message is lost");
    t.same(await store.groupsOf("member-7999-7999"), [], "nothing of the group is stored");
  },
);

t.test(
  "a process without a free file descriptor accepts every send, even when a segment is full",
  needsPrlimit,
  async (t) => {
    const path = testFolder(t);
    const limit = ["prlimit", "--nofile=80"];
    const child = startChild(t, [path, "starved", "120"], limit);
    await child.line(() => false);
    const codes = child.lines.flatMap((l) => l.code ?? []);
    t.same(codes, ["EMFILE"], "opening a segment failed with EMFILE, and no send failed");
    const problems = child.lines.flatMap((l) => l.problem ?? []);
    t.ok(problems.includes("Could not open the next WAL segment"));
    t.match(walFiles(path).at(-1), /0000000[2-9].log$/, "the next segment was opened later");
    const store = await openStore(t, path);
    const seqs = child.lines.flatMap((l) => l.messageSeq ?? []);
    t.equal(seqs.length, 240);
    t.same(await seqsIn(store), seqs);
  },
);

t.test(
  "a second process cannot open a data folder while the first process lives, and can after the first was killed",
  async (t) => {
    const path = testFolder(t);
    const first = startChild(t, [path, "hold"]);
    const started = await first.line((l) => l.started !== undefined);
    const second = startChild(t, [path, "hold"]);
    const refused = await second.line((l) => l.refused !== undefined);
    t.match(refused?.refused, `in use by process ${started?.started}`);
    const third = storeIn(path);
    await t.rejects(third.start(), { code: "unavailable" });
    await first.kill();
    await third.start();
    t.equal((await third.append(draftOf())).messageSeq, 1);
    await third.close();
  },
);

t.test(
  "exactly one of several processes that start concurrently gets the data folder",
  async (t) => {
    const path = testFolder(t);
    const dead = startChild(t, [path, "hold"]);
    await dead.line((l) => l.started !== undefined);
    await dead.kill();
    const children = Array.from({ length: 4 }, () => startChild(t, [path, "hold"]));
    const lines = await Promise.all(
      children.map((c) => c.line((l) => (l.started ?? l.refused) !== undefined)),
    );
    t.equal(lines.filter((l) => l?.started !== undefined).length, 1);
    t.equal(lines.filter((l) => l?.refused !== undefined).length, 3);
  },
);

t.test("one process cannot open a data folder twice", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  await t.rejects(storeIn(path).start(), { code: "unavailable" });
  t.equal((await store.append(draftOf())).messageSeq, 1);
  await store.checkpoint();
  t.same(await seqsIn(store), [1]);
});

t.test("a data folder that cannot be created is refused", async (t) => {
  const path = testFolder(t);
  writeFileSync(join(path, "file"), "");
  const store = storeIn(join(path, "file", "data"));
  await t.rejects(store.start(), { name: "BrokerError" });
  await store.close();
});
