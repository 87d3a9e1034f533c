// The native protocol's bytes: golden frames in both directions, cut short at every byte, and
// against another MessagePack library.

import { Packr } from "msgpackr";
import { decodeServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { createEncoder } from "../../src/protocol/native/encode.ts";
import { t } from "../support/suite.ts";
import { decodeClientFrame, frameErrorOf, fromHex, toHex } from "./native-codec.ts";
import { READER_UID } from "./native-sample-values.ts";
import { OPERATIONS, PUSHES, REPLIES } from "./native-samples.ts";

const msgpackr = new Packr({ useRecords: false, int64AsType: "number" });
const encoder = createEncoder();

const plain = (bytes: Uint8Array): unknown => msgpackr.unpack(new Uint8Array(bytes));

t.test("operations are encoded to and decoded from their bytes", async (t) => {
  for (const { value, hex } of OPERATIONS) {
    t.equal(toHex(encodeOperation(value)), hex, value.kind);
    t.same(decodeClientFrame(fromHex(hex)), value, value.kind);
  }
});

t.test("replies are encoded to and decoded from their bytes", async (t) => {
  for (const { value, hex } of REPLIES) {
    t.equal(toHex(encoder.reply(value)), hex, value.kind);
    t.same(decodeServerFrame(fromHex(hex), READER_UID), value, value.kind);
  }
});

t.test("pushes are encoded to and decoded from their bytes", async (t) => {
  for (const { value, hex } of PUSHES) {
    t.equal(toHex(encoder.push(value)), hex, value.kind);
    t.same(decodeServerFrame(fromHex(hex), READER_UID), value, value.kind);
  }
});

t.test("another library reads the arrays that were written", async (t) => {
  for (const { array, hex } of [...OPERATIONS, ...REPLIES, ...PUSHES])
    t.same(normal(plain(fromHex(hex))), normal(array));
});

t.test("what another library writes is read the same", async (t) => {
  for (const { array, value } of OPERATIONS)
    t.same(decodeClientFrame(msgpackr.pack(array)), value, value.kind);
  for (const { array, value } of [...REPLIES, ...PUSHES])
    t.same(decodeServerFrame(msgpackr.pack(array), READER_UID), value, value.kind);
});

t.test("an operation cut short anywhere is fatally malformed", async (t) => {
  const survivors = OPERATIONS.flatMap(({ hex }) => prefixes(hex)).filter((cut) => {
    const error = frameErrorOf(() => decodeClientFrame(cut));
    return error?.code !== "malformed_frame" || !error.fatal;
  });
  t.same(survivors.map(toHex), []);
});

t.test("a server frame cut short anywhere is fatally malformed", async (t) => {
  const survivors = [...REPLIES, ...PUSHES]
    .flatMap(({ hex }) => prefixes(hex))
    .filter((cut) => !frameErrorOf(() => decodeServerFrame(cut, READER_UID))?.fatal);
  t.same(survivors.map(toHex), []);
});

t.test("a byte after the frame is fatally malformed", async (t) => {
  for (const { value, hex } of OPERATIONS)
    t.match(
      frameErrorOf(() => decodeClientFrame(fromHex(`${hex}00`))),
      { code: "malformed_frame", fatal: true },
      value.kind,
    );
});

t.test("fields a newer client adds are ignored, of any type", async (t) => {
  const added = [null, "x", 1.5, -7, [[], ["y", [new Uint8Array(3)]]], 2 ** 40];
  for (const { array, value } of OPERATIONS)
    t.same(decodeClientFrame(msgpackr.pack([...array, ...added])), value, value.kind);
});

t.test("fields a newer server adds are ignored, nested ones too", async (t) => {
  for (const { array, value } of [...REPLIES, ...PUSHES]) {
    const longer = [...array.map(extended), null, "added", [1]];
    t.same(decodeServerFrame(msgpackr.pack(longer), READER_UID), value, value.kind);
  }
});

t.test("a mebibyte of nested arrays costs no stack", async (t) => {
  const deep = new Uint8Array(1 << 20).fill(0x91);
  t.match(
    frameErrorOf(() => decodeClientFrame(deep)),
    { code: "malformed_frame", fatal: false },
    "as the op",
  );
  deep.set([0x93, 0x06, 0x01]);
  t.match(
    frameErrorOf(() => decodeClientFrame(deep)),
    { code: "malformed_frame", fatal: true },
    "as an ignored field that never ends",
  );
});

/** Buffers as plain arrays of bytes, so that only contents are compared. */
function normal(value: unknown): unknown {
  if (value instanceof Uint8Array) return { bytes: [...value] };
  return Array.isArray(value) ? value.map(normal) : value;
}

function prefixes(hex: string): readonly Uint8Array[] {
  const whole = fromHex(hex);
  return Array.from(whole, (_, length) => whole.slice(0, length));
}

/**
 * `field` with a new field in each record below it, behind a nil for one that may be left out. A
 * list, all of records, stays as it is.
 */
function extended(field: unknown): unknown {
  if (!Array.isArray(field)) return field;
  const longer = field.map(extended);
  return field.every(Array.isArray) ? longer : [...longer, null, "added"];
}
