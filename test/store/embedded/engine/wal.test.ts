// Writes of the WAL when file calls fail, and the segment files that it opens and deletes.

import * as fs from "node:fs";
import type { Test } from "tap";
import {
  FRAME_HEADER_BYTES,
  listSegments,
  readFrames,
  readSegmentHeader,
  SEGMENT_HEADER_BYTES,
  UNKNOWN_BOOT,
} from "../../../../src/store/embedded/engine/segment.ts";
import { Wal, type WalFiles } from "../../../../src/store/embedded/engine/wal.ts";
import { codeOf, draftOf } from "../../../contract/store-fixture.ts";
import { t } from "../../../support/suite.ts";
import { brittleFiles } from "../brittle-files.ts";
import { openStore, seqsIn, storeIn, testFolder } from "../folder.ts";

function frameOf(text: string): Buffer {
  const body = Buffer.from(text);
  const frame = Buffer.alloc(FRAME_HEADER_BYTES + 4 + body.length);
  frame.writeUInt32LE(body.length, FRAME_HEADER_BYTES);
  frame.set(body, FRAME_HEADER_BYTES + 4);
  return frame;
}

function textsIn(folder: string): string[] {
  const texts: string[] = [];
  for (const index of listSegments(folder)) {
    const name = `${folder}/${String(index).padStart(8, "0")}.log`;
    const bytes = fs.readFileSync(name);
    const header = readSegmentHeader(bytes);
    if (header.kind !== "ok") throw new Error(header.kind);
    const at = { from: SEGMENT_HEADER_BYTES, salt: header.salt };
    const end = readFrames(bytes, at, (r) => texts.push(r.toString()));
    if (end !== bytes.length) throw new Error(`${name} has invalid data after its frames`);
  }
  return texts;
}

function openWal(t: Test, over: { segmentBytes?: number; synced?: boolean } = {}) {
  const folder = testFolder(t);
  const { fail, files } = brittleFiles();
  const problems: Error[] = [];
  const lease = { isHeld: true };
  const assertWasHeld = () => {
    if (!lease.isHeld) throw new Error("the lease is lost");
  };
  const options = {
    folder,
    firstSegment: 1,
    segmentBytes: 1_000_000,
    synced: false,
    boot: UNKNOWN_BOOT,
    storeId: "",
    owner: { assertHeldNow() {}, assertWasHeld },
    onError: (error: Error) => void problems.push(error),
  };
  const wal = new Wal({ ...options, files, ...over });
  let isClosed = false;
  const close = () => {
    if (!isClosed) wal.close();
    isClosed = true;
  };
  t.teardown(close);
  return { folder, fail, wal, close, problems, lease };
}

t.test("a closed WAL does not write to another file that has the same descriptor", async (t) => {
  const { folder, wal, close } = openWal(t);
  wal.write(frameOf("a"));
  close();
  const other = fs.openSync(`${folder}/other`, "w+"); // usually has the number of the closed file
  t.throws(() => wal.write(frameOf("b")), { message: "The WAL is closed" });
  t.throws(() => wal.probe(), { message: "The WAL is closed" });
  await t.rejects(wal.sync(), { message: "The WAL is closed" });
  t.equal(fs.fstatSync(other).size, 0);
  fs.closeSync(other);
});

t.test("a write that the system completes only in part is continued", async (t) => {
  const { folder, fail, wal } = openWal(t);
  fail.short = 3;
  wal.write(frameOf("a".repeat(1000)));
  wal.write(frameOf("b"));
  t.same(textsIn(folder), ["a".repeat(1000), "b"]);
});

t.test("a failed write leaves no bytes in the WAL, and the next write succeeds", async (t) => {
  const { folder, fail, wal } = openWal(t);
  wal.write(frameOf("a"));
  const { position } = wal;
  fail.short = 1;
  fail.write = 1;
  t.throws(() => wal.write(frameOf("b".repeat(100))), { code: "ENOSPC" });
  t.same(wal.position, position);
  t.same(textsIn(folder), ["a"]);
  fail.write = 1;
  t.throws(() => wal.probe(), { code: "ENOSPC" });
  wal.probe();
  wal.write(frameOf("c"));
  t.same(textsIn(folder), ["a", "c"]);
});

t.test(
  "a WAL that cannot remove the bytes of a failed write accepts no further writes",
  async (t) => {
    const { fail, wal } = openWal(t);
    fail.short = 1;
    fail.write = 1;
    fail.truncate = true;
    t.throws(() => wal.write(frameOf("b".repeat(100))));
    fail.truncate = false;
    t.throws(() => wal.write(frameOf("c")));
    t.throws(() => wal.probe());
  },
);

t.test(
  "the current segment grows while no new segment can be created, and the creation is retried after each written MiB",
  async (t) => {
    const { folder, fail, wal, problems } = openWal(t, {
      segmentBytes: SEGMENT_HEADER_BYTES + 4,
    });
    wal.write(frameOf("a"));
    fail.write = 1;
    wal.write(frameOf("b"));
    t.match(problems, [{ code: "ENOSPC" }]);
    wal.write(frameOf("c"));
    t.same(listSegments(folder), [1]);
    const long = "d".repeat(1024 * 1024);
    for (const text of [long, "e", "f"]) wal.write(frameOf(text));
    t.same(listSegments(folder), [1, 2, 3]);
    t.same(textsIn(folder), ["a", "b", "c", long, "e", "f"]);
    t.equal(problems.length, 1);
  },
);

