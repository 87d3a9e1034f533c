// Splits a WebSocket message into its JSON documents, and a batch into its requests. A message
// usually has one document, but WuKongIM's servers accept several documents. The time that the
// splitting takes depends only on the message's size.

const MAX_DOCUMENTS = 100;
export const MAX_BATCH_REQUESTS = 100;

const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const SPACE = 0x20;
const OPEN_ARRAY = 0x5b;
/** The only bit in which `{` and `[` differ. The same applies to `}` and `]`. */
const BRACKET_BIT = 0x20;
const OPEN = 0x7b;
const CLOSE = 0x7d;
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
  let at = skipBlanks(data, hasMark ? BYTE_ORDER_MARK.length : 0);
  if (at === data.length) yield NOT_JSON;
  for (let count = 0; at < data.length; count++) {
    if (count === MAX_DOCUMENTS) return yield NOT_JSON;
    const document = documentAt(data, at);
    yield document;
    at = skipBlanks(data, at + document.bytes.length);
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
    const start = skipBlanks(batch, from);
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

/** Returns the position of the quote that ends a string, or `data.length` if there is none. */
export function endOfString(data: Uint8Array, from: number): number {
  const { length } = data;
  for (let at = from + 1; at < length; at++) {
    const byte = data[at];
    if (byte === QUOTE) return at;
    if (byte === BACKSLASH) at += 1;
  }
  return length;
}

export function skipBlanks(data: Uint8Array, from: number): number {
  let at = from;
  while (at < data.length && isBlank(data[at])) at += 1;
  return at;
}

export function isBlank(byte: number | undefined): boolean {
  return byte === SPACE || byte === 0x0a || byte === 0x0d || byte === 0x09;
}
