// Which browser origins may open a socket. Pure.

/**
 * `allowed` holds exact origins (`https://app.example.com`) or host patterns (`*.example.com`);
 * empty allows all, an absent origin passes.
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
