// The restart after every state that a crash can leave, and after damage that must not be hidden.

import { spawnSync } from "node:child_process";
import { readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import { EVENTS_START } from "../../../src/broker/event-ports.ts";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../../src/broker/model.ts";
import type { Store } from "../../../src/broker/ports.ts";
import { crc32 } from "../../../src/lib/crc32.ts";
import { recover } from "../../../src/store/embedded/engine/recover.ts";
import {
  readSegmentHeader,
  SEGMENT_HEADER_BYTES,
  UNKNOWN_BOOT,
} from "../../../src/store/embedded/engine/segment.ts";
import { DATA_FORMAT } from "../../../src/store/embedded/engine/tables.ts";
import { codeOf, draftOf } from "../../contract/store-fixture.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";
import { t } from "../../support/suite.ts";
import { IS_FULL } from "../../support/volume.ts";
import {
  copyWal,
  crashedCopy,
  damageRow,
  inAnotherBoot,
  openStore,
  seqsIn,
  storeIn,
  testFolder,
  walFiles,
  withoutCheckpoint,
} from "./folder.ts";

const numbered = (i: number) =>
  draftOf({
    clientMsgNo: `n${i}`,
    payload: Buffer.from(`p${i}`),
  });

/**
 * Returns a folder whose WAL contains messages 1 to `count`, each in a write of its own. The
 * database contains none of them.
 */
async function crashedWith(t: Test, count: number): Promise<string> {
  const path = testFolder(t);
  const store = await openStore(t, path);
  for (let i = 1; i <= count; i++) await store.append(numbered(i));
  const copy = await crashedCopy(t, path);
  await store.close();
  return copy;
}

function onlyFile(path: string): string {
  const [file] = walFiles(path);
  if (file === undefined) throw new Error("there is no WAL file");
  return file;
}

t.test("acknowledged messages survive a crash, and their retries are recognised", async (t) => {
  const path = await crashedWith(t, 3);
  const events: unknown[] = [];
  const publisher = { publish: (event: unknown) => void events.push(event) };
  const store = await openStore(t, path, { publisher });
  t.same(await seqsIn(store), [1, 2, 3]);
  t.match(await store.append(numbered(2)), {
    messageSeq: 2,
    duplicate: true,
  });
  t.equal((await store.append(numbered(4))).messageSeq, 4);
  t.equal(events.length, 1, "nothing is published twice");
  t.equal(store.stats().walBytes < 500, true, "the old segment is deleted");
});

t.test(
  "the last write in the WAL is dropped completely if it is truncated at any byte, and no other write is dropped",
  async (t) => {
    const path = await crashedWith(t, 3);
    const content = readFileSync(onlyFile(path));
    const lastStart = statSync(onlyFile(await crashedWith(t, 2))).size;
    t.ok(content.length - lastStart > 50, "the last write has more than 50 bytes to truncate");
    const folder = testFolder(t);
    const file = join(folder, "00000001.log");
    for (let size = lastStart; size < content.length; size++) {
      writeFileSync(file, content.subarray(0, size));
      let records = 0;
      const position = { segment: 1, offset: 0, synced: false, boot: UNKNOWN_BOOT };
      const recovery = recover(folder, position, {
        boot: UNKNOWN_BOOT,
        record: () => void records++,
        assertOwned() {},
      });
      const dropped = size - lastStart;
      if (records !== 2 || recovery.droppedBytes !== dropped)
        t.fail(`${records} records remain after the file was truncated at byte ${size}`);
      t.equal(statSync(file).size, lastStart);
    }
  },
);

t.test("the store continues with the next seq after an unfinished write", async (t) => {
  const path = await crashedWith(t, 3);
  truncateSync(onlyFile(path), statSync(onlyFile(path)).size - 1);
  const problems: string[] = [];
  const onError = (_: Error, what: string) => problems.push(what);
  const store = await openStore(t, path, { onError });
  t.same(problems, ["An unfinished or damaged last write was removed from the WAL"]);
  t.same(await seqsIn(store), [1, 2]);
  t.match(await store.append(numbered(3)), {
    messageSeq: 3,
    duplicate: false,
  });
});

t.test("the last write in the WAL is dropped if it contains wrong bytes", async (t) => {
  const path = await crashedWith(t, 3);
  const file = onlyFile(path);
  const bytes = readFileSync(file);
  bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 1;
  writeFileSync(file, Buffer.concat([bytes, Buffer.alloc(4096)]));
  const store = await openStore(t, path, { onError() {} });
  t.same(await seqsIn(store), [1, 2]);
});

t.test(
  "the store does not start, and changes no file, if WAL damage is followed by valid data",
  async (t) => {
    const path = await crashedWith(t, 3);
    const file = onlyFile(path);
    const good = readFileSync(file);
    for (const offset of [0, 4, 8, 14, 64]) {
      const at = SEGMENT_HEADER_BYTES + offset;
      const bytes = Buffer.from(good);
      bytes[at] = (bytes[at] ?? 0) ^ 0xff;
      writeFileSync(file, bytes);
      const store = storeIn(path);
      await t.rejects(store.start(), {
        code: "internal",
        message: /is damaged at byte/,
      });
      t.same(readFileSync(file), bytes);
    }
    writeFileSync(file, good);
    const store = await openStore(t, path);
    t.same(await seqsIn(store), [1, 2, 3]);
  },
);

/** Changes the header as if the file had been written before the last boot of the machine. */
function asOfAnotherBoot(file: string, synced?: boolean): void {
  const bytes = readFileSync(file);
  if (synced !== undefined) bytes.writeUInt32LE(synced ? 1 : 0, 12);
  const header = bytes.subarray(0, SEGMENT_HEADER_BYTES);
  header.write("f".repeat(32), 16, "hex");
  const crcAt = SEGMENT_HEADER_BYTES - 4;
  header.writeUInt32LE(crc32(header.subarray(0, crcAt)), crcAt);
  writeFileSync(file, bytes);
}

/** Returns a folder with four messages, each in a file of its own. */
async function fourFiles(
  t: Test,
  over: { readonly durability?: "process" | "disk" } = {},
  change?: typeof inAnotherBoot,
): Promise<string> {
  const path = testFolder(t);
  const store = await openStore(t, path, { segmentBytes: 64, ...over });
  for (let i = 1; i <= 4; i++) await store.append(numbered(i));
  return crashedCopy(t, path, change);
}

/** Resets the WAL position, as if no checkpoint had written anything. */
const fromTheStart = (meta: Map<string, unknown[]>) =>
  void meta.set("journal", [1, 1, 0, meta.get("journal")?.at(3)]);

function damage(file: string): void {
  const bytes = readFileSync(file);
  bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 1;
  writeFileSync(file, bytes);
}

t.test(
  "after a power loss, the store continues with the messages before the first damage and reports the loss",
  async (t) => {
    for (const kind of ["damaged", "missing", "zeros", "one file"] as const) {
      const path =
        kind === "one file" ? await crashedWith(t, 4) : await fourFiles(t, {}, inAnotherBoot);
      for (const file of walFiles(path)) asOfAnotherBoot(file);
      const [first = "", second = ""] = walFiles(path);
      if (kind === "damaged") damage(second);
      if (kind === "missing") rmSync(second);
      if (kind === "zeros") writeFileSync(second, Buffer.alloc(statSync(second).size));
      if (kind === "one file") {
        const bytes = readFileSync(first);
        const size = (bytes.length - SEGMENT_HEADER_BYTES) / 4;
        bytes.fill(0, SEGMENT_HEADER_BYTES + size, SEGMENT_HEADER_BYTES + size + 20);
        writeFileSync(first, bytes);
      }
      const problems: string[] = [];
      const onError = (error: Error, what: string) => problems.push(`${what}: ${error.message}`);
      const store = await openStore(t, path, { onError });
      t.same(await seqsIn(store), [1], kind);
      t.match(problems, [/were lost.*store\.durability = disk/], kind);
      t.equal((await store.append(numbered(2))).duplicate, false);
      await store.close();
      const reopened = await openStore(t, path);
      t.same(await seqsIn(reopened), [1, 2], "the lost messages stay lost after another restart");
    }
  },
);

t.test(
  "after a power loss that shortened the WAL file of the last checkpoint, messages of later files are not used",
  async (t) => {
    const path = testFolder(t);
    const store = await openStore(t, path, { segmentBytes: 400 });
    await store.append(numbered(1));
    await store.checkpoint();
    for (let i = 2; walFiles(path).length < 2; i++) await store.append(numbered(i));
    const copy = await crashedCopy(t, path, inAnotherBoot);
    for (const file of walFiles(copy)) asOfAnotherBoot(file);
    truncateSync(walFiles(copy)[0] ?? "", SEGMENT_HEADER_BYTES);
    const problems: string[] = [];
    const onError = (error: Error, what: string) => problems.push(`${what}: ${error.message}`);
    const reopened = await openStore(t, copy, { onError });
    t.same(await seqsIn(reopened), [1], "no message after the gap is used");
    t.match(problems, [/were lost/]);
  },
);

t.test(
  "a WAL file that a power loss shortened does not prevent a later start that finds newer files",
  async (t) => {
    const bytes = readFileSync(onlyFile(await crashedWith(t, 1)));
    const header = readSegmentHeader(bytes);
    const boot = header.kind === "ok" ? header.boot : "";
    const folder = testFolder(t);
    const [first, second] = ["00000001.log", "00000002.log"].map((name) => join(folder, name));
    for (const content of [bytes.subarray(0, SEGMENT_HEADER_BYTES), Buffer.alloc(0)]) {
      writeFileSync(first ?? "", content);
      rmSync(second ?? "", { force: true });
      let records = 0;
      const position = { segment: 1, offset: 5000, synced: false, boot: "f".repeat(32) };
      const run = () =>
        recover(folder, position, { boot, record: () => void records++, assertOwned() {} });
      t.match(run(), { droppedBytes: 0, isDataLost: false });
      writeFileSync(second ?? "", bytes); // the next run was killed before its first checkpoint
      t.match(run(), { droppedBytes: 0, isDataLost: false });
      t.equal(records, 1);
    }
  },
);

t.test("a crash while damage is being removed does not hide the damage", async (t) => {
  const path = await fourFiles(t);
  const files = walFiles(path);
  for (const file of files) asOfAnotherBoot(file);
  damage(files[1] ?? "");
  const position = { segment: 1, offset: 0, synced: false, boot: UNKNOWN_BOOT };
  for (let crashes = 2; crashes >= 0; crashes--) {
    let [records, changes] = [0, 0];
    const run = () =>
      recover(dirname(files[0] ?? ""), position, {
        boot: "e".repeat(32),
        record: () => void records++,
        assertOwned() {
          if (++changes > 1 && crashes > 0) throw new Error("a crash");
        },
      });
    if (crashes > 0) t.throws(run, { message: "a crash" });
    else run();
    t.equal(records, 1, "only the message before the damage is used");
  }
});

t.test(
  "with durability `disk`, the store does not start if its WAL is damaged, even after a reboot",
  async (t) => {
    const path = await fourFiles(t, { durability: "disk" });
    for (const file of walFiles(path)) asOfAnotherBoot(file);
    damage(walFiles(path)[1] ?? "");
    await t.rejects(storeIn(path).start(), {
      code: "internal",
      message: /00000002\.log is damaged at byte/,
    });
  },
);

t.test(
  "the store does not start if a synced WAL file is damaged, even if later files are not synced",
  async (t) => {
    const path = await fourFiles(t);
    const files = walFiles(path);
    for (const [at, file] of files.entries()) asOfAnotherBoot(file, at < 2);
    damage(files[1] ?? "");
    await t.rejects(storeIn(path).start(), {
      code: "internal",
      message: /00000002\.log is damaged at byte/,
    });
  },
);

t.test(
  "the store does not start if a WAL file is missing, even if the later files are empty",
  async (t) => {
    const path = await fourFiles(t);
    const files = walFiles(path);
    for (const file of files.slice(2)) truncateSync(file, SEGMENT_HEADER_BYTES);
    rmSync(files[1] ?? "");
    await t.rejects(storeIn(path).start(), {
      code: "internal",
      message: /00000002\.log is missing/,
    });
  },
);

type Loss = (file: string) => void;

const losses: Readonly<Record<string, Loss>> = {
  "a missing folder": (file) => rmSync(dirname(file), { recursive: true }),
  "a missing file": (file) => rmSync(file),
  "an empty file": (file) => truncateSync(file),
  "only the header": (file) => truncateSync(file, SEGMENT_HEADER_BYTES),
  "only zeros": (file) => writeFileSync(file, Buffer.alloc(statSync(file).size)),
};

t.test(
  "a start is refused if the WAL ends before the byte that the database refers to, until the operator accepts the loss",
  async (t) => {
    for (const [way, durability] of (["process", "disk"] as const).entries())
      for (const [at, [name, lose]] of Object.entries(losses).entries()) {
        // By default, each loss is tested with only one durability.
        if (!IS_FULL && at % 2 !== way) continue;
        const path = testFolder(t);
        const store = await openStore(t, path, { durability });
        for (let i = 1; i <= 3; i++) await store.append(numbered(i));
        await store.checkpoint();
        await store.append(numbered(4));
        const reboots = durability === "disk" ? inAnotherBoot : undefined;
        const copy = await crashedCopy(t, path, reboots);
        const [file = ""] = walFiles(copy);
        lose(file);
        for (let attempt = 1; attempt <= 2; attempt++)
          await t.rejects(
            storeIn(copy).start(),
            { code: "internal", message: /00000001\.log .*the database refers to its byte \d+/ },
            `${name}, ${durability}, attempt ${attempt}`,
          );
        const { message } = await storeIn(copy)
          .start()
          .then(
            () => new Error("the store started"),
            (error: Error) => error,
          );
        const [, size] = /truncate -s (\d+) /.exec(message) ?? [];
        spawnSync("truncate", ["-s", `${size}`, file]);
        const accepted = await openStore(t, copy);
        t.same(await seqsIn(accepted), [1, 2, 3], name);
        t.equal((await accepted.append(numbered(5))).messageSeq, 4);
      }
  },
);

t.test(
  "a store with durability `process` starts after a power loss that shortened or removed its WAL",
  async (t) => {
    for (const [name, lose] of Object.entries(losses)) {
      const path = testFolder(t);
      const store = await openStore(t, path);
      for (let i = 1; i <= 3; i++) await store.append(numbered(i));
      await store.checkpoint();
      const copy = await crashedCopy(t, path, inAnotherBoot);
      lose(onlyFile(copy));
      const reopened = await openStore(t, copy, { onError() {} });
      t.same(await seqsIn(reopened), [1, 2, 3], name);
      t.equal((await reopened.append(numbered(4))).messageSeq, 4);
    }
  },
);

t.test("rows that cannot be read are reported, and the store starts without them", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  await store.switchFeed(true);
  const channels = ["g", "h"].map((id) => ({ id, type: 2 }) as const);
  for (const channel of channels) {
    await store.streamEvent(eventOf(STREAM_START, "", { channel }));
    await store.streamEvent(eventOf(STREAM_CONTENT, "one", { channel }));
  }
  const partition = bucketOf("2:g");
  const [newest] = (await store.readEvents(partition, EVENTS_START, 9)).rows.slice(-1);
  await store.close();
  await damageRow(path, "log"); // the message of the stream in the group g
  const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
  const eventAt = bucketOf("2:g") < bucketOf("2:h") ? 0 : 1;
  await env.openDB<unknown, number>({ name: "outbox" }).put(7, [99]);
  await env.close();
  await damageRow(path, "events", { at: eventAt, encoding: "msgpack" });

  const problems: string[] = [];
  const onError = (_: Error, what: string) => void problems.push(what);
  const reopened = await openStore(t, path, { onError });
  t.match(problems, [
    "Could not read events, so they are left out of the feed",
    "Could not load a stream, so it accepts no further events",
    "Could not read an event, so it is left out of the feed",
  ]);
  t.equal(await reopened.stream("2:g", "s"), undefined);
  t.match(await reopened.stream("2:h", "s"), { text: "one", state: "active" });
  await reopened.streamEvent(eventOf(STREAM_END, "", { channel: { id: "h", type: 2 } }));
  t.match(await reopened.stream("2:h", "s"), { state: "closed" });
  t.match((await reopened.newestEvents())[partition], { number: newest?.number });
  await reopened.checkpoint();
  t.equal(reopened.stats().activeStreamBytes, 0, "the other stream takes no memory");
});

