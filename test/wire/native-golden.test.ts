// Bytes of the native protocol: golden frames in both directions, frames cut at every byte, and a
// comparison with another MessagePack library.

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

const unpack = (bytes: Uint8Array): unknown => msgpackr.unpack(new Uint8Array(bytes));

t.test("operations are encoded to their golden bytes and decoded from them", async (t) => {
  for (const { value, hex } of OPERATIONS) {
    t.equal(toHex(encodeOperation(value)), hex, value.kind);
    t.same(decodeClientFrame(fromHex(hex)), value, value.kind);
  }
});

t.test("replies are encoded to their golden bytes and decoded from them", async (t) => {
  for (const { value, hex } of REPLIES) {
    t.equal(toHex(encoder.reply(value)), hex, value.kind);
    t.same(decodeServerFrame(fromHex(hex), READER_UID), value, value.kind);
  }
});

t.test("pushes are encoded to their golden bytes and decoded from them", async (t) => {
  for (const { value, hex } of PUSHES) {
    t.equal(toHex(encoder.push(value)), hex, value.kind);
    t.same(decodeServerFrame(fromHex(hex), READER_UID), value, value.kind);
  }
});

t.test("another MessagePack library decodes each golden frame to its array", async (t) => {
  for (const { array, hex } of [...OPERATIONS, ...REPLIES, ...PUSHES])
    t.same(comparable(unpack(fromHex(hex))), comparable(array));
});

t.test("frames that another MessagePack library encodes decode to the same values", async (t) => {
  for (const { array, value } of OPERATIONS)
    t.same(decodeClientFrame(msgpackr.pack(array)), value, value.kind);
  for (const { array, value } of [...REPLIES, ...PUSHES])
    t.same(decodeServerFrame(msgpackr.pack(array), READER_UID), value, value.kind);
});

t.test("an operation that is truncated at any byte ends the connection", async (t) => {
  const survivors = OPERATIONS.flatMap(({ hex }) => prefixes(hex)).filter((cut) => {
    const error = frameErrorOf(() => decodeClientFrame(cut));
    return error?.code !== "malformed_frame" || !error.fatal;
  });
  t.same(survivors.map(toHex), []);
});

t.test("a server frame that is truncated at any byte ends the connection", async (t) => {
  const survivors = [...REPLIES, ...PUSHES]
    .flatMap(({ hex }) => prefixes(hex))
    .filter((cut) => !frameErrorOf(() => decodeServerFrame(cut, READER_UID))?.fatal);
  t.same(survivors.map(toHex), []);
});

t.test("an additional byte after an operation ends the connection", async (t) => {
  for (const { value, hex } of OPERATIONS)
    t.match(
      frameErrorOf(() => decodeClientFrame(fromHex(`${hex}00`))),
      { code: "malformed_frame", fatal: true },
      value.kind,
    );
});

t.test("additional fields from a newer client are ignored, whatever their type", async (t) => {
  const added = [null, "x", 1.5, -7, [[], ["y", [new Uint8Array(3)]]], 2 ** 40];
  for (const { array, value } of OPERATIONS)
    t.same(decodeClientFrame(msgpackr.pack([...array, ...added])), value, value.kind);
});

t.test("additional fields from a newer server are ignored, including nested fields", async (t) => {
  for (const { array, value } of [...REPLIES, ...PUSHES]) {
    const longer = [...array.map(withNewFields), null, "added", [1]];
    t.same(decodeServerFrame(msgpackr.pack(longer), READER_UID), value, value.kind);
  }
});

t.test("1 MiB of nested arrays does not overflow the stack", async (t) => {
  const deep = new Uint8Array(1 << 20).fill(0x91);
  t.match(
    frameErrorOf(() => decodeClientFrame(deep)),
    { code: "malformed_frame", fatal: false },
    "nested arrays instead of the operation code are refused",
  );
  deep.set([0x93, 0x06, 0x01]);
  t.match(
    frameErrorOf(() => decodeClientFrame(deep)),
    { code: "malformed_frame", fatal: true },
    "nested arrays in an incomplete ignored field end the connection",
  );
});

/**
 * Returns the value with buffers as plain arrays of bytes, so that buffers of different types
 * compare as equal.
 */
function comparable(value: unknown): unknown {
  if (value instanceof Uint8Array) return { bytes: [...value] };
  return Array.isArray(value) ? value.map(comparable) : value;
}

/** Returns the frame cut at each byte. */
function prefixes(hex: string): readonly Uint8Array[] {
  const frame = fromHex(hex);
  return Array.from(frame, (_, length) => frame.slice(0, length));
}

/**
 * Returns the field with two more fields in each nested record: a nil, which takes the place of an
 * optional field, and a string. Lists of records or strings get no further items.
 */
function withNewFields(field: unknown): unknown {
  if (!Array.isArray(field)) return field;
  const longer = field.map(withNewFields);
  const isList = field.every(Array.isArray) || field.every((item) => typeof item === "string");
  return isList ? longer : [...longer, null, "added"];
}
