// Bytes of JSON, and the end of a string in JSON that may be invalid. Unlike the functions of
// `lib/json-scan.ts`, the readers in this folder accept invalid JSON, because they only limit the
// work of the parser that follows.

export const QUOTE = 0x22;
export const COMMA = 0x2c;
export const COLON = 0x3a;
export const OPEN_ARRAY = 0x5b;
const BACKSLASH = 0x5c;
/** The only bit in which `{` and `[` differ. The same applies to `}` and `]`. */
export const BRACKET_BIT = 0x20;
export const OPEN = 0x7b;
export const CLOSE = 0x7d;

/** Returns the position of the quote that ends a string, or `data.length` if the quote is missing. */
export function endOfString(data: Uint8Array, from: number): number {
  const { length } = data;
  for (let at = from + 1; at < length; at++) {
    const byte = data[at];
    if (byte === QUOTE) return at;
    if (byte === BACKSLASH) at += 1;
  }
  return length;
}