t.test("events that the database has, but the WAL has lost, keep their numbers", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  await store.switchFeed(true);
  await store.append(numbered(1));
  for (const type of [STREAM_START, STREAM_END]) await store.streamEvent(eventOf(type));
  const { size } = statSync(onlyFile(path));
  await store.append(numbered(2));
  await store.append(numbered(3));
  await store.checkpoint();
  const eventsOf = async (events: Pick<Store, "readEvents">) =>
    (await events.readEvents(bucketOf("2:g"), EVENTS_START, 99)).rows;
  const before = await eventsOf(store);
  t.equal(before.length, 5);
  const copy = await crashedCopy(t, path, withoutCheckpoint);
  truncateSync(onlyFile(copy), size);
  const reopened = await openStore(t, copy);
  t.same(await eventsOf(reopened), before);
  await reopened.append(numbered(4));
  await reopened.checkpoint();
  t.same((await eventsOf(reopened)).slice(0, 5), before);
  t.equal((await eventsOf(reopened)).length, 6);
  t.equal(reopened.stats().memtableBytes, 0);
});

t.test("a user cannot forge damage by sending a WAL file as a payload", async (t) => {
  const otherFolder = await crashedWith(t, 1);
  const path = testFolder(t);
  const store = await openStore(t, path);
  await store.append(draftOf());
  await store.append(draftOf({ payload: readFileSync(onlyFile(otherFolder)) }));
  const copy = await crashedCopy(t, path);
  const file = onlyFile(copy);
  truncateSync(file, statSync(file).size - 1);
  const reopened = await openStore(t, copy, { onError() {} });
  t.same(await seqsIn(reopened), [1]);
});

