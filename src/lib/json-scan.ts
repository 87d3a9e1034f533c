// Reads one integer or string from a JSON object, or the items of a JSON array, without creating
// other values. `JSON.parse` can need more than 10 ms for a malicious 60 KB document. The duration
// of this scan depends only on the document's size. The scan accepts exactly what `JSON.parse`
// accepts.

import { isUtf8 } from "node:buffer";

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;
const OPEN_ARRAY = 0x5b;
const CLOSE_ARRAY = 0x5d;
const MINUS = 0x2d;
const PLUS = 0x2b;
const DOT = 0x2e;
const ZERO = 0x30;
const NINE = 0x39;
const LOWER_CASE = 0x20;
const LETTER_E = 0x65;
const LETTER_U = 0x75;
const SPACE = 0x20;

const TRUE = [0x74, 0x72, 0x75, 0x65];
const FALSE = [0x66, 0x61, 0x6c, 0x73, 0x65];
const NULL = [0x6e, 0x75, 0x6c, 0x6c];

/** Bytes that may follow a backslash, except `u`, with the characters they stand for. */
const ESCAPES: ReadonlyMap<number, number> = new Map(
  [...'"\\/bfnrt'].map((letter, i) => [letter.charCodeAt(0), '"\\/\b\f\n\r\t'.charCodeAt(i)]),
);

const INVALID = -1;
const ABSENT = -2;

let stack = new Uint8Array(1024);
let isAscii = true;
let valueEnd = INVALID;

/**
 * Returns the value of the top-level field `name`. The name must be ASCII. If the field is
 * repeated, the last value is used. Returns `undefined` unless `bytes` is a JSON object in UTF-8
 * and the value is an integer.
 */
export function integerField(bytes: Uint8Array, name: string): number | undefined {
  const start = findField(bytes, name);
  return start < 0 ? undefined : integerIn(bytes, start, valueEnd);
}

/**
 * Returns the value of the top-level field `name`. The name must be ASCII. If the field is
 * repeated, the last value is used. Returns `undefined` unless `bytes` is a JSON object in UTF-8
 * and the value is a string.
 */
export function stringField(bytes: Uint8Array, name: string): string | undefined {
  const start = findField(bytes, name);
  if (start < 0 || bytes[start] !== QUOTE) return undefined;
  const { buffer, byteOffset } = bytes;
  const text = Buffer.from(buffer, byteOffset + start, valueEnd - start).toString();
  return JSON.parse(text) as string; // the scan has found a string
}

/** Returns the reason why `integerField` returns `undefined` for these arguments. */
export function integerFieldProblem(
  bytes: Uint8Array,
  name: string,
): "empty" | "not_utf8" | "not_json" | "not_object" | "absent" | "not_integer" {
  const at = skipSpace(bytes, 0);
  if (at === bytes.length) return "empty";
  if (!isUtf8(bytes)) return "not_utf8";
  if (bytes[at] !== OPEN_OBJECT) return isOtherValue(bytes, at) ? "not_object" : "not_json";
  const start = findField(bytes, name);
  if (start === INVALID) return "not_json";
  return start === ABSENT ? "absent" : "not_integer";
}

/** Returns true if an array begins at `at`, or if the rest of the bytes is a single scalar. */
function isOtherValue(bytes: Uint8Array, at: number): boolean {
  if (bytes[at] === OPEN_ARRAY) return true;
  const end = endOfScalar(bytes, at);
  return end !== INVALID && skipSpace(bytes, end) === bytes.length;
}

/**
 * Returns the start of the field's value and sets `valueEnd`. Returns ABSENT if the object lacks
 * the field, or INVALID if `bytes` is not a JSON object in UTF-8.
 */
function findField(bytes: Uint8Array, name: string): number {
  let at = skipSpace(bytes, 0);
  isAscii = true;
  if (bytes[at] !== OPEN_OBJECT) return INVALID;
  // Only the position is recorded, because the field may be repeated many times and only the last
  // value is used.
  let valueStart = ABSENT;
  at = skipSpace(bytes, at + 1);
  if (bytes[at] === CLOSE_OBJECT) return isEnd(bytes, at + 1) ? ABSENT : INVALID;
  for (;;) {
    const nameAt = at;
    at = endOfName(bytes, at);
    if (at === INVALID) return INVALID;
    const start = skipSpace(bytes, at);
    at = endOfValue(bytes, start);
    if (at === INVALID) return INVALID;
    if (isName(bytes, nameAt, name)) {
      valueStart = start;
      valueEnd = at;
    }
    at = skipSpace(bytes, at);
    if (bytes[at] === CLOSE_OBJECT) return isEnd(bytes, at + 1) ? valueStart : INVALID;
    if (bytes[at] !== COMMA) return INVALID;
    at = skipSpace(bytes, at + 1);
  }
}

