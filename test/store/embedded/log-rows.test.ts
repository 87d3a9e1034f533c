// The rows of the table `log`, which contain one record or several, compared with a plain list.
// Imports the table's own file, because no call of the store shows where a row begins.

import { join } from "node:path";
import { FolderLock } from "../../../src/store/embedded/engine/folder-lock.ts";
import {
  countIn,
  type EncodedRecord,
  LogRows,
  MAX_SEQ,
  recordsFrom,
  rowLength,
} from "../../../src/store/embedded/engine/log-rows.ts";
import { openTables } from "../../../src/store/embedded/engine/tables.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { t } from "../../support/suite.ts";
import { openStore, seqsIn, testFolder } from "./folder.ts";

/** Returns bytes like those of a record: the first byte is a version. */
function recordOf(seq: number, size = 20): EncodedRecord {
  const bytes = Buffer.alloc(size, seq % 251);
  bytes[0] = 2;
  bytes.writeUInt32LE(seq, 4);
  return { bytes, start: 0, end: size };
}

const seqOf = (bytes: Buffer) => bytes.readUInt32LE(4);

t.test("a record is found by its seq, whichever row contains it", async (t) => {
  const folder = testFolder(t);
  const tables = openTables(join(folder, "lmdb"));
  const owner = new FolderLock(tables, folder, () => {});
  await owner.acquire();
  t.teardown(async () => {
    owner.release();
    await tables.env.close();
  });
  const rows = new LogRows(tables);
  const seqs: number[] = [];
  await tables.fence.write(() => {
    let random = 7;
    for (let seq = 1; seq < 400; ) {
      random = (random * 48_271) % 0x7fff_ffff;
      const count = random % 3 === 0 ? 1 : 1 + (random % 64);
      const records = Array.from({ length: count }, (_, i) => recordOf(seq + i));
      rows.put(7, seq, records);
      rows.put(8, seq, records); // rows of another channel, which must not be read
      seqs.push(...records.map(({ bytes }) => seqOf(bytes)));
      seq += count + (random % 5 === 0 ? 1 + (random % 9) : 0);
    }
  });
  const last = seqs.at(-1) ?? 0;
  for (let from = 0; from <= last + 2; from += 3) {
    const first = seqs.find((seq) => seq >= from);
    const record = rows.firstFrom(7, from, last + 1);
    const isSame = record?.seq === first && seqOf(record?.bytes ?? EMPTY) === (first ?? 0);
    if (!isSame) t.fail(`the first record from seq ${from} has seq ${record?.seq}, not ${first}`);
    for (const to of [from, from + 1, from + 70, MAX_SEQ]) {
      const expectedSeqs = seqs.filter((seq) => seq >= from && seq <= to);
      const ascending = [...rows.scan(7, from, to)];
      const descending = [...rows.scanReverse(7, Math.max(from, 1), to)].reverse();
      for (const records of [ascending, descending]) {
        const isExpected =
          records.length === expectedSeqs.length &&
          records.every(({ seq, bytes }, i) => seq === expectedSeqs[i] && seqOf(bytes) === seq);
        if (!isExpected)
          t.fail(
            `a scan from seq ${from} to ${to} returns wrong seqs: ${records.map(({ seq }) => seq)}`,
          );
      }
    }
  }
  const [row] = [...rows.scanRows(7, 1, MAX_SEQ)].filter((r) => r.last > r.first);
  if (row === undefined) throw new Error("there is no row with several records");
  t.equal(countIn(row.value), row.last - row.first + 1);
  const keptRecords = recordsFrom(row, row.last);
  t.same(
    keptRecords.map(({ bytes }) => seqOf(bytes)),
    [row.last],
    "the shortened row keeps the records from the given seq on",
  );
});

const EMPTY = Buffer.alloc(8);

t.test(
  "a row of the table `log` contains at most 64 records and 16 KiB, or a single larger record",
  async (t) => {
    const few = Array.from({ length: 100 }, (_, i) => recordOf(i));
    t.equal(rowLength(few, 0, 100), 64);
    t.equal(rowLength(few, 64, 100), 36);
    t.equal(rowLength(few, 64, 70), 6);
    const large = Array.from({ length: 9 }, (_, i) => recordOf(i, 5000));
    t.equal(rowLength(large, 0, 9), 3);
    t.equal(rowLength([recordOf(1, 40_000)], 0, 1), 1);
  },
);

t.test(
  "a channel whose oldest row a sweep has shortened is read without gaps, even after a restart",
  async (t) => {
    const path = testFolder(t);
    const over = { maxChannelMessages: 10 };
    const store = await openStore(t, path, over);
    for (let i = 0; i < 25; i++) void store.append(draftOf());
    await store.append(draftOf());
    await store.checkpoint();
    t.equal(await store.sweep(), 16, "16 of the 26 messages in the row are removed");
    for (let i = 0; i < 3; i++) await store.append(draftOf());
    await store.close();
    const reopened = await openStore(t, path, over);
    t.same(await seqsIn(reopened), [17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]);
    const { messages } = await reopened.readMessages("2:g", {
      ...{
        fromSeq: 1,
        toSeq: 28,
        limit: 3,
        reverse: true,
        maxBytes: 1_000_000,
      },
    });
    t.same(
      messages.map((m) => m.messageSeq),
      [28, 27, 26],
    );
  },
);