t.test(
  "the store does not start if its first segment or a middle segment is missing",
  async (t) => {
    const path = testFolder(t);
    const store = await openStore(t, path, { segmentBytes: 64 });
    for (let i = 1; i <= 4; i++) await store.append(numbered(i));
    const copy = await crashedCopy(t, path);
    const files = walFiles(copy);
    t.ok(files.length >= 4);
    const [first, second] = files;
    rmSync(second ?? "");
    await t.rejects(storeIn(copy).start(), {
      message: /00000002\.log is missing/,
    });
    const secondCopy = await crashedCopy(t, path);
    rmSync(walFiles(secondCopy)[0] ?? "");
    await t.rejects(storeIn(secondCopy).start(), {
      message: /00000001\.log is missing/,
    });
    t.ok(first);
  },
);

t.test(
  "a segment whose creation was interrupted counts as empty and does not keep the store from starting",
  async (t) => {
    const path = await crashedWith(t, 2);
    for (const size of [0, 7, 16, 32, SEGMENT_HEADER_BYTES - 1]) {
      const copy = await crashedCopy(t, path);
      const next = onlyFile(copy).replace("00000001", "00000002");
      writeFileSync(next, Buffer.alloc(size));
      const store = await openStore(t, copy, { onError() {} });
      t.same(await seqsIn(store), [1, 2]);
      t.equal((await store.append(numbered(3))).messageSeq, 3);
    }
  },
);

