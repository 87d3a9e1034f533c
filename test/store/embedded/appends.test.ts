// The queue of messages and streams when the disk is slow, and when a receiver throws.

import * as fs from "node:fs";
import { join } from "node:path";
import { open } from "lmdb";
import type { WalFiles } from "../../../src/store/embedded/engine/wal.ts";
import { appendOf, free, draftOf as logDraftOf } from "../../contract/log-fixture.ts";
import { codeOf, draftOf, retryOf } from "../../contract/store-fixture.ts";
import { commandRetryOf } from "../../contract/store-inbox-fixture.ts";
import { t } from "../../support/suite.ts";
import { brittleFiles } from "./brittle-files.ts";
import { crashedCopy, openStore, seqsIn, testFolder } from "./folder.ts";

const nextTurn = () => new Promise(setImmediate);

/** Returns file calls whose syncs wait until `next` releases them, and `next`. */
function slowFiles() {
  const waiting: (() => void)[] = [];
  const files: WalFiles = {
    ...brittleFiles().files,
    fdatasync: (fd, done) => void waiting.push(() => fs.fdatasync(fd, done)),
  };
  const next = async () => {
    while (waiting.length === 0) await nextTurn();
    waiting.shift()?.();
  };
  return { files, next };
}

t.test(
  "with durability `disk`, a command that repeats a message waits only for the fsync of that message",
  async (t) => {
    const { files, next } = slowFiles();
    const store = await openStore(t, testFolder(t), {
      ...{ files, durability: "disk" },
    });
    const first = store.append(retryOf("n"));
    await nextTurn();
    let isAnswered = false;
    const { payload } = retryOf("n");
    const command = store.appendCommand(commandRetryOf("n", { payload }));
    void command.then(() => {
      isAnswered = true;
    });
    const second = store.append(draftOf());
    await nextTurn();
    t.equal(isAnswered, false, "the command is not answered before the fsync");
    await next();
    const { messageId } = await first;
    t.same(await command, { messageId, messageSeq: 1, duplicate: true });
    t.equal(
      await store.headSeq("2:g"),
      1,
      "the second message is not visible before its own fsync",
    );
    await next();
    t.match(await second, { messageSeq: 2 });
  },
);

t.test(
  "with durability `disk`, a message that waits for its fsync during a checkpoint is still in the WAL afterwards",
  async (t) => {
    const { files, next } = slowFiles();
    const path = testFolder(t);
    const store = await openStore(t, path, { files, durability: "disk" });
    const first = store.append(draftOf());
    await next();
    await first;
    const second = store.append(draftOf());
    await nextTurn(); // written, not on the disk yet
    await store.checkpoint();
    await next();
    t.match(await second, { messageSeq: 2 });
    const reopened = await openStore(t, await crashedCopy(t, path));
    t.same(await seqsIn(reopened), [1, 2], "the WAL still has the second message");
  },
);

t.test(
  "with durability `disk`, a command that repeats a message whose write failed is stored as a new command",
  async (t) => {
    const { fail, files } = brittleFiles();
    const store = await openStore(t, testFolder(t), {
      ...{ files, durability: "disk", onError() {} },
    });
    fail.sync = true;
    const first = codeOf(store.append(retryOf("n")));
    await nextTurn();
    const command = store.appendCommand(commandRetryOf("n"));
    t.equal(await first, "unavailable");
    t.match(await command, { duplicate: false });
  },
);

for (const durability of ["process", "disk"] as const)
  t.test(
    `an exception while one message is published does not affect other calls (durability ${durability})`,
    async (t) => {
      const problems: string[] = [];
      const store = await openStore(t, testFolder(t), {
        durability,
        publisher: {
          publish(event) {
            if (event.kind !== "message") return;
            if (event.message.messageSeq === 2) throw new Error("a bug");
          },
        },
        onError(error, what) {
          problems.push(what);
          if (what === "Could not publish a stored event") throw error;
        },
      });
      const calls: Promise<string | undefined>[] = [];
      for (let i = 0; i < 2; i++) {
        calls.push(codeOf(store.append(draftOf())));
        calls.push(codeOf(store.append(draftOf())));
        await nextTurn();
      }
      t.same(await Promise.all(calls), [...[undefined, "internal", undefined, undefined]]);
      t.same(problems, ["Could not publish a stored event", "Could not resolve a committed call"]);
      t.equal(await store.headSeq("2:g"), 4);
      t.equal(await codeOf(store.append(draftOf())), undefined);
    },
  );

t.test(
  "with durability `disk`, every message is refused after a failed fsync, even a message with noPersist",
  async (t) => {
    const { fail, files } = brittleFiles();
    const store = await openStore(t, testFolder(t), {
      ...{ files, durability: "disk", onError() {} },
    });
    fail.sync = true;
    t.equal(await codeOf(store.append(draftOf())), "unavailable");
    fail.sync = false;
    const header = { noPersist: true, redDot: false };
    const unstored = store.append(draftOf({ header }));
    t.equal(
      await codeOf(unstored),
      "unavailable",
      "a message that is not stored is refused too, because its id could be lost",
    );
    t.equal(await codeOf(store.append(draftOf())), "unavailable");
  },
);

t.test(
  "messages to an unreadable channel are refused, and the other messages of the batch are stored",
  async (t) => {
    const path = testFolder(t);
    const to = (id: string) => draftOf({ key: `2:${id}`, channel: { id, type: 2 } });
    const before = await openStore(t, path);
    await before.append(to("bad"));
    await before.close();
    const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
    await env.openDB({ name: "heads" }).put("2:bad", [9, 1, 1, 1]);
    await env.close();
    const store = await openStore(t, path);
    const calls = ["g", "bad", "g", "bad", "h"].map((id) => codeOf(store.append(to(id))));
    t.same(
      await Promise.all(calls),
      [undefined, "internal", undefined, "internal", undefined],
      "the other messages of the batch are stored",
    );
    t.same(await seqsIn(store), [1, 2]);
  },
);

t.test(
  "calls to an unreadable log are refused, and the other calls of the batch succeed",
  async (t) => {
    const path = testFolder(t);
    const before = await openStore(t, path);
    for (const name of ["bad", "good"]) await before.createLog(free(name), logDraftOf());
    await before.close();
    const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
    const heads = env.openDB<Buffer, Buffer>({
      ...{ name: "logHeads", keyEncoding: "binary", encoding: "binary" },
    });
    const [first = Buffer.alloc(0)] = heads.getKeys({});
    for (const value of [Buffer.from([0x92, 99, 0]), Buffer.from([0xdc, 99])]) {
      await heads.put(Buffer.from(first), value);
      const store = await openStore(t, path);
      const append = appendOf(["x"]);
      const calls = [
        store.append(draftOf()),
        store.appendLog(free("bad"), append),
        store.appendLog(free("good"), append),
        store.createLog(free("bad"), logDraftOf()),
        store.deleteLog(free("bad")),
        store.append(draftOf()),
      ];
      t.same(await Promise.all(calls.map((call) => codeOf(call))), [
        ...[undefined, "internal", undefined, "internal", "internal", undefined],
      ]);
      await store.close();
    }
    await env.close();
  },
);
