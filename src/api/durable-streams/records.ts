// Converts Durable Streams bodies to log records, and back. In JSON mode, each message is a record
// [PROTOCOL.md 9.1]. Otherwise, a request contains one record. Pure functions.

import { framesIn, isJsonLog, mediaTypeOf, recordsIn } from "../../broker/log-frame.ts";
import { jsonItems } from "../../lib/json-scan.ts";

const OPEN = Buffer.from("[");
const SEPARATOR = Buffer.from(",");
const CLOSE = Buffer.from("]");
const EMPTY_ARRAY = Buffer.from("[]");

/**
 * Returns the records in a body. In JSON mode, an array is flattened by one level, and the result
 * is `undefined` if the body is not JSON.
 */
export function recordsOf(
  body: Uint8Array,
  contentType: string,
): readonly Uint8Array[] | undefined {
  if (body.length === 0) return [];
  return isJsonLog(contentType) ? jsonItems(body) : [body];
}

/** Returns the records in the frames, in the form in which readers of the log receive them. */
export function recordsInPieces(
  pieces: readonly Uint8Array[],
  contentType: string,
): readonly Uint8Array[] {
  const isJson = isJsonLog(contentType);
  return pieces.flatMap((piece) =>
    [...framesIn(piece)].flatMap((frame) => recordsIn(frame, isJson)),
  );
}

/** Returns the records as the body of a reply: their bytes, or a JSON array in JSON mode. */
export function bodyOf(records: readonly Uint8Array[], contentType: string): Uint8Array {
  if (!isJsonLog(contentType)) return Buffer.concat(records);
  if (records.length === 0) return EMPTY_ARRAY;
  const parts: Uint8Array[] = [];
  for (const record of records) parts.push(parts.length === 0 ? OPEN : SEPARATOR, record);
  return Buffer.concat([...parts, CLOSE]);
}

/**
 * Returns true if server-sent events can contain the data unchanged. Other data is sent in Base64.
 */
export function isTextLog(contentType: string): boolean {
  return isJsonLog(contentType) || mediaTypeOf(contentType).startsWith("text/");
}