t.test(
  "no message is repeated after a crash between a checkpoint and the deletion of its segments",
  async (t) => {
    const path = testFolder(t);
    const store = await openStore(t, path, { segmentBytes: 64 });
    for (let i = 1; i <= 5; i++) await store.append(numbered(i));
    const before = await crashedCopy(t, path);
    await store.checkpoint();
    const after = await crashedCopy(t, path);
    copyWal(before, after);
    const reopened = await openStore(t, after);
    t.same(await seqsIn(reopened), [1, 2, 3, 4, 5]);
    t.equal((await reopened.append(numbered(5))).duplicate, true);
    t.equal((await reopened.append(numbered(6))).messageSeq, 6);
  },
);

t.test("a partially written checkpoint is written again", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  for (let i = 1; i <= 3; i++) await store.append(numbered(i));
  await store.append(draftOf({ key: "2:h", channel: { id: "h", type: 2 } }));
  await store.checkpoint();
  // The database has everything except the WAL position.
  const copy = await crashedCopy(t, path, (meta) => {
    const position = meta.get("journal");
    meta.set("journal", [1, 1, 0, position?.at(3)]);
  });
  const reopened = await openStore(t, copy);
  t.same(await seqsIn(reopened), [1, 2, 3]);
  t.same(await seqsIn(reopened, "2:h"), [1]);
  t.equal((await reopened.append(numbered(3))).duplicate, true);
  t.equal((await reopened.append(numbered(4))).messageSeq, 4);
  await reopened.checkpoint();
  t.same(await seqsIn(reopened), [1, 2, 3, 4]);
  t.same(await seqsIn(reopened, "2:h"), [1]);
});

