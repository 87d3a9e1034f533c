// Evaluates an attempt: whether the endpoint accepted the request, and when the request is
// repeated. Pure functions.

import type { Outcome } from "./sender.ts";

/**
 * Meaning of an attempt's status.
 *
 *     accepted  2xx
 *     gone      410: the receiver wants no more events
 *     rejected  a 4xx that is caused by the content of the request
 *     failed    a 5xx other than 502, 503 and 504. The content of the request may be the cause
 *     down      no reply, or any other status, which concerns the whole endpoint
 */
export type Verdict = "accepted" | "gone" | "rejected" | "failed" | "down";

/** 4xx statuses that are not caused by the content of one request. */
const ENDPOINT_STATUSES: ReadonlySet<number> = new Set([401, 403, 404, 408, 425, 429]);
/** 5xx statuses that a proxy sends if the receiver is down. */
const PROXY_STATUSES: ReadonlySet<number> = new Set([502, 503, 504]);

export function verdictOf({ status }: Pick<Outcome, "status">): Verdict {
  if (status >= 200 && status < 300) return "accepted";
  if (status === 410) return "gone";
  if (ENDPOINT_STATUSES.has(status) || PROXY_STATUSES.has(status)) return "down";
  if (status >= 400 && status < 500) return "rejected";
  return status >= 500 ? "failed" : "down";
}

/** Delay in seconds before each retry. The last delay also applies to all later retries. */
const DELAYS_S = [1, 5, 30, 120, 600, 1800, 3600] as const;
const LONGEST_S = 3600;
/** Fraction by which a delay varies, so that requests are not repeated at the same moment. */
const JITTER = 0.2;
/** Maximum delay between two attempts. */
export const MAX_DELAY_MS = LONGEST_S * 1000 * (1 + JITTER);

/**
 * Returns the number of milliseconds before the next attempt. `attempts` is the number of attempts
 * so far. `random` is a number from 0 to 1.
 */
export function delayMs(attempts: number, random: number): number {
  return jittered(DELAYS_S[Math.max(0, attempts - 1)] ?? LONGEST_S, random);
}

/** Number of attempts to send an event alone before the event may be parked. */
export const ISOLATED_ATTEMPTS = 5;

/**
 * Returns the number of milliseconds before the next attempt for an event that is sent alone. After
 * the verdict `failed`, the pauses grow, because the receiver may recover.
 */
export function isolatedDelayMs(attempts: number, verdict: Verdict, random: number): number {
  return jittered(verdict === "failed" ? 2 ** (attempts - 1) : 1, random);
}

/** Returns the pause that a receiver requested with `Retry-After`, at most an hour. */
export function acceptedRetryAfterMs(retryAfterMs = 0): number {
  return Math.min(retryAfterMs, LONGEST_S * 1000);
}

function jittered(seconds: number, random: number): number {
  return Math.round(seconds * 1000 * (1 - JITTER + 2 * JITTER * random));
}
