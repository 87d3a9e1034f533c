// The record codec: decoding returns what was encoded, and newer formats are refused.

import type { Message } from "../../../src/broker/model.ts";
import {
  DEDUPE_RECORD,
  decodeRecord,
  encodeRecord,
  isStreamRecord,
  MESSAGE_RECORD,
  maxRecordBytes,
  peekCounted,
  peekTimes,
  RECORD_VERSION,
  type StoredRecord,
} from "../../../src/store/embedded/engine/record.ts";
import { t } from "../../support/suite.ts";

/** Returns a seeded generator of non-negative integers below `n`. */
function randomFrom(seed: number): (n: number) => number {
  let state = seed;
  return (n) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state % n;
  };
}

function randomMessage(below: (n: number) => number, isStored: boolean): Message {
  const alphabet = ["a", "Z", "0", "é", "漢", "\u{1F600}", "-"];
  const text = (max: number) =>
    Array.from({ length: below(max) }, () => alphabet[below(alphabet.length)]).join("");
  return {
    messageId: below(2 ** 31) * 2 ** 21,
    messageSeq: isStored ? below(2 ** 31) + 1 : 0,
    key: text(300),
    channel: { id: text(130), type: below(2) === 0 ? 1 : 2 },
    fromUid: text(130),
    clientMsgNo: text(130),
    timestampMs: 1_700_000_000_000 + below(2 ** 31),
    header: { noPersist: !isStored, redDot: below(2) === 0 },
    expireS: below(2) === 0 ? 0 : below(2 ** 32),
    streamNo: below(2) === 0 ? undefined : text(100),
    tagKey: below(2) === 0 ? undefined : text(100),
    passthrough: below(4) === 0 ? { setting: below(256), topic: text(130) } : undefined,
    payload: Uint8Array.from({ length: below(400) }, () => below(256)),
    stream: undefined,
  };
}

t.test(
  "2000 random records are decoded as they were encoded and do not exceed their maximum size",
  async (t) => {
    const below = randomFrom(20_260_101);
    const target = Buffer.alloc(10_000);
    for (let i = 0; i < 2000; i++) {
      const kind = i % 3 === 0 ? DEDUPE_RECORD : MESSAGE_RECORD;
      const message = randomMessage(below, kind === MESSAGE_RECORD);
      const record: StoredRecord = {
        kind,
        message,
        dedupe: i % 2 === 0,
        counted: below(2 ** 31) * 2 ** 20,
        isStream: i % 5 === 0,
      };
      const end = encodeRecord(target, 100, record);
      if (end - 100 > maxRecordBytes(message)) t.fail("the record is larger than its maximum size");
      const bytes = target.subarray(100, end);
      t.same(decodeRecord(bytes), record);
      t.equal(peekTimes(bytes).timestampMs, message.timestampMs);
      t.equal(isStreamRecord(bytes), record.isStream);
      t.same(peekCounted(bytes), {
        counted: record.counted,
        isCounted: message.header.redDot && message.expireS === 0,
      });
    }
  },
);

t.test("a record of a newer format is refused", async (t) => {
  const target = Buffer.alloc(4000);
  const message = randomMessage(randomFrom(1), true);
  const record = recordOf(message);
  const bytes = target.subarray(0, encodeRecord(target, 0, record));
  bytes[0] = RECORD_VERSION + 1;
  t.throws(() => decodeRecord(bytes), { code: "internal" });
  t.throws(() => peekTimes(bytes), { code: "internal" });
  t.throws(() => peekCounted(bytes), { code: "internal" });
  t.throws(() => isStreamRecord(bytes), { code: "internal" });
});

t.test(
  "a record of version 1, which lacks the field `counted`, is read with 0 in that field",
  async (t) => {
    const target = Buffer.alloc(4000);
    const message = randomMessage(randomFrom(2), true);
    const record = { ...recordOf(message), counted: 7 };
    const end = encodeRecord(target, 0, record);
    // Version 1 does not have the 8 bytes of `counted` between the fixed fields and the strings.
    const old = Buffer.concat([target.subarray(0, 32), target.subarray(40, end)]);
    old[0] = 1;
    t.same(decodeRecord(old), { ...record, counted: 0 });
    t.equal(peekCounted(old).counted, 0);
  },
);

t.test("only a record with passthrough fields has version 3", async (t) => {
  const target = Buffer.alloc(4000);
  const message = randomMessage(randomFrom(2), true);
  const versionOf = (candidate: Message) => {
    encodeRecord(target, 0, recordOf(candidate));
    return target[0];
  };
  t.equal(versionOf({ ...message, passthrough: undefined }), 2);
  const passthrough = { setting: 0x80, topic: "" };
  t.equal(versionOf({ ...message, passthrough }), 3);
});

function recordOf(message: Message): StoredRecord {
  const kind = MESSAGE_RECORD;
  return { kind, message, dedupe: false, counted: 0, isStream: false };
}
