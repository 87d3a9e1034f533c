// The bytes of logs. They are tested here and not over HTTP, because both stores must produce
// exactly these bytes, and readers in other processes depend on them.

import t from "tap";
import {
  BUCKETS,
  bucketOf,
  cutRecords,
  FRAME_BYTES,
  formatOffset,
  frameSize,
  framesIn,
  isJsonLog,
  isSameOffset,
  isWholeCut,
  LOG_START,
  type LogFrame,
  type LogName,
  logBucket,
  logNameText,
  logPath,
  logTopic,
  mediaTypeOf,
  nextCheck,
  openFrame,
  parseOffset,
  recordCount,
  recordsIn,
  sealFrame,
  wholeFrames,
} from "../../src/broker/log-frame.ts";
import { crc32 } from "../../src/lib/crc32.ts";

const SEED = 0x89abcdef;

function frameOf(records: readonly string[], first = 0, checkBefore = SEED): LogFrame {
  const frame = openFrame(records.map((record) => Buffer.from(record)));
  const check = sealFrame(frame, { first, checkBefore });
  return { bytes: frame.bytes, first, check };
}

function textsOf(records: readonly Uint8Array[] | undefined): readonly string[] | undefined {
  return records?.map((record) => Buffer.from(record).toString());
}

t.test("a frame of one record has the documented bytes", async (t) => {
  const { bytes, check } = frameOf(["abc"], 7);
  const crc = crc32(Buffer.from("\x03\0\0\0\x01abc", "latin1"));
  t.equal(check, nextCheck(SEED, crc), "the check covers size, kind and body");
  t.equal(
    bytes.toString("hex"),
    `03000000${"01"}${"616263"}${"07000000"}${checkHex(check)}`,
    "size, kind, body, number of the first record, check",
  );
  t.equal(bytes.length, FRAME_BYTES + 3, "a frame of one record adds FRAME_BYTES");
});

t.test("a frame of several records has the documented bytes", async (t) => {
  const { bytes, check } = frameOf(["a", "", "bc"]);
  t.equal(
    bytes.toString("hex"),
    `1300000002${"03000000"}${"010000000100000003000000"}${"616263"}${"00000000"}${checkHex(check)}`,
    "size, kind, count, ends, records, number of the first record, check",
  );
});

t.test("a frame's check is its CRC XOR (the previous check rotated left by 5 bits)", async (t) => {
  t.equal(nextCheck(0x8000_0001, 0), 0x30);
  t.equal(nextCheck(0, 0xffff_ffff), 0xffff_ffff);
  t.equal(nextCheck(0xffff_ffff, 0xffff_ffff), 0);
});

t.test("the check value in a frame depends on all earlier frames of the log", async (t) => {
  const later = frameOf(["b"], 1, frameOf(["a"]).check);
  const other = frameOf(["b"], 1, frameOf(["x"]).check);
  t.not(later.check, other.check);
});

t.test("the records of a frame are read back with their boundaries", async (t) => {
  for (const records of [["a"], [""], ["a", "b"], ["", "x".repeat(70_000), "é"]]) {
    const frame = frameOf(records, 3);
    t.strictSame(textsOf(recordsIn(frame)), records);
    t.equal(recordCount(frame), records.length);
  }
});

t.test("framesIn returns the complete frames of a log that was cut at any length", async (t) => {
  const frames = [frameOf(["one"]), frameOf(["two", "three"], 1), frameOf([""], 3)];
  const log = Buffer.concat(frames.map(({ bytes }) => bytes));
  const ends = [0];
  for (const { bytes } of frames) ends.push((ends.at(-1) ?? 0) + bytes.length);
  for (let length = 0; length <= log.length; length++) {
    const piece = log.subarray(0, length);
    const whole = ends.filter((end) => end <= length);
    t.equal([...framesIn(piece)].length, whole.length - 1, `frames in ${length} bytes`);
    t.equal(wholeFrames(piece), whole.at(-1), `bytes of whole frames in ${length} bytes`);
  }
  t.strictSame(
    [...framesIn(new Uint8Array(log))].map(({ first, check }) => [first, check]),
    frames.map(({ first, check }) => [first, check]),
    "number of the first record and check of each frame",
  );
  t.equal(frameSize(log, 0), frames[0]?.bytes.length);
  t.equal(frameSize(log.subarray(0, 4), 0), undefined, "the size field is incomplete");
});

