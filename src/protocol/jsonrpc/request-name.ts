// Reads the id and the method of a request that is refused without being parsed. Reads the bytes
// once and creates only these two values, because a client can send such requests at any rate.

import { endOfScalar, isName, skipSpace } from "../../lib/json-scan.ts";
import { BRACKET_BIT, CLOSE, COLON, endOfString, OPEN, QUOTE } from "./bytes.ts";

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
      const colon = depth === 1 ? skipSpace(bytes, end + 1) : length;
      if (bytes[colon] === COLON) {
        if (isName(bytes, at, "id")) idAt = colon + 1;
        else if (isName(bytes, at, "method")) methodAt = colon + 1;
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
 * Returns the JSON text of a value. Returns `undefined` if the value is absent, too long or not a
 * scalar, or if its end may be missing.
 */
function valueText(bytes: Uint8Array, from: number): string | undefined {
  if (from === ABSENT) return undefined;
  const start = skipSpace(bytes, from);
  const end = endOfScalar(bytes, start);
  if (end < start || end === bytes.length || end - start > MAX_SHORT_BYTES) return undefined;
  return Buffer.from(bytes.buffer, bytes.byteOffset + start, end - start).toString();
}

function parsed(text: string | undefined): unknown {
  return text === undefined ? undefined : JSON.parse(text); // `endOfScalar` has checked the text
}