/**
 * Returns the bytes of each item if `bytes` is a JSON array in UTF-8. Any other JSON value is
 * returned as the only item. Returns `undefined` if `bytes` is not JSON. The items are slices of
 * `bytes`, so numbers and strings stay as they were written.
 */
export function jsonItems(bytes: Uint8Array): readonly Uint8Array[] | undefined {
  isAscii = true;
  let at = skipSpace(bytes, 0);
  if (bytes[at] !== OPEN_ARRAY) {
    const end = endOfValue(bytes, at);
    return end !== INVALID && isEnd(bytes, end) ? [bytes.subarray(at, end)] : undefined;
  }
  const items: Uint8Array[] = [];
  at = skipSpace(bytes, at + 1);
  if (bytes[at] === CLOSE_ARRAY) return isEnd(bytes, at + 1) ? items : undefined;
  for (;;) {
    const start = at;
    const end = endOfValue(bytes, start);
    if (end === INVALID) return undefined;
    items.push(bytes.subarray(start, end));
    at = skipSpace(bytes, end);
    if (bytes[at] === CLOSE_ARRAY) return isEnd(bytes, at + 1) ? items : undefined;
    if (bytes[at] !== COMMA) return undefined;
    at = skipSpace(bytes, at + 1);
  }
}

/** Returns true if only white space follows and all bytes are valid UTF-8. */
function isEnd(bytes: Uint8Array, at: number): boolean {
  return skipSpace(bytes, at) === bytes.length && (isAscii || isUtf8(bytes));
}

/** Returns the end of the value that starts at `from`, or INVALID if the value is not JSON. */
function endOfValue(bytes: Uint8Array, from: number): number {
  let at = from;
  let depth = 0;
  for (;;) {
    // A value starts at `at`.
    const byte = bytes[at];
    if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
      if (depth === stack.length) grow();
      stack[depth] = byte;
      depth += 1;
      at = skipSpace(bytes, at + 1);
      const isEmpty = bytes[at] === (byte === OPEN_OBJECT ? CLOSE_OBJECT : CLOSE_ARRAY);
      if (!isEmpty) {
        if (byte === OPEN_OBJECT) at = startOfMember(bytes, at);
        if (at === INVALID) return INVALID;
        continue;
      }
    } else {
      at = endOfScalar(bytes, at);
      if (depth === 0 || at === INVALID) return at;
      at = skipSpace(bytes, at);
    }
    // A value has ended before `at`, or the closing bracket of an empty object or array is at `at`.
    for (;;) {
      const open = stack[depth - 1];
      const next = bytes[at];
      if (next === (open === OPEN_OBJECT ? CLOSE_OBJECT : CLOSE_ARRAY)) {
        depth -= 1;
        if (depth === 0) return at + 1;
        at = skipSpace(bytes, at + 1);
        continue;
      }
      if (next !== COMMA) return INVALID;
      at = skipSpace(bytes, at + 1);
      if (open === OPEN_OBJECT) at = startOfMember(bytes, at);
      if (at === INVALID) return INVALID;
      break;
    }
  }
}

/**
 * Returns the start of the value of the member whose name starts at `at`, or INVALID if no name and
 * colon follow.
 */
function startOfMember(bytes: Uint8Array, at: number): number {
  const end = endOfName(bytes, at);
  return end === INVALID ? INVALID : skipSpace(bytes, end);
}

function grow(): void {
  const larger = new Uint8Array(stack.length * 2);
  larger.set(stack);
  stack = larger;
}

/** Returns the position of the first byte that is not white space of JSON. */
export function skipSpace(bytes: Uint8Array, from: number): number {
  let at = from;
  for (;;) {
    const byte = bytes[at];
    if (byte === SPACE || byte === 0x0a || byte === 0x0d || byte === 0x09) at += 1;
    else return at;
  }
}

function endOfName(bytes: Uint8Array, at: number): number {
  if (bytes[at] !== QUOTE) return INVALID;
  const end = endOfString(bytes, at);
  if (end === INVALID) return INVALID;
  const colon = skipSpace(bytes, end);
  return bytes[colon] === COLON ? colon + 1 : INVALID;
}

