// This node's closed sessions and refused connects, in memory only. They are kept in two rings, so
// that refused connects cannot displace closed sessions. No entry contains a token or a payload.

import { CLOSE_REASONS, type CloseReason, type ErrorCode } from "../broker/errors.ts";
import type { DeviceFlag, DeviceLevel } from "../broker/model.ts";
import { BoundedMap } from "../lib/bounded-map.ts";

interface ClosedSession {
  /** True if the connection was closed before its login was accepted. */
  readonly isRefused: boolean;
  /** Id of the session. "" if the connection was closed before a session was created. */
  readonly sessionId: string;
  /** For a refused connect, the uid in the client's CONNECT, which may not have been verified. */
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly level: DeviceLevel;
  readonly deviceId: string;
  readonly address: string;
  readonly listener: string;
  /** "" if neither the subprotocol nor a frame has selected the wire format. */
  readonly format: string;
  readonly version: number;
  readonly sinceMs: number;
  readonly endedMs: number;
  readonly reason: EndReason;
  readonly code: number;
  /** For a refused connect, the code of its last error. `undefined` if there was no error. */
  readonly error: ErrorCode | undefined;
  /** Origin of the web page whose handshake was refused. `undefined` for all other entries. */
  readonly origin?: string;
}

/** Reasons that are never sent to a client, with their explanations for the operator. */
const OTHER_REASONS = {
  lost: "The connection ended without a close frame, for example because the network failed, or because the client vanished or was silent for the idleTimeoutS of its listener",
  left: "The client closed the connection without ending its session",
  origin_refused: "client.allowedOrigins does not contain the origin of the web page",
  too_many_connections: "The node already has client.maxConnections client sockets",
};

/** Reason why a connection ended, or why its handshake was refused. */
type EndReason = CloseReason | keyof typeof OTHER_REASONS;

/** Returns the explanation of a reason, for the operator. */
export function endMessage(reason: EndReason): string {
  return reason in OTHER_REASONS
    ? OTHER_REASONS[reason as keyof typeof OTHER_REASONS]
    : CLOSE_REASONS[reason as CloseReason].message;
}

const MAX_ORIGIN_LENGTH = 256;

/** Returns the entry for a handshake that was refused with an HTTP status. */
export function refusedHandshake(
  { remoteAddress, origin }: { readonly remoteAddress: string; readonly origin: string },
  refusal: { readonly reason: EndReason; readonly status: number; readonly nowMs: number },
): ClosedSession {
  const { reason, status, nowMs } = refusal;
  return {
    isRefused: true,
    ...{ sessionId: "", uid: "", flag: 0, level: 0, deviceId: "", format: "", version: 0 },
    address: remoteAddress,
    listener: "client",
    sinceMs: nowMs,
    endedMs: nowMs,
    reason,
    code: status,
    error: undefined,
    ...(origin === "" ? {} : { origin: origin.slice(0, MAX_ORIGIN_LENGTH) }),
  };
}

const MAX_REFUSED = 1000;
const MAX_AGE_MS = 86_400_000;
const SWEEP_MS = 60_000;
/** Close code that stands for a connection without a close frame [RFC 6455 7.1.5]. */
const NO_CLOSE_FRAME = 1006;

/**
 * Returns the reason to show to the operator. `ended` is set if the server ended the connection.
 */
export function endReason(ended: CloseReason | undefined, code: number): EndReason {
  if (code === CLOSE_REASONS.slow_reader.code) return "slow_reader";
  return ended ?? (code === NO_CLOSE_FRAME ? "lost" : "left");
}

interface Entry {
  readonly closed: ClosedSession;
  /** Time on the monotonic clock. The system clock may be set back. */
  readonly atMs: number;
}

export class ClosedSessions {
  readonly #sessions: BoundedMap<number, Entry> | undefined;
  readonly #refused: BoundedMap<number, Entry> | undefined;
  readonly #now: () => number;
  #count = 0;
  #sweep: NodeJS.Timeout | undefined;

  /**
   * Keeps the last `max` closed sessions and the last `max` refused connects, but at most
   * `MAX_REFUSED` refused connects. If `max` is 0, nothing is kept.
   */
  constructor(max: number, now = () => performance.now()) {
    this.#now = now;
    if (max === 0) return;
    this.#sessions = new BoundedMap(max);
    this.#refused = new BoundedMap(Math.min(max, MAX_REFUSED));
  }

  add(closed: ClosedSession): void {
    const ring = closed.isRefused ? this.#refused : this.#sessions;
    if (ring === undefined) return;
    this.#count += 1;
    ring.set(this.#count, { closed, atMs: this.#now() });
    this.#sweep ??= setInterval(() => this.#forgetOld(), SWEEP_MS).unref();
  }

  /** Yields the entries from the last 24 hours in no particular order. */
  *[Symbol.iterator](): IterableIterator<ClosedSession> {
    this.#forgetOld();
    for (const ring of [this.#sessions, this.#refused])
      for (const [, { closed }] of ring ?? []) yield closed;
  }

  #forgetOld(): void {
    const oldestMs = this.#now() - MAX_AGE_MS;
    let kept = 0;
    for (const ring of [this.#sessions, this.#refused]) {
      if (ring === undefined) continue;
      for (const [key, { atMs }] of ring) {
        if (atMs > oldestMs) break; // the following entries are newer
        ring.delete(key);
      }
      kept += ring.size;
    }
    if (kept > 0) return;
    clearInterval(this.#sweep);
    this.#sweep = undefined;
  }
}
