// Whether and when to reconnect. Pure.

// Close codes 4000 to 4099: reconnect at once; 4200 to 4299: never; all others: after a delay.
const AT_ONCE_FROM = 4000;
const PAUSE_FROM = 4100;
const NEVER_FROM = 4200;
const NEVER_TO = 4299;

/** What to do after a connection closed with `code`. */
export function verdict(code: number): "at_once" | "pause" | "never" {
  if (code >= NEVER_FROM && code <= NEVER_TO) return "never";
  return code >= AT_ONCE_FROM && code < PAUSE_FROM ? "at_once" : "pause";
}

/**
 * Milliseconds before attempt number `attempt` (0: the first after a stable connection). Half of it
 * is jitter, so that clients disconnected together do not reconnect together.
 */
export function pauseMs(
  attempt: number,
  { minMs, maxMs }: { readonly minMs: number; readonly maxMs: number },
  random: () => number = Math.random,
): number {
  const full = Math.min(maxMs, minMs * 2 ** Math.min(attempt, 30));
  return attempt === 0 ? random() * full : full * (0.5 + random() / 2);
}