t.test("the text of an offset is two numbers of 16 digits joined by _", async (t) => {
  const offset = { position: 1234, check: 0xffff_ffff };
  t.equal(formatOffset(offset), "0000000000001234_0000004294967295");
  t.strictSame(parseOffset(formatOffset(offset)), offset);
  t.equal(formatOffset(LOG_START), "0000000000000000_0000000000000000");
  t.ok(isSameOffset(LOG_START, parseOffset(formatOffset(LOG_START)) ?? offset));
  t.notOk(isSameOffset(offset, LOG_START));
  const tooFar = parseOffset("9999999999999999_9999999999999999");
  t.equal(tooFar?.position, Number.MAX_SAFE_INTEGER, "a position over 2^53 is reduced");
});

t.test("a string that is not two numbers of 16 digits joined by _ is not an offset", async (t) => {
  const start = formatOffset(LOG_START);
  for (const text of [
    ...["", "-1", "now", "0", "0_0", `${start} `, ` ${start}`, `${start}\n`, `${start}0`],
    ...[start.replace("_", "-"), start.replace("0", "a"), start.replace("0", "+"), `..${start}`],
    ...[start.slice(1), start.slice(0, -1), "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠_٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠"],
  ])
    t.equal(parseOffset(text), undefined, JSON.stringify(text));
});

t.test("the text of a later offset sorts after the text of an earlier offset", async (t) => {
  const positions = [0, 1, 9, 10, 99, 100, 16_777_216, 2 ** 48];
  const texts = positions.map((position, i) => formatOffset({ position, check: 2 ** 32 - 1 - i }));
  t.strictSame(texts.toSorted(), texts);
});

t.test("a sub-offset counts bytes, or records if the log is JSON", async (t) => {
  const text = frameOf(["abcdef"]);
  t.strictSame(textsOf(cutRecords(text, 2, false)), ["ab"]);
  t.strictSame(textsOf(cutRecords(text, 6, false)), ["abcdef"]);
  t.equal(cutRecords(text, 7, false), undefined, "the offset exceeds the length of the record");
  t.notOk(isWholeCut(text, 5, false));
  t.ok(isWholeCut(text, 6, false));
  const json = frameOf(["1", "22", "333"]);
  t.strictSame(textsOf(cutRecords(json, 2, true)), ["1", "22"]);
  t.equal(cutRecords(json, 4, true), undefined, "the frame has fewer records");
  t.notOk(isWholeCut(json, 2, true));
  t.ok(isWholeCut(json, 3, true));
});

t.test("the path of a log has 1 to 8 segments, which are ids without a slash", async (t) => {
  t.equal(logPath(["a"]), "a");
  t.equal(logPath(["a", "b c", "ü"]), "a/b c/ü");
  t.equal(logPath(Array(8).fill("x")), "x/x/x/x/x/x/x/x");
  for (const segments of [[], Array(9).fill("x"), ["a", ""], ["a/b"], ["a\n"], ["x".repeat(129)]])
    t.equal(logPath(segments), undefined, JSON.stringify(segments).slice(0, 40));
});

t.test("a log is in the bucket of its channel, or of its path if it has no channel", async (t) => {
  const free: LogName = { kind: "free", path: "chats/1" };
  const beside: LogName = { kind: "channel", key: "2:team", clientMsgNo: "m1" };
  t.equal(logBucket(free), crc32(Buffer.from("chats/1")) % BUCKETS);
  t.equal(logBucket(beside), bucketOf("2:team"));
  t.equal(logTopic(17), "l:17");
  t.not(logNameText({ ...free, path: "2:team\nm1" }), logNameText(beside));
});

t.test("media types are compared without regard to case and parameters", async (t) => {
  t.equal(mediaTypeOf("Application/JSON; charset=utf-8"), "application/json");
  t.equal(mediaTypeOf(" text/plain "), "text/plain");
  t.ok(isJsonLog("APPLICATION/json;charset=utf-8"));
  t.notOk(isJsonLog("application/jsonl"));
});

function checkHex(check: number): string {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(check);
  return bytes.toString("hex");
}
