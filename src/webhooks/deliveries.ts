// The state of a delivery in one feed partition: the position up to which events were skipped or
// put into batches, and the batches that have been formed but not accepted yet. Pure functions.

import type { EventPosition as Position } from "../broker/event-ports.ts";
import type { ChannelFilter, WebhookFormat } from "../broker/webhook-ports.ts";
import type { WebhookEvent } from "./formats.ts";
import {
  acceptedRetryAfterMs,
  delayMs,
  ISOLATED_ATTEMPTS,
  isolatedDelayMs,
  MAX_DELAY_MS,
  type Verdict,
} from "./retries.ts";
import type { Outcome } from "./sender.ts";

/** Endpoint settings that determine which events a batch contains and how they are formatted. */
export interface BatchSettings {
  readonly types: readonly string[];
  readonly channels: ChannelFilter;
  readonly format: WebhookFormat;
  readonly isSingle: boolean;
}

/**
 * Events that are sent in one request. The bounds and settings of a batch are stored before the
 * first attempt and do not change, so every attempt has the same id and bytes.
 */
export interface Batch {
  /** Position before the first event. */
  readonly after: Position;
  readonly first: number;
  readonly last: Position;
  /** Number of events in the batch, as selected by the settings. */
  readonly count: number;
  /** Time of the first event in Unix milliseconds. */
  readonly eventMs: number;
  /** Time at which the batch was formed. Part of the request's body. */
  readonly formedMs: number;
  readonly settings: BatchSettings;
  readonly attempts: number;
  /** Time of the first failed attempt. Absent if no attempt has failed. */
  readonly failingSinceMs?: number;
  /**
   * Time for which attempts to send the batch have been failing, measured with the monotonic clocks
   * of the nodes that made the attempts.
   */
  readonly failedForMs?: number;
  /**
   * Time of the last attempt, on the monotonic clock of the node that made it. Has no meaning on
   * other nodes.
   */
  readonly triedMs?: number;
  /** Time of the next attempt. */
  readonly dueMs: number;
  /**
   * Time at which the last attempt failed. The batch is due as soon as the endpoint accepts a
   * request that began at this time or later. Absent if the endpoint rejected the content, or has
   * already accepted a request that began after the first failure.
   */
  readonly awaitsMs?: number;
  /** True if the content of the batch may be the cause of the last failure. */
  readonly isSuspect?: boolean;
  /** `feed.gap` event. Set if the batch contains only this event and no events from the feed. */
  readonly gap?: WebhookEvent;
}

export interface PartitionState {
  /** Position up to which all events have been skipped or put into a batch. */
  readonly position: Position;
  /**
   * Batches that have not been accepted yet, in order. With the order `channel`, only the first one
   * is sent, except for probes (see `Lane`).
   */
  readonly batches: readonly Batch[];
  /**
   * The last gap that was announced in each partition, `null` if no gap was announced. Set only in
   * the state of the lane that announces gaps.
   */
  readonly announced?: readonly (Gap | null)[];
}

/** Events that are missing from a partition. */
export interface Gap {
  /** Position after which events are missing. */
  readonly after: Position;
  /** Position after the gap. */
  readonly end: Position;
}

/** Maximum number of open batches per partition with the order `none`. */
const UNORDERED_BATCHES = 4;

export function maxBatches(order: "channel" | "none"): number {
  return order === "none" ? UNORDERED_BATCHES : 1;
}

/**
 * Returns the batches that may be sent now. `acceptedMs` has the same meaning as in `stepAfter`.
 */
export function dueBatches(
  { batches }: PartitionState,
  order: "channel" | "none",
  { nowMs, acceptedMs }: { readonly nowMs: number; readonly acceptedMs: number },
): readonly Batch[] {
  const open = order === "none" ? batches : batches.slice(0, 1);
  return open.filter(({ dueMs, awaitsMs = Number.POSITIVE_INFINITY }) => {
    const isClockSetBack = dueMs > nowMs + MAX_DELAY_MS;
    return dueMs <= nowMs || awaitsMs <= acceptedMs || isClockSetBack;
  });
}

