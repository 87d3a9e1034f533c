// Splits a WebSocket message into its JSON documents, and a batch into its requests. A message
// usually has one document, but WuKongIM's servers accept several documents. The time that the
// splitting takes depends only on the message's size.

import { skipSpace } from "../../lib/json-scan.ts";
import { BRACKET_BIT, CLOSE, COMMA, endOfString, OPEN, OPEN_ARRAY, QUOTE } from "./bytes.ts";

const MAX_DOCUMENTS = 100;
export const MAX_BATCH_REQUESTS = 100;

const BYTE_ORDER_MARK = [0xef, 0xbb, 0xbf];

interface DocumentBytes {
  readonly bytes: Uint8Array;
  readonly values: number;
}

export interface Document {
  readonly value: unknown;
  readonly text: string;
}

const utf8 = new TextDecoder("utf-8", { fatal: true });
const NOT_JSON: DocumentBytes = { bytes: new Uint8Array(), values: 0 };

/**
 * Yields at least one document. In place of the documents after the first `MAX_DOCUMENTS`, yields
 * `NOT_JSON` once, and the caller refuses it.
 */
export function* splitDocuments(data: Uint8Array): Generator<DocumentBytes, void> {
  const hasMark = BYTE_ORDER_MARK.every((byte, i) => data[i] === byte);
  let at = skipSpace(data, hasMark ? BYTE_ORDER_MARK.length : 0);
  if (at === data.length) yield NOT_JSON;
  for (let count = 0; at < data.length; count++) {
    if (count === MAX_DOCUMENTS) return yield NOT_JSON;
    const document = documentAt(data, at);
    yield document;
    at = skipSpace(data, at + document.bytes.length);
  }
}

export function isBatch(bytes: Uint8Array): boolean {
  return bytes[0] === OPEN_ARRAY;
}

/** Returns the items of a list in order. For invalid JSON, the number of items may be wrong. */
export function itemsOf(batch: Uint8Array): readonly Uint8Array[] {
  const items: Uint8Array[] = [];
  const { length } = batch;
  let from = 1;
  let depth = 0;
  for (let at = 0; at < length; at++) {
    const byte = batch[at] as number; // within bounds; a check would slow down this loop
    if (byte === QUOTE) at = endOfString(batch, at);
    else if ((byte | BRACKET_BIT) === OPEN) depth += 1;
    else if ((byte | BRACKET_BIT) === CLOSE) depth -= 1;
    const isLast = depth === 0;
    if (!isLast && !(depth === 1 && byte === COMMA)) continue;
    const start = skipSpace(batch, from);
    if (!isLast || start < at || items.length > 0) items.push(batch.subarray(start, at));
    if (isLast) break;
    from = at + 1;
  }
  return items;
}

/** Returns `undefined` if the bytes are not a JSON document in UTF-8. */
export function parseDocument(bytes: Uint8Array): Document | undefined {
  try {
    const text = utf8.decode(bytes);
    return { value: JSON.parse(text), text };
  } catch {
    return undefined;
  }
}

function documentAt(data: Uint8Array, from: number): DocumentBytes {
  const { length } = data;
  let values = 1;
  let depth = 0;
  for (let at = from; at < length; at++) {
    const byte = data[at] as number; // within bounds; a check would slow down this loop
    if (byte === QUOTE) at = endOfString(data, at);
    else if (byte === COMMA) values += 1;
    else if ((byte | BRACKET_BIT) === OPEN) {
      depth += 1;
      values += 1;
    } else if ((byte | BRACKET_BIT) === CLOSE) depth -= 1;
    else continue;
    if (depth <= 0 && at < length) return { bytes: data.subarray(from, at + 1), values };
  }
  return { bytes: data.subarray(from), values };
}
