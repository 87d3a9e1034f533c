// An assertion that compares exactly the properties named in the expected value, and no others.
// tap's `match` is looser: it accepts a part of a string and the beginning of an array.

/** The part of tap's `t` that `matchObject` uses. */
interface Comparer {
  strictSame(actual: unknown, expected: unknown, message: string): boolean;
}

/**
 * Passes if `actual`, reduced at every depth to the properties that `expected` names, is strictly
 * the same as `expected`. Arrays must have the same length.
 */
export function matchObject(
  t: Comparer,
  actual: unknown,
  expected: unknown,
  message = "has the expected properties",
): boolean {
  return t.strictSame(pickNamed(actual, expected), expected, message);
}

function pickNamed(actual: unknown, expected: unknown): unknown {
  if (Array.isArray(expected))
    return Array.isArray(actual)
      ? actual.map((item, at) => (at < expected.length ? pickNamed(item, expected[at]) : item))
      : actual;
  if (!isRecord(expected) || !isRecord(actual)) return actual;
  return Object.fromEntries(
    Object.entries(expected).map(([name, value]) => [name, pickNamed(actual[name], value)]),
  );
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}
