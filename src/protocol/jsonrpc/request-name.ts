// Reads the id and the method of a request that is refused without being parsed. Reads the bytes
// once and creates only these two values, because a client can send such requests at any rate.

import { withoutStack } from "../../lib/without-stack.ts";
import { endOfString, isBlank, skipBlanks } from "./documents.ts";

/**
 * Maximum length of a request's id. It is limited because the id is stored until the response is
 * sent.
 */
export const MAX_ID_LENGTH = 128;
/**
 * Maximum number of bytes in the JSON text of a request's id or method. An escaped character has at
 * most six bytes, and all other characters have fewer.
 */
const MAX_SHORT_BYTES = MAX_ID_LENGTH * 6 + 2;

const QUOTE = 0x22;
const COMMA = 0x2c;
const COLON = 0x3a;
const BACKSLASH = 0x5c;
const LETTER_U = 0x75;
/** The only bit in which `{` and `[` differ. The same applies to `}` and `]`. */
const BRACKET_BIT = 0x20;
const OPEN = 0x7b;
const CLOSE = 0x7d;

const ID = Buffer.from("id");
const METHOD = Buffer.from("method");
const ABSENT = -1;

interface RequestName {
  /** JSON text of the id, or `undefined` if the request has no valid id. */
  readonly id: string | undefined;
  /** "" if the request has no valid method. */
  readonly method: string;
}

/**
 * Returns the JSON text of a request's id, or `undefined` if the id is not valid. `digits` returns
 * the text of a number in the request, because JavaScript would round large numbers.
 */
export function idText(id: unknown, digits: () => string | undefined): string | undefined {
  if (typeof id === "string")
    return id !== "" && id.length <= MAX_ID_LENGTH ? JSON.stringify(id) : undefined;
  if (typeof id !== "number") return undefined;
  if (Number.isSafeInteger(id)) return String(id);
  const text = digits();
  return text !== undefined && text.length <= MAX_ID_LENGTH ? text : undefined;
}

/**
 * Returns the id and the method of the first request in the bytes. If a field is repeated, the last
 * value is used, as `JSON.parse` does.
 */
export function readRequestName(bytes: Uint8Array): RequestName {
  const { length } = bytes;
  let idAt = ABSENT;
  let methodAt = ABSENT;
  let depth = 0;
  for (let at = 0; at < length; at++) {
    const byte = bytes[at] as number; // within bounds; a check would slow down this loop
    if (byte === QUOTE) {
      const end = endOfString(bytes, at);
      const colon = depth === 1 ? skipBlanks(bytes, end + 1) : length;
      if (bytes[colon] === COLON) {
        if (isNamed(bytes, at, end, ID)) idAt = colon + 1;
        else if (isNamed(bytes, at, end, METHOD)) methodAt = colon + 1;
      }
      at = end;
    } else if ((byte | BRACKET_BIT) === OPEN) {
      if (depth === 0 && byte !== OPEN) break; // a batch has no id
      depth += 1;
    } else if ((byte | BRACKET_BIT) === CLOSE) {
      depth -= 1;
      if (depth === 0) break;
    }
  }
  const id = valueText(bytes, idAt);
  const method = parsed(valueText(bytes, methodAt));
  return {
    id: idText(parsed(id), () => id),
    method: typeof method === "string" ? method : "",
  };
}

/**
 * Returns true if the string between two quotes is `name`. Characters of the string may be escaped
 * with `\u`. No other escape stands for a letter.
 */
function isNamed(bytes: Uint8Array, from: number, end: number, name: Uint8Array): boolean {
  let at = from + 1;
  for (let i = 0; i < name.length; i++) {
    let unit = bytes[at];
    at += 1;
    if (unit === BACKSLASH) {
      if (bytes[at] !== LETTER_U) return false;
      unit = 0;
      for (const digitsEnd = at + 4; at < digitsEnd; )
        unit = unit * 16 + hexDigit(bytes[++at] ?? 0);
      at += 1;
    }
    if (unit !== name[i]) return false;
  }
  return at === end;
}

/** Returns the value of a hexadecimal digit in either case. */
function hexDigit(byte: number): number {
  return (byte & 15) + (byte >> 6) * 9;
}

/**
 * Returns the JSON text of a value. Returns `undefined` if the value is absent, too long or not a
 * scalar, or if its end may be missing.
 */
function valueText(bytes: Uint8Array, from: number): string | undefined {
  if (from === ABSENT) return undefined;
  const start = skipBlanks(bytes, from);
  const isString = bytes[start] === QUOTE;
  const end = isString ? endOfString(bytes, start) + 1 : endOfScalar(bytes, start);
  if (end - start > MAX_SHORT_BYTES || end >= bytes.length) return undefined;
  return Buffer.from(bytes.buffer, bytes.byteOffset + start, end - start).toString();
}

function endOfScalar(bytes: Uint8Array, from: number): number {
  let at = from;
  while (at < bytes.length && at - from <= MAX_SHORT_BYTES) {
    const byte = bytes[at] ?? 0;
    if (byte === COMMA || (byte | BRACKET_BIT) === CLOSE || isBlank(byte)) break;
    at += 1;
  }
  return at;
}

function parsed(text: string | undefined): unknown {
  if (text === undefined) return undefined;
  try {
    return withoutStack(() => JSON.parse(text));
  } catch {
    return undefined;
  }
}
