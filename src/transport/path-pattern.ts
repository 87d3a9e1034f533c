// Route path patterns. A segment `:name` matches any non-empty segment. A last segment `*` matches
// one or more segments, which may be empty. Pure.

/** Returns true if a pattern matches more than one path. */
export function isVariable(pattern: string): boolean {
  return /[:*]/.test(pattern);
}

/**
 * Returns the segments that the `:name` segments match, or `undefined` if the path does not match.
 */
export function paramsOf(
  pattern: readonly string[],
  segments: readonly string[],
): readonly string[] | undefined {
  const isPrefix = pattern.at(-1) === "*";
  if (isPrefix ? segments.length < pattern.length : segments.length !== pattern.length)
    return undefined;
  const params: string[] = [];
  for (const [at, expected] of pattern.entries()) {
    const segment = segments[at] ?? "";
    if (expected === "*") continue;
    if (!expected.startsWith(":")) {
      if (segment !== expected) return undefined;
    } else if (segment === "") return undefined;
    else params.push(segment);
  }
  return params;
}
