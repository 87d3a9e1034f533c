// Which methods a path takes, for calls the native router has no handler for. Also decodes `:name` parts. Built once, then read only.

import type { HttpRoute } from "./types.ts";

/** The methods of the routes that match `path`, as an Allow header names them; "" when none does. */
export type AllowedMethods = (path: string) => string;

/** Exact paths and `:name` patterns, split once. */
export function createAllowedMethods(
  routes: readonly HttpRoute[],
): AllowedMethods {
  const patterns = routes.map(({ method, path }) => ({
    method,
    parts: path.split("/"),
  }));
  return (path) => {
    const parts = path.split("/");
    const methods = patterns
      .filter((pattern) => matches(pattern.parts, parts))
      .map((pattern) => pattern.method);
    return [...new Set(methods)].sort().join(", ");
  };
}

function matches(pattern: readonly string[], parts: readonly string[]) {
  if (pattern.length !== parts.length) return false;
  return pattern.every((wanted, i) =>
    wanted.startsWith(":") ? parts[i] !== "" : wanted === parts[i],
  );
}

/** How many `:name` parts a route's path has. */
export function countParams(path: string): number {
  return path.split("/").filter((part) => part.startsWith(":")).length;
}

/** Percent-decodes one part of a path; undefined when it is not valid. */
export function decodePart(part: string): string | undefined {
  if (!part.includes("%")) return part;
  try {
    return decodeURIComponent(part);
  } catch {
    return undefined; // %zz or bytes that are no UTF-8: names nothing
  }
}
