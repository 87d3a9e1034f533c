// Data that must be on the disk before a call returns or a file is deleted. A killed process loses
// nothing that it handed to the kernel, so only the order of the file and database calls shows what
// a power loss would lose.

import * as fs from "node:fs";
import { basename } from "node:path";
import { codeOf, draftOf } from "../../../contract/store-fixture.ts";
import { t } from "../../../support/suite.ts";
import { brittleDatabase } from "../brittle-database.ts";
import { brittleFiles } from "../brittle-files.ts";
import { openStore, seqsIn, storeIn, testFolder, walFiles } from "../folder.ts";

/** Returns the name of the open file or folder. */
const nameOf = (fd: number) => basename(fs.readlinkSync(`/proc/self/fd/${fd}`));

/** Returns file calls that add the name of each file and folder to `log` after its sync. */
function loggedFiles(log: string[]) {
  const { fail, files } = brittleFiles();
  return {
    fail,
    files: {
      ...files,
      fdatasync(fd: number, done: (error: Error | null) => void) {
        const segment = nameOf(fd);
        files.fdatasync(fd, (error) => {
          log.push(segment);
          done(error);
        });
      },
      fsyncSync(fd: number) {
        files.fsyncSync(fd);
        log.push(nameOf(fd));
      },
    },
  };
}

t.test(
  "with durability `disk`, a message is acknowledged only after its segment and the segment's name are on the disk",
  async (t) => {
    const log: string[] = [];
    const store = await openStore(t, testFolder(t), {
      ...{ durability: "disk", segmentBytes: 1, files: loggedFiles(log).files },
    });
    t.same(log, ["00000001.log", "journal"], "the first segment and its name are synced");
    for (const segment of ["00000002.log", "00000003.log"]) {
      log.length = 0;
      await store.append(draftOf());
      t.same(log, [segment, "journal", segment], "header, name and message are synced");
    }
  },
);

t.test("with durability `process`, no file or folder is synced", async (t) => {
  const log: string[] = [];
  const store = await openStore(t, testFolder(t), {
    ...{ segmentBytes: 1, files: loggedFiles(log).files },
  });
  await store.append(draftOf());
  t.same(log, []);
});

t.test("a WAL segment whose name cannot be made durable is not used", async (t) => {
  const path = testFolder(t);
  const log: string[] = [];
  const problems: string[] = [];
  const { fail, files } = loggedFiles(log);
  const onError = (_: Error, what: string) => void problems.push(what);
  const store = await openStore(t, path, {
    ...{ durability: "disk", segmentBytes: 1, files, onError },
  });
  fail.folderSync = true;
  const before = walFiles(path);
  t.equal((await store.append(draftOf())).messageSeq, 1, "the message is acknowledged");
  t.same(walFiles(path), before, "the message is in the previous segment");
  t.same(problems, ["Could not open the next WAL segment"]);
});

t.test("an orderly shutdown deletes the WAL only after its messages are on disk", async (t) => {
  const path = testFolder(t);
  const { fail, databaseWrites } = brittleDatabase();
  const problems: string[] = [];
  const onError = (_: Error, what: string) => void problems.push(what);
  const store = storeIn(path, { databaseWrites, onError });
  await store.start();
  await store.append(draftOf());
  fail.flush = true;
  await store.close();
  t.same(problems, ["The last checkpoint before the shutdown failed"]);
  t.equal(walFiles(path).length, 1, "the segment is kept if the database could not be flushed");
  const next = await openStore(t, path);
  t.same(await seqsIn(next), [1], "the message is stored after the next start");
});

t.test("WAL segments are deleted only after the checkpoint is on the disk", async (t) => {
  const path = testFolder(t);
  const { fail, databaseWrites } = brittleDatabase();
  const problems: string[] = [];
  const onError = (_: Error, what: string) => void problems.push(what);
  const store = storeIn(path, { databaseWrites, onError, segmentBytes: 1 });
  await store.start();
  for (let count = 0; count < 3; count++) {
    await store.append(draftOf());
    await new Promise(setImmediate); // each message in a frame of its own
  }
  const before = walFiles(path);
  fail.flush = true;
  await store.checkpoint();
  await store.close();
  t.ok(problems.includes("Could not delete old WAL segments"), "the deletion fails");
  t.same(walFiles(path), before, "every segment is kept");
});

t.test(
  "with durability `disk`, a control-plane change is acknowledged only after it was synced to disk",
  async (t) => {
    for (const durability of ["disk", "process"] as const) {
      const { fail, databaseWrites } = brittleDatabase();
      const store = await openStore(t, testFolder(t), { databaseWrites, durability });
      const expected = durability === "disk" ? "unavailable" : undefined;
      const expiresAtMs = Date.now() + 60_000;
      fail.flush = true;
      const changes = {
        "a put": codeOf(store.putAccessToken(Buffer.from("hash"), "admin", expiresAtMs)),
        "a removal": codeOf(store.removeAccessToken(Buffer.from("hash"))),
        "a step that reads": codeOf(store.putPasswordOnce("admin", { passwordHash: "hash" })),
      };
      for (const [what, code] of Object.entries(changes))
        t.equal(await code, expected, `${what} with durability ${durability}`);
      fail.flush = false;
    }
  },
);
