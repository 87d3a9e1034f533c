// Comparing only what a test names, but that exactly: tap's `match` takes a part of a string and
// the beginning of an array for the whole.

/** A test, as far as it is asked here. */
interface Comparer {
  strictSame(found: unknown, wanted: unknown, message: string): boolean;
}

/**
 * Passes when `found`, cut down to the properties that `wanted` names at every depth, is strictly
 * the same as `wanted`. Arrays are as long as in `wanted`.
 */
export function shows(
  t: Comparer,
  found: unknown,
  wanted: unknown,
  message = "shows what is wanted",
): boolean {
  return t.strictSame(cut(found, wanted), wanted, message);
}

function cut(found: unknown, wanted: unknown): unknown {
  if (Array.isArray(wanted))
    return Array.isArray(found)
      ? found.map((one, at) => (at < wanted.length ? cut(one, wanted[at]) : one))
      : found;
  if (!isRecord(wanted) || !isRecord(found)) return found;
  return Object.fromEntries(
    Object.entries(wanted).map(([name, value]) => [name, cut(found[name], value)]),
  );
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}