/** Returns the batch with its attempts reset, so that it is due at once. */
export function restarted(batch: Batch): Batch {
  const { failingSinceMs: _, awaitsMs: __, failedForMs: ___, triedMs: ____, ...rest } = batch;
  return { ...rest, attempts: 0, dueMs: 0 };
}

/**
 * Prepares a batch that was read from the store for further attempts. If the clock was set back to
 * a time before the first failure, the batch is due at once, because its pause would otherwise
 * become longer.
 */
export function resumed({ triedMs: _, ...batch }: Batch, nowMs: number): Batch {
  const { failingSinceMs = 0 } = batch;
  return failingSinceMs > nowMs ? { ...batch, failingSinceMs: nowMs, dueMs: nowMs } : batch;
}

/** Next step for a batch after an attempt. */
type Step =
  | { readonly kind: "accepted" }
  | { readonly kind: "retry"; readonly batch: Batch }
  | { readonly kind: "split" }
  | { readonly kind: "park" }
  | { readonly kind: "disable"; readonly reason: string };

/**
 * Decides the next step after an attempt. A batch whose content may be the cause of a failure is
 * split until it has a single event. After `ISOLATED_ATTEMPTS` attempts, the event is parked: it is
 * kept as a failure and no longer sent. After the verdict `failed`, it is parked only if the
 * endpoint has accepted another request since the first failure, because otherwise the endpoint may
 * be down.
 */
export function stepAfter(
  batch: Batch,
  { retryAfterMs, verdict }: Pick<Outcome, "retryAfterMs"> & { readonly verdict: Verdict },
  context: {
    readonly nowMs: number;
    /** Monotonic time, because a clock that is set forward must not disable an endpoint. */
    readonly steadyMs: number;
    /** Random number from 0 to 1. */
    readonly random: number;
    readonly maxAgeS: number;
    /**
     * Start time of the last request that the endpoint accepted, or 0 if it has not accepted any.
     */
    readonly acceptedMs: number;
    readonly mayPark: boolean;
  },
): Step {
  const { nowMs, steadyMs, random, maxAgeS, acceptedMs, mayPark } = context;
  const attempts = batch.attempts + 1;
  const { failingSinceMs = nowMs, triedMs = steadyMs } = batch;
  const failedForMs = (batch.failedForMs ?? 0) + steadyMs - triedMs;
  if (verdict === "accepted") return { kind: "accepted" };
  if (verdict === "gone") return { kind: "disable", reason: "The receiver replied with 410" };
  const mayBePoison = verdict === "rejected" || verdict === "failed";
  if (mayBePoison && batch.count > 1) return { kind: "split" };
  const isJudged = mayBePoison && attempts >= ISOLATED_ATTEMPTS;
  const isAlone = verdict === "rejected" || acceptedMs > failingSinceMs;
  if (isJudged && isAlone && mayPark) return { kind: "park" };
  if (failedForMs > maxAgeS * 1000)
    return { kind: "disable", reason: `A request was not accepted within ${maxAgeS} seconds` };
  const pauseMs =
    mayBePoison && !isJudged
      ? isolatedDelayMs(attempts, verdict, random)
      : delayMs(attempts, random);
  const dueMs = nowMs + Math.max(pauseMs, acceptedRetryAfterMs(retryAfterMs));
  const { awaitsMs: _, ...rest } = batch;
  const isEndpointDown = verdict !== "rejected" && acceptedMs <= failingSinceMs;
  return {
    kind: "retry",
    batch: {
      ...{ ...rest, attempts, failingSinceMs, failedForMs, triedMs: steadyMs, dueMs },
      isSuspect: mayBePoison,
      ...(isEndpointDown && { awaitsMs: nowMs }),
    },
  };
}