t.test("no seq is assigned twice if the database is ahead of an empty WAL", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  for (let i = 1; i <= 3; i++) await store.append(numbered(i));
  await store.checkpoint();
  const copy = await crashedCopy(t, path, inAnotherBoot);
  // A power loss removed the content of the page cache.
  truncateSync(onlyFile(copy), SEGMENT_HEADER_BYTES);
  const reopened = await openStore(t, copy);
  t.same(await seqsIn(reopened), [1, 2, 3]);
  t.equal((await reopened.append(numbered(4))).messageSeq, 4);
  const later = await openStore(t, await crashedCopy(t, copy));
  t.same(await seqsIn(later), [1, 2, 3, 4]);
});

t.test("no seq is assigned twice if the database is ahead of a shortened WAL", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  const ends: number[] = [];
  for (let i = 1; i <= 3; i++) {
    await store.append(numbered(i));
    ends.push(statSync(onlyFile(path)).size);
  }
  await store.checkpoint();
  // The rows reached the disk, but the WAL position and the end of the WAL did not.
  const fromTheStart = (meta: Map<string, unknown[]>) =>
    void meta.set("journal", [1, 1, 0, meta.get("journal")?.at(3)]);
  for (const end of [SEGMENT_HEADER_BYTES, ...ends.slice(0, 2)]) {
    const copy = await crashedCopy(t, path, fromTheStart);
    truncateSync(onlyFile(copy), end);
    const reopened = await openStore(t, copy);
    t.equal(await reopened.headSeq("2:g"), 3);
    t.equal((await reopened.append(numbered(4))).messageSeq, 4);
    await reopened.checkpoint();
    const later = await openStore(t, await crashedCopy(t, copy));
    t.same(
      await seqsIn(later),
      [1, 2, 3, 4],
      `the messages are complete after the WAL was truncated at byte ${end}`,
    );
    t.equal((await later.append(numbered(5))).messageSeq, 5);
  }
});

