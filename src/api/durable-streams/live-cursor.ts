// Creates Stream-Cursor header values. They let a CDN use one reply for all readers that wait at
// the same time. A reader sends the value in the URL of its next wait [PROTOCOL.md 8.1].

const EPOCH_MS = Date.UTC(2024, 9, 9);
const INTERVAL_MS = 20_000;
const MAX_JITTER_INTERVALS = 180;

/**
 * Returns the number of the current interval. If the client's `previousCursor` is not lower than
 * this number, returns a random number above `previousCursor`.
 */
export function liveCursor(nowMs: number, previousCursor: string | undefined): string {
  const current = Math.floor((nowMs - EPOCH_MS) / INTERVAL_MS);
  const isNumber = previousCursor !== undefined && /^\d{1,15}$/.test(previousCursor);
  const previous = isNumber ? Number(previousCursor) : 0;
  if (previous < current) return String(current);
  return String(previous + 1 + Math.floor(Math.random() * MAX_JITTER_INTERVALS));
}
