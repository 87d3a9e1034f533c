// The memtable's index of client message numbers. Imports the memtable itself, because no call of
// the store shows whether two names share a hash, or what is still in memory.

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
const LIMITS = { maxBytes: 2 ** 30, maxRecords: 2 ** 30 };

interface Name {
  readonly key: string;
  readonly fromUid: string;
  readonly clientMsgNo: string;
}

const named = (i: number): Name => ({
  ...{ key: `2:${i % KEYS}`, fromUid: `u${i % 7}`, clientMsgNo: `n${i}` },
});

/** Assigns another message with this name. */
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

/** Returns two strings that have the same hash after `prefixHash`. */
function textsWithSameHash(prefixHash?: number): readonly [string, string] {
  const texts = new Map<number, string>();
  for (let i = 0; ; i++) {
    const text = `${i}-${Math.imul(i, 0x9e3779b1)}`;
    const hash = hashText(text, prefixHash);
    const earlier = texts.get(hash);
    if (earlier !== undefined) return [earlier, text];
    texts.set(hash, text);
  }
}

t.test(
  "messages whose names (channel, sender and clientMsgNo) have the same hash value are distinguished",
  async (t) => {
    const base = { key: "2:k", fromUid: "u", clientMsgNo: "n" };
    const hashAfterKey = hashText(base.key);
    const hashAfterUid = hashText(base.fromUid, hashAfterKey);
    const pairs = {
      key: textsWithSameHash(),
      fromUid: textsWithSameHash(hashAfterKey),
      clientMsgNo: textsWithSameHash(hashAfterUid),
    };
    for (const [field, [a, b]] of Object.entries(pairs)) {
      const memtable = new Memtable(() => undefined, LIMITS);
      const names = [a, b].map((text) => ({ ...base, [field]: text }));
      const [first, second] = names.map((name) => assign(memtable, name));
      if (first === undefined || second === undefined) return;
      t.equal(first.hash, second.hash, `${field}: both have the same hash`);
      const finds = (...expected: readonly (MemtableRecord | undefined)[]) =>
        names.every((name, i) => memtable.find(name) === expected[i]);
      t.ok(finds(first, second), `${field}: each name finds its own record`);
      memtable.rollBack(first);
      t.ok(finds(undefined, second), `${field}: the older record is no longer found`);
      memtable.rollBack(second);
      t.ok(finds(undefined, undefined), `${field}: the newer record is no longer found`);
    }
  },
);

t.test("a lookup by clientMsgNo returns the newest record that was not rolled back", async (t) => {
  const memtable = new Memtable(() => undefined, LIMITS);
  const [oldest, middle, newest] = Array.from({ length: 3 }, () => assign(memtable, named(0)));
  if (middle === undefined || newest === undefined) return;
  memtable.rollBack(middle);
  t.equal(memtable.find(named(0)), newest, "the newest record is found");
  memtable.rollBack(newest);
  t.equal(memtable.find(named(0)), oldest, "the oldest record is found");
});

t.test(
  "a flush removes from memory the records that were committed when it began, and their clientMsgNos",
  async (t) => {
    const memtable = new Memtable(() => undefined, LIMITS);
    const assignFrom = (from: number) =>
      Array.from({ length: 150 }, (_, i) => assign(memtable, named(from + i)));
    const early = assignFrom(0);
    for (const record of early) memtable.commit(record);
    const uncommitted = assignFrom(200);
    const flush = memtable.startFlush();
    const late = uncommitted.slice(0, 100);
    for (const record of late) memtable.commit(record);
    finish(memtable, flush);
    t.equal(
      count(early, (_, i) => memtable.find(named(i)) === undefined),
      150,
      "flushed records are no longer found",
    );
    t.equal(
      count(uncommitted, (record, i) => memtable.find(named(200 + i)) === record),
      150,
      "records that were not committed when the flush began are found",
    );
    const next = memtable.startFlush().flatMap(({ log }) => log);
    t.same(
      new Set(next),
      new Set(late),
      "the next flush contains the records that were committed in the meantime",
    );
    for (const record of uncommitted.slice(100)) memtable.rollBack(record);
    const channels = flush.map(({ channel }) => channel);
    t.ok(
      channels.every(({ assigned, head }) => assigned === head),
      "seqs that were rolled back are assigned again",
    );
    t.ok(
      channels.every(({ counted, headCounted }) => counted === headCounted),
      "messages that were rolled back are not counted",
    );
    finish(memtable, memtable.startFlush());
    t.same([memtable.records, memtable.bytes], [0, 0], "the memtable is empty");
  },
);

t.test("a record committed while a flush finishes is in the next flush exactly once", async (t) => {
  const memtable = new Memtable(() => undefined, LIMITS);
  let next = 0;
  const commitInEach = () => {
    for (let i = 0; i < KEYS; i++) memtable.commit(assign(memtable, named(next++)));
  };
  commitInEach();
  for (const _ of memtable.finishFlush(memtable.startFlush())) commitInEach();
  const flush = memtable.startFlush();
  t.equal(flush.length, KEYS, "each channel is in the flush once");
  const seqs = flush.map(({ log }) => log.map((record) => record.messageSeq));
  const expectedSeqs = Array.from({ length: KEYS }, (_, i) => i + 2);
  t.ok(
    seqs.every((channelSeqs) => channelSeqs.join() === expectedSeqs.join()),
    "each message is in the flush once",
  );
});

function finish(memtable: Memtable, flush: readonly ChannelFlush[]): void {
  for (const _ of memtable.finishFlush(flush));
}

function count(
  records: readonly MemtableRecord[],
  isCounted: (record: MemtableRecord, i: number) => boolean,
): number {
  return records.filter(isCounted).length;
}

t.test(
  "the oldest channels without records are evicted until the limit of channels is met, and channels with records are kept",
  (t) => {
    const memtable = new Memtable(() => undefined, LIMITS);
    const busy = 20;
    for (let i = 0; i < busy; i++) assign(memtable, { ...named(i), key: `2:busy${i}` });
    const idle = 100_000;
    for (let i = 0; i < idle; i++) memtable.channel(`2:idle${i}`);
    memtable.evictIdle();
    const isKept = (key: string) => memtable.peek(key) !== undefined;
    t.ok(isKept("2:busy0"), "a channel with records is kept");
    t.notOk(isKept(`2:idle${busy - 1}`));
    t.ok(isKept(`2:idle${busy}`));
    t.end();
  },
);
