// Whether and when to connect again. Pure.

/** The close codes below 4100 say: at once. */
const PAUSE_FROM = 4100;
/** Those from here to 4299 say: never by yourself. */
const NEVER_FROM = 4200;
const NEVER_TO = 4299;
const AT_ONCE_FROM = 4000;

/** What to do after a connection ended with `code`. */
export function verdict(code: number): "at_once" | "pause" | "never" {
  if (code >= NEVER_FROM && code <= NEVER_TO) return "never";
  return code >= AT_ONCE_FROM && code < PAUSE_FROM ? "at_once" : "pause";
}

/**
 * Milliseconds until try number `attempt` (0: the first after a connection that held). Half of it is chance, so that clients that were
 * cut off together do not come back together.
 */
export function pauseMs(
  attempt: number,
  { minMs, maxMs }: { readonly minMs: number; readonly maxMs: number },
  random: () => number = Math.random,
): number {
  const full = Math.min(maxMs, minMs * 2 ** Math.min(attempt, 30));
  return attempt === 0 ? random() * full : full * (0.5 + random() / 2);
}
