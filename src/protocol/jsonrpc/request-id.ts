// Reads the id of a request: from a parsed request, or from the ends of a request that is refused
// without being parsed. Reading the ends takes the same time for a large request as for a small one.

import { fieldText } from "../../lib/json-field.ts";
import type { JsonObject } from "./params.ts";

/**
 * Maximum length of a request's id. It is limited because the id is stored until the response is
 * sent.
 */
export const MAX_ID_LENGTH = 128;

/**
 * Maximum length of the JSON text of a request's id or method. An escaped character can have a
 * length of six.
 */
const MAX_SHORT_TEXT = MAX_ID_LENGTH * 6 + 2;

/** Number of bytes that are searched at each end of a request. */
const END_BYTES = 1024;

/** Matches an id that is the last field of the request. No other field's text matches. */
const LAST_ID = /(?<!\\)"id"\s*:\s*("(?:[^"\\]|\\.)*"|[-+.\dEe]+)\s*\}\s*$/;

interface RequestEnds {
  /** JSON text of the id, or `undefined` if no valid id was found. */
  readonly id: string | undefined;
  /** "" if the method was not found. */
  readonly method: string;
  /** True if the request also has bytes that were not read. */
  readonly isPartial: boolean;
}

/**
 * Returns the JSON text of the request's id, or `undefined` if the id is not valid. Numbers are
 * copied from `text` (the request), because JavaScript would round them.
 */
export function idOf({ id }: JsonObject, text: string): string | undefined {
  if (typeof id === "string")
    return id !== "" && id.length <= MAX_ID_LENGTH ? JSON.stringify(id) : undefined;
  if (typeof id !== "number") return undefined;
  if (Number.isSafeInteger(id)) return String(id);
  const digits = fieldText(text, "id")?.text;
  return digits !== undefined && digits.length <= MAX_ID_LENGTH ? digits : undefined;
}

/**
 * Returns the id and the method of a request. They are found if they are in the first KiB, and the
 * id is also found in the last KiB if it is the last field.
 */
export function readEnds(bytes: Uint8Array): RequestEnds {
  const head = textOf(bytes.subarray(0, END_BYTES));
  const method = shortField(head, "method");
  return {
    id: idOf({ id: shortField(head, "id") }, head) ?? lastId(bytes),
    method: typeof method === "string" ? method : "",
    isPartial: bytes.length > END_BYTES,
  };
}

function lastId(bytes: Uint8Array): string | undefined {
  const id = LAST_ID.exec(textOf(bytes.subarray(-END_BYTES)))?.[1];
  if (id === undefined) return undefined;
  const request = `{"id":${id}}`;
  return idOf({ id: shortField(request, "id") }, request);
}

/**
 * Returns the value of a short field. Returns `undefined` if the field is absent, too long or
 * invalid, or if its end may be missing.
 */
function shortField(object: string, name: string): unknown {
  try {
    const text = fieldText(object, name)?.text ?? "";
    if (text.length > MAX_SHORT_TEXT || object.endsWith(text)) return undefined;
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function textOf(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString();
}