/** Returns the end of a string, a number or a word, or a negative number if it is not valid. */
export function endOfScalar(bytes: Uint8Array, at: number): number {
  switch (bytes[at]) {
    case QUOTE:
      return endOfString(bytes, at);
    case TRUE[0]:
      return endOfWord(bytes, at, TRUE);
    case FALSE[0]:
      return endOfWord(bytes, at, FALSE);
    case NULL[0]:
      return endOfWord(bytes, at, NULL);
    default:
      return endOfNumber(bytes, at);
  }
}

function endOfString(bytes: Uint8Array, from: number): number {
  let at = from + 1;
  for (;;) {
    const byte = bytes[at];
    if (byte === undefined || byte < SPACE) return INVALID;
    if (byte === QUOTE) return at + 1;
    at += 1;
    if (byte > 0x7f) isAscii = false;
    if (byte !== BACKSLASH) continue;
    const escaped = bytes[at];
    if (escaped === undefined) return INVALID;
    at += 1;
    if (ESCAPES.has(escaped)) continue;
    if (escaped !== LETTER_U) return INVALID;
    for (const end = at + 4; at < end; at++) if (!isHex(bytes[at])) return INVALID;
  }
}

function endOfWord(bytes: Uint8Array, from: number, word: readonly number[]): number {
  for (let i = 0; i < word.length; i++) if (bytes[from + i] !== word[i]) return INVALID;
  return from + word.length;
}

function endOfNumber(bytes: Uint8Array, from: number): number {
  let at = bytes[from] === MINUS ? from + 1 : from;
  if (!isDigit(bytes[at])) return INVALID;
  at = bytes[at] === ZERO ? at + 1 : endOfDigits(bytes, at);
  if (bytes[at] === DOT) {
    if (!isDigit(bytes[at + 1])) return INVALID;
    at = endOfDigits(bytes, at + 1);
  }
  if (((bytes[at] ?? 0) | LOWER_CASE) !== LETTER_E) return at;
  at += 1;
  if (bytes[at] === PLUS || bytes[at] === MINUS) at += 1;
  return isDigit(bytes[at]) ? endOfDigits(bytes, at) : INVALID;
}

function endOfDigits(bytes: Uint8Array, from: number): number {
  let at = from;
  while (isDigit(bytes[at])) at += 1;
  return at;
}

function isDigit(byte: number | undefined): boolean {
  return byte !== undefined && byte >= ZERO && byte <= NINE;
}

function isHex(byte: number | undefined): boolean {
  if (byte === undefined) return false;
  const letter = byte | LOWER_CASE;
  return isDigit(byte) || (letter >= 0x61 && letter <= 0x66);
}

/** Returns true if the string at `from` is `name`. Does not create a string. */
export function isName(bytes: Uint8Array, from: number, name: string): boolean {
  let at = from + 1;
  for (let i = 0; i < name.length; i++) {
    let unit = bytes[at];
    if (unit === BACKSLASH) {
      unit = unitOf(bytes, at);
      at += bytes[at + 1] === LETTER_U ? 6 : 2;
    } else at += 1;
    if (unit !== name.charCodeAt(i)) return false;
  }
  return bytes[at] === QUOTE;
}

function unitOf(bytes: Uint8Array, at: number): number {
  const escaped = bytes[at + 1] ?? 0;
  if (escaped !== LETTER_U) return ESCAPES.get(escaped) ?? INVALID;
  let unit = 0;
  for (let i = at + 2; i < at + 6; i++) {
    const digit = bytes[i] ?? 0;
    const value = isDigit(digit) ? digit - ZERO : (digit | LOWER_CASE) - 0x57;
    unit = unit * 16 + value;
  }
  return unit;
}

function integerIn(bytes: Uint8Array, from: number, to: number): number | undefined {
  const first = bytes[from];
  if (first === QUOTE || !(isDigit(first) || first === MINUS)) return undefined;
  const value = to === from + 1 ? (first ?? 0) - ZERO : Number(textOf(bytes, from, to));
  return Number.isInteger(value) ? value : undefined;
}

function textOf(bytes: Uint8Array, from: number, to: number): string {
  const { buffer, byteOffset } = bytes;
  return Buffer.from(buffer, byteOffset + from, to - from).toString("latin1");
}
