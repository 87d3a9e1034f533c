// Frames that a native client should never send: every operation with values of every wrong type,
// damaged and truncated frames, and random bytes. The same seed always yields the same frame.

import { Packr } from "msgpackr";
import { Random } from "../support/random.ts";
import { fromHex } from "../wire/native-codec.ts";
import { OPERATIONS } from "../wire/native-samples.ts";

/**
 * Default of `client.maxFrameBytes`. A larger frame before the login closes the connection with
 * 1009.
 */
export const MAX_FRAME_BYTES = 163_840;

const packr = new Packr({ useRecords: false, variableMapSize: true });

/** Values of types that the protocol does not use. Maps and extensions end a connection. */
const FOREIGN: readonly unknown[] = [{}, { uid: 1 }, new Date(0)];
export const HOSTILE_VALUES: readonly unknown[] = [
  null,
  true,
  -1,
  1.5,
  0,
  3,
  127,
  4_294_967_296,
  Number.MAX_SAFE_INTEGER,
  2n ** 63n,
  -(2n ** 63n),
  Number.NaN,
  Number.NEGATIVE_INFINITY,
  "",
  "__proto__",
  "constructor",
  "____system",
  "a@b",
  "a#b",
  "a&b",
  "\u0000",
  "\u0085",
  "\ud800",
  "\u{1f600}".repeat(64),
  "x".repeat(129),
  "x".repeat(70_000),
  new Uint8Array(0),
  new Uint8Array(70_000),
  [],
  [[]],
  [[2, "team", -1]],
  Array.from({ length: 1001 }, () => [2, "team", 0]),
  Array.from({ length: 1001 }, () => "u"),
  nested(1000),
  ...FOREIGN,
];

/** Returns `depth` nested arrays. */
function nested(depth: number): unknown {
  let value: unknown = [];
  for (let i = 0; i < depth; i++) value = [value];
  return value;
}

/** Yields each operation with each of its fields replaced by each hostile value. */
export function* wrongTypes(): Iterable<Uint8Array> {
  for (const { array } of OPERATIONS)
    for (const at of array.keys())
      for (const value of HOSTILE_VALUES) yield packr.pack(array.with(at, value));
}

/** Yields every proper prefix of every operation. */
export function* truncations(): Iterable<Uint8Array> {
  for (const { hex } of OPERATIONS) {
    const bytes = fromHex(hex);
    for (let end = 0; end < bytes.length; end++) yield bytes.slice(0, end);
  }
}

/** Yields frames with wrong length fields, and frames nested as deeply as a frame can be. */
export function* falseLengthsAndNesting(): Iterable<Uint8Array> {
  for (const length of ["ddffffffff", "dcffff", "9f", "dbffffffff", "c6ffffffff"])
    for (const head of ["", "9401", "98010101", "94050a"]) yield fromHex(head + length);
  const deep = new Uint8Array(MAX_FRAME_BYTES).fill(0x91);
  yield deep;
  yield Uint8Array.from([0x93, 6, 1, ...deep.subarray(3, MAX_FRAME_BYTES / 2)]);
  yield new Uint8Array(MAX_FRAME_BYTES).fill(0xdd);
  yield new Uint8Array(MAX_FRAME_BYTES);
}

/**
 * Returns a random frame. Most frames are well-formed but have wrong values, so that the connection
 * stays open for further frames.
 */
export function randomFrame(seed: number): Uint8Array {
  const random = new Random(seed);
  const kind = random.below(100);
  if (kind < 8) return random.bytes(random.below(64));
  if (kind < 30) return damaged(random);
  return withChangedFields(random);
}

/** Returns a valid frame with some bytes changed. */
function damaged(random: Random): Uint8Array {
  const bytes = fromHex(random.pick(OPERATIONS).hex);
  for (let i = 0; i <= random.below(3); i++) bytes[random.below(bytes.length)] = random.below(256);
  return bytes;
}

/** Returns a valid frame with some fields replaced, removed or added. */
function withChangedFields(random: Random): Uint8Array {
  const fields = [...random.pick(OPERATIONS).array];
  for (let i = 0; i <= random.below(3); i++)
    fields[random.below(fields.length)] = hostileValue(random);
  if (random.below(4) === 0) fields.length = random.below(fields.length) + 1;
  if (random.below(4) === 0) fields.push(hostileValue(random));
  const frame = packr.pack(fields);
  return frame.length > MAX_FRAME_BYTES ? withChangedFields(random) : frame;
}

function hostileValue(random: Random): unknown {
  const choice = random.below(10);
  if (choice < 2) return random.text(140);
  if (choice < 4) return random.uint(53);
  // Foreign and large values are rare: foreign values end the connection, and large ones cost time
  // without testing anything new.
  return random.pick(random.below(20) === 0 ? HOSTILE_VALUES : SMALL_VALUES);
}

const SMALL_VALUES = HOSTILE_VALUES.filter(
  (value) => !FOREIGN.includes(value) && packr.pack(value).length < 1000,
);
