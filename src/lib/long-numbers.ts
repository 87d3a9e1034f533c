// Keeps the digits of integers in JSON that JavaScript cannot store exactly.

/** Matches strings, which stay as they are, and integers with 16 digits or more. */
const STRING_OR_LONG_INTEGER = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;
const LONG = /\d{16}/;

/** Returns the JSON with integers of 16 digits or more as strings. */
export function withLongIntegersAsStrings(json: string): string {
  return LONG.test(json) ? json.replaceAll(STRING_OR_LONG_INTEGER, quoted) : json;
}

/**
 * Parses JSON. In the field `field` of the object, integers of 16 digits or more become strings, and
 * in all other fields they become numbers as usual. Throws like `JSON.parse`.
 */
export function parseWithLongIntegers(json: string, field: string): unknown {
  const value: unknown = JSON.parse(json);
  if (!LONG.test(json) || typeof value !== "object" || value === null) return value;
  if (!Object.hasOwn(value, field)) return value;
  // A field with a string needs no second parse. The lines of `jindou import` have a string there.
  if (typeof Reflect.get(value, field) === "string") return value;
  const digits = JSON.parse(withLongIntegersAsStrings(json)) as Record<string, unknown>; // an object
  return { ...value, [field]: digits[field] };
}

function quoted(token: string): string {
  return token.startsWith('"') ? token : `"${token}"`;
}
