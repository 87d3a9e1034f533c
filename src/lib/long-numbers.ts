// Keeps the digits of JSON integers that JavaScript cannot store exactly.

/** Matches strings, which are not changed, and integers with 16 digits or more. */
const STRING_OR_LONG_INTEGER = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;
const LONG = /\d{16}/;

/** Returns the JSON with integers of 16 digits or more as strings. */
export function withLongIntegersAsStrings(json: string): string {
  return LONG.test(json) ? json.replaceAll(STRING_OR_LONG_INTEGER, quoted) : json;
}

/**
 * Parses JSON. In the top-level field `field`, integers with 16 digits or more become strings. In
 * all other fields they become numbers, as usual. Throws a SyntaxError if the JSON is invalid.
 */
export function parseWithLongIntegers(json: string, field: string): unknown {
  const value: unknown = JSON.parse(json);
  if (!LONG.test(json) || typeof value !== "object" || value === null) return value;
  if (!Object.hasOwn(value, field)) return value;
  // If the field is a string, no second parse is needed. It is a string in the lines that `jindou
  // import` sends.
  if (typeof Reflect.get(value, field) === "string") return value;
  const digits = JSON.parse(withLongIntegersAsStrings(json)) as Record<string, unknown>; // an object
  return { ...value, [field]: digits[field] };
}

function quoted(token: string): string {
  return token.startsWith('"') ? token : `"${token}"`;
}
