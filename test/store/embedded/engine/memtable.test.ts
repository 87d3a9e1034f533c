// The map of client message numbers of all channels. Imports the memtable itself: no call of the
// store shows whether two names share a hash, nor what is still held.

import type { Message } from "../../../../src/broker/model.ts";
import { hashText } from "../../../../src/lib/text-hash.ts";
import {
  type ChannelFlush,
  Memtable,
  type MemtableRecord,
} from "../../../../src/store/embedded/engine/memtable.ts";
import {
  encodeRecord,
  MESSAGE_RECORD,
  maxRecordBytes,
  type StoredRecord,
} from "../../../../src/store/embedded/engine/record.ts";
import { t } from "../../../support/suite.ts";

const KEYS = 10;
const BOUNDS = { maxBytes: 2 ** 30, maxRecords: 2 ** 30 };

interface Name {
  readonly key: string;
  readonly fromUid: string;
  readonly clientMsgNo: string;
}

const named = (i: number): Name => ({
  ...{ key: `2:${i % KEYS}`, fromUid: `u${i % 7}`, clientMsgNo: `n${i}` },
});

/** Takes in one more message of that name. */
function assign(memtable: Memtable, name: Name): MemtableRecord {
  const channel = memtable.channel(name.key);
  const message: Message = {
    ...name,
    messageId: 1,
    messageSeq: channel.assigned + 1,
    channel: { id: "", type: 2 },
    timestampMs: 0,
    header: { noPersist: false, redDot: true },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: new Uint8Array(0),
    stream: undefined,
  };
  const stored: StoredRecord = {
    ...{ kind: MESSAGE_RECORD, message, dedupe: true, isStream: false },
    counted: channel.counted + 1,
  };
  const bytes = Buffer.alloc(maxRecordBytes(message));
  const end = encodeRecord(bytes, 0, stored);
  return memtable.assign(channel, stored, { bytes, start: 0, end });
}

/** Two texts whose hashes are the same behind `before`. */
function sharing(before?: number): readonly [string, string] {
  const texts = new Map<number, string>();
  for (let i = 0; ; i++) {
    const text = `${i}-${Math.imul(i, 0x9e3779b1)}`;
    const hash = hashText(text, before);
    const other = texts.get(hash);
    if (other !== undefined) return [other, text];
    texts.set(hash, text);
  }
}

t.test("names that share a hash are told apart", async (t) => {
  const one = { key: "2:k", fromUid: "u", clientMsgNo: "n" };
  const behindKey = hashText(one.key);
  const behindUid = hashText(one.fromUid, behindKey);
  const pairs = {
    key: sharing(),
    fromUid: sharing(behindKey),
    clientMsgNo: sharing(behindUid),
  };
  for (const [field, [a, b]] of Object.entries(pairs)) {
    const memtable = new Memtable(() => undefined, BOUNDS);
    const names = [a, b].map((text) => ({ ...one, [field]: text }));
    const [first, second] = names.map((name) => assign(memtable, name));
    if (first === undefined || second === undefined) return;
    t.equal(first.hash, second.hash, `${field}: one hash`);
    const finds = (...wanted: readonly (MemtableRecord | undefined)[]) =>
      names.every((name, i) => memtable.find(name) === wanted[i]);
    t.ok(finds(first, second), `${field}: each finds its own`);
    memtable.rollBack(first);
    t.ok(finds(undefined, second), `${field}: the older is gone`);
    memtable.rollBack(second);
    t.ok(finds(undefined, undefined), `${field}: the newer is gone`);
  }
});

t.test("of those with one name the newest that is left is found", async (t) => {
  const memtable = new Memtable(() => undefined, BOUNDS);
  const [oldest, middle, newest] = Array.from({ length: 3 }, () => assign(memtable, named(0)));
  if (middle === undefined || newest === undefined) return;
  memtable.rollBack(middle);
  t.equal(memtable.find(named(0)), newest, "the newest");
  memtable.rollBack(newest);
  t.equal(memtable.find(named(0)), oldest, "the oldest");
});

t.test("a flush lets go of what was committed when it began, also of the numbers", async (t) => {
  const memtable = new Memtable(() => undefined, BOUNDS);
  const some = (from: number) =>
    Array.from({ length: 150 }, (_, i) => assign(memtable, named(from + i)));
  const early = some(0);
  for (const record of early) memtable.commit(record);
  const uncommitted = some(200);
  const flush = memtable.startFlush();
  const late = uncommitted.slice(0, 100);
  for (const record of late) memtable.commit(record);
  finish(memtable, flush);
  t.equal(
    count(early, (_, i) => memtable.find(named(i)) === undefined),
    150,
    "what was flushed is gone",
  );
  t.equal(
    count(uncommitted, (record, i) => memtable.find(named(200 + i)) === record),
    150,
    "what was not committed in time is found",
  );
  const rest = memtable.startFlush().flatMap(({ log }) => log);
  t.same(new Set(rest), new Set(late), "and is what comes next");
  for (const record of uncommitted.slice(100)) memtable.rollBack(record);
  const heads = flush.map(({ channel }) => channel);
  t.ok(
    heads.every(({ assigned, head }) => assigned === head),
    "seqs rolled back are given again",
  );
  t.ok(
    heads.every(({ counted, headCounted }) => counted === headCounted),
    "and are not counted",
  );
  finish(memtable, memtable.startFlush());
  t.same([memtable.records, memtable.bytes], [0, 0], "nothing is held");
});

t.test("what is committed while a flush lets go is in the next one, once", async (t) => {
  const memtable = new Memtable(() => undefined, BOUNDS);
  let next = 0;
  const commitInEach = () => {
    for (let i = 0; i < KEYS; i++) memtable.commit(assign(memtable, named(next++)));
  };
  commitInEach();
  for (const _ of memtable.finishFlush(memtable.startFlush())) commitInEach();
  const flush = memtable.startFlush();
  t.equal(flush.length, KEYS, "each channel once");
  const seqs = flush.map(({ log }) => log.map((one) => one.messageSeq));
  const wanted = Array.from({ length: KEYS }, (_, i) => i + 2);
  t.ok(
    seqs.every((ofOne) => ofOne.join() === wanted.join()),
    "each message once",
  );
});

function finish(memtable: Memtable, flush: readonly ChannelFlush[]): void {
  for (const _ of memtable.finishFlush(flush));
}

function count(
  records: readonly MemtableRecord[],
  isOne: (record: MemtableRecord, i: number) => boolean,
): number {
  return records.filter(isOne).length;
}