t.test("a segment file that a former owner created is not changed", async (t) => {
  const { folder, wal } = openWal(t, {
    segmentBytes: SEGMENT_HEADER_BYTES + 4,
  });
  wal.write(frameOf("a"));
  fs.writeFileSync(`${folder}/00000002.log`, "");
  wal.write(frameOf("b"));
  t.same(listSegments(folder), [1, 2, 3]);
  t.same(wal.position.segment, 3);
  t.equal(fs.statSync(`${folder}/00000002.log`).size, 0);
});

t.test(
  "a frame is removed from the WAL if the process no longer owns the folder after the write",
  async (t) => {
    const { folder, wal, lease } = openWal(t);
    wal.write(frameOf("a"));
    lease.isHeld = false;
    t.throws(() => wal.write(frameOf("b")), /lost/);
    lease.isHeld = true;
    wal.write(frameOf("c"));
    t.same(textsIn(folder), ["a", "c"]);
  },
);

t.test("full segments are closed, and old segments are deleted", async (t) => {
  for (const synced of [false, true]) {
    const { folder, wal } = openWal(t, {
      segmentBytes: SEGMENT_HEADER_BYTES + 4,
      synced,
    });
    const openBefore = openFiles(folder);
    for (const text of "abcdef") {
      wal.write(frameOf(text));
      if (synced) await wal.sync();
    }
    t.same(textsIn(folder), [..."abcdef"]);
    t.equal(openFiles(folder), openBefore);
    await wal.deleteBefore({ segment: 5, offset: 16 });
    t.same(textsIn(folder), ["e", "f"]);
  }
});

function openFiles(folder: string): number {
  const links = fs.readdirSync("/proc/self/fd").map((fd) => {
    try {
      return fs.readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return ""; // the descriptor of the listing itself
    }
  });
  return links.filter((link) => link.startsWith(folder)).length;
}

t.test(
  "messages sent in one event-loop turn are rejected and use no seqs if the disk is full",
  async (t) => {
    const { fail, files } = brittleFiles();
    const path = testFolder(t);
    const store = await openStore(t, path, { files });
    await store.append(draftOf());
    fail.write = 1;
    const retriedDraft = { ...draftOf(), clientMsgNo: "n" };
    const sends = [store.append(retriedDraft), store.append(retriedDraft), store.append(draftOf())];
    t.same(await Promise.all(sends.map(codeOf)), Array(3).fill("disk_full"));
    t.equal(await store.headSeq("2:g"), 1);
    fail.write = 1;
    t.equal(await codeOf(store.ping()), "unavailable");
    t.equal(await codeOf(store.ping()), undefined);
    t.match(await store.append(retriedDraft), { messageSeq: 2, duplicate: false });
    t.same(await seqsIn(store), [1, 2]);
  },
);

t.test(
  "messages that wait for a failed fsync are refused, and so are all later messages",
  async (t) => {
    const { fail, files } = brittleFiles();
    const path = testFolder(t);
    const problems: string[] = [];
    const events: unknown[] = [];
    const store = storeIn(path, {
      files,
      durability: "disk",
      onError: (_, what) => problems.push(what),
      publisher: { publish: (event) => void events.push(event) },
    });
    await store.start();
    await store.append(draftOf());
    fail.sync = true;
    const first = store.append(draftOf());
    await new Promise(setImmediate);
    const second = store.append(draftOf());
    t.equal(await codeOf(first), "unavailable");
    t.equal(await codeOf(second), "unavailable");
    fail.sync = false;
    t.equal(await codeOf(store.append(draftOf())), "unavailable");
    t.equal(await codeOf(store.ping()), "unavailable");
    t.same(await seqsIn(store), [1]);
    t.equal(events.length, 1);
    t.ok(problems.includes("Could not flush the WAL to the disk"));
    await store.close();
  },
);

t.test(
  "with durability `disk`, a send is acknowledged after its fsync, and later sends share the next fsync",
  async (t) => {
    const waiting: (() => void)[] = [];
    const files: WalFiles = {
      ...brittleFiles().files,
      fdatasync: (fd, done) => void waiting.push(() => fs.fdatasync(fd, done)),
    };
    const store = await openStore(t, testFolder(t), {
      files,
      durability: "disk",
    });
    const answered: number[] = [];
    const send = async () => void answered.push((await store.append(draftOf())).messageSeq);
    const turn = () => new Promise(setImmediate);
    const sends = [send()];
    while (waiting.length === 0) await turn();
    for (let i = 0; i < 5; i++) {
      sends.push(send());
      await turn();
    }
    t.same(answered, []);
    t.equal(await store.headSeq("2:g"), 0);
    t.same(await seqsIn(store), []);
    t.equal(waiting.length, 1);
    waiting.shift()?.();
    while (waiting.length === 0) await turn();
    t.same(answered, [1]);
    t.equal(waiting.length, 1, "one fsync serves all five sends");
    // A checkpoint between the messages writes only the committed messages.
    await store.checkpoint();
    t.same(await seqsIn(store), [1]);
    waiting.shift()?.();
    await Promise.all(sends);
    t.same(answered, [1, 2, 3, 4, 5, 6]);
    await store.checkpoint();
    t.same(await seqsIn(store), [1, 2, 3, 4, 5, 6]);
    setImmediate(function release() {
      for (const sync of waiting.splice(0)) sync();
    });
  },
);
