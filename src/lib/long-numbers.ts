// Keeps the digits of integers in JSON that JavaScript cannot store exactly.

/** Matches strings, which stay as they are, and integers with 16 digits or more. */
const STRING_OR_LONG_INTEGER = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;
const LONG = /\d{16}/;

/** Returns the JSON with integers of 16 digits or more as strings. */
export function withLongIntegersAsStrings(json: string): string {
  return LONG.test(json) ? json.replaceAll(STRING_OR_LONG_INTEGER, quoted) : json;
}

function quoted(token: string): string {
  return token.startsWith('"') ? token : `"${token}"`;
}
