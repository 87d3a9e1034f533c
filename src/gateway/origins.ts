// Decides which browser origins may open a socket.

/**
 * Returns true if an entry in `allowed` (an origin or a `*.host` pattern) matches. An empty list
 * allows every origin. An absent origin (`""`) is always allowed.
 */
export function isOriginAllowed(origin: string, allowed: readonly string[]): boolean {
  if (allowed.length === 0 || origin === "") return true;
  return allowed.some((pattern) =>
    pattern.startsWith("*.")
      ? hostOf(origin).endsWith(pattern.slice(1).toLowerCase())
      : pattern.toLowerCase() === origin.toLowerCase(),
  );
}

function hostOf(origin: string): string {
  return URL.canParse(origin) ? new URL(origin).hostname : "";
}
