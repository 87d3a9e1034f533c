// Reads a client's first message without parsing its resume points. The time that the reading takes
// depends only on the message's size. `JSON.parse` can take 10 ms for a malicious message, so a
// message is parsed only if it is within `MAX_GREETING_BYTES` and `MAX_NAMES` [decisions: Limits
// that hold under attack, Before a credential is known].

import { BRACKET_BIT, CLOSE, COLON, endOfString, OPEN, OPEN_ARRAY, QUOTE } from "./bytes.ts";
import { type Document, parseDocument, splitDocuments } from "./documents.ts";

/** Maximum size of the message without the list of resume points. */
export const MAX_GREETING_BYTES = 8192;
const MAX_NAMES = 64;
const MAX_DEPTH = 6;
/** Maximum number of objects and lists in `resume`, including those in a point's unknown fields. */
const MAX_BRACKETS = 10_000;

export const GREETING_TOO_COMPLEX = `The first message must be one connect request with at most ${MAX_GREETING_BYTES} bytes and ${MAX_NAMES} member names (not counting resume) and at most ${MAX_DEPTH} levels of nesting`;

const SPACE = 0x20;
const PARAMS = Buffer.from('"params"');
const RESUME = Buffer.from('"resume"');
const NO_POINTS = Buffer.from("[]");

interface FirstMessage {
  /**
   * The request, or `undefined` if the message is not JSON. The request's list of resume points is
   * empty if `resumeText` is present.
   */
  readonly document: Document | undefined;
  /**
   * JSON text of the resume points, as a copy, or `undefined` if the request has no list `resume`.
   */
  readonly resumeText: Uint8Array | undefined;
}

/** Reads the first message. Returns `undefined` if it exceeds a limit or has several documents. */
export function scanFirstMessage(data: Uint8Array): FirstMessage | undefined {
  const short: Uint8Array[] = [];
  let resumeText: Uint8Array | undefined;
  let copiedTo = 0;
  let skipped = 0;
  let depth = 0;
  let names = 0;
  let isInParams = false;
  let at = 0;
  while (at < data.length) {
    if (at - skipped > MAX_GREETING_BYTES) return undefined;
    const byte = data[at] ?? 0;
    if (byte !== QUOTE) {
      if ((byte | BRACKET_BIT) === OPEN) depth += 1;
      else if ((byte | BRACKET_BIT) === CLOSE) depth -= 1;
      if (depth > MAX_DEPTH) return undefined;
      at += 1;
      continue;
    }
    const end = endOfString(data, at) + 1;
    const colon = skipSpace(data, end);
    if (data[colon] !== COLON) {
      at = end;
      continue;
    }
    names += 1;
    if (names > MAX_NAMES) return undefined;
    if (depth === 1) isInParams = equals(data, at, end, PARAMS);
    const isResume = isInParams && depth === 2 && equals(data, at, end, RESUME);
    at = skipSpace(data, colon + 1);
    if (!isResume || data[at] !== OPEN_ARRAY) continue;
    const listEnd = endOfList(data, at, MAX_DEPTH - depth);
    if (listEnd === undefined) return undefined;
    short.push(data.subarray(copiedTo, at), NO_POINTS);
    resumeText = new Uint8Array(data.subarray(at, listEnd));
    skipped += listEnd - at;
    copiedTo = listEnd;
    at = listEnd;
  }
  if (data.length - skipped > MAX_GREETING_BYTES) return undefined;
  const text = copiedTo === 0 ? data : Buffer.concat([...short, data.subarray(copiedTo)]);
  const [document, ...others] = splitDocuments(text);
  if (document === undefined || others.length > 0) return undefined;
  return { document: parseDocument(document.bytes), resumeText };
}

/**
 * Returns the end of a list, or `undefined` if it has more than `maxDepth` levels, or more than
 * `MAX_BRACKETS` objects and lists.
 */
function endOfList(data: Uint8Array, from: number, maxDepth: number): number | undefined {
  let depth = 0;
  let brackets = 0;
  const { length } = data;
  for (let at = from; at < length; at++) {
    const byte = data[at] as number; // within bounds; a check would slow down this loop
    if (byte < OPEN_ARRAY) {
      if (byte === QUOTE) at = endOfString(data, at);
      continue;
    }
    const bracket = byte | BRACKET_BIT;
    if (bracket === OPEN) {
      depth += 1;
      brackets += 1;
      if (depth > maxDepth || brackets > MAX_BRACKETS) return undefined;
    } else if (bracket === CLOSE) {
      depth -= 1;
      if (depth === 0) return at + 1;
    }
  }
  return length;
}

function skipSpace(data: Uint8Array, from: number): number {
  let at = from;
  while (at < data.length && (data[at] ?? 0) <= SPACE) at += 1;
  return at;
}

function equals(data: Uint8Array, from: number, to: number, name: Uint8Array): boolean {
  return to - from === name.length && name.every((byte, i) => data[from + i] === byte);
}