t.test("a user's own messages count as read even if the WAL has lost them", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  const toBob = { id: "b", type: 1 } as const;
  const ends: number[] = [];
  for (let i = 1; i <= 3; i++) {
    await store.append(draftOf({ key: "1:a@b", channel: toBob, fromUid: "a" }));
    ends.push(statSync(onlyFile(path)).size);
  }
  await store.checkpoint();
  t.equal((await store.conversation("a", toBob))?.unread, 0);
  const copy = await crashedCopy(t, path, fromTheStart);
  truncateSync(onlyFile(copy), ends[0]);
  const reopened = await openStore(t, copy);
  t.match(await reopened.conversation("a", toBob), { headSeq: 3, unread: 0 });
});

t.test(
  "data in a different format is refused, and the error message names both formats",
  async (t) => {
    const path = await crashedWith(t, 1);
    for (const format of [DATA_FORMAT - 1, DATA_FORMAT + 1]) {
      const other = await crashedCopy(t, path, (meta) => meta.set("format", [format]));
      await t.rejects(storeIn(other).start(), {
        code: "internal",
        message: new RegExp(`format ${format},.* format ${DATA_FORMAT}\\.`),
      });
    }
    const original = storeIn(path);
    t.equal(await codeOf(original.start()), undefined, "the original folder can be opened");
    await original.close();
  },
);

t.test("messages that three checkpoints wrote can be read after a later checkpoint", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  for (let i = 1; i <= 3; i++) {
    await store.append(numbered(i));
    await store.checkpoint(); // gives each message a row of its own
  }
  const copy = await crashedCopy(t, path);
  const reopened = await openStore(t, copy);
  for (let i = 4; i <= 6; i++) void reopened.append(numbered(i));
  await reopened.close();
  const later = await openStore(t, copy);
  t.same(await seqsIn(later), [1, 2, 3, 4, 5, 6]);
});

t.test("a store that contains a value in a newer format does not start", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  const copy = await crashedCopy(t, path, (meta) => meta.set("dedupe", [9, 1, 1]));
  await t.rejects(storeIn(copy).start(), {
    code: "internal",
    message: /format 9/,
  });
  t.equal(await codeOf(store.ping()), undefined);
});
