// Session names. A client uses the name of its session to continue the session. The name contains
// the order of the login, in case the store loses the login, and the time after which the client
// may have missed ends of streams. The server does not store these names. Pure functions.
//
//   <session id>:<time of the connect>:<ends since>~<order>   numbers in base 36, times in Unix ms

import { crc32 } from "../lib/crc32.ts";
import type { Claim } from "./ports.ts";

interface NamedSession {
  readonly sessionId: string;
  readonly order: number;
  readonly connectedMs: number;
  /** Time before which the client has not missed the end of any stream. */
  readonly endsSinceMs: number;
}

const HALF_DIGITS = 5;
const HALF = 36 ** HALF_DIGITS;
const NAME = /(?::([0-9a-z]{1,11}):([0-9a-z]{1,11}))?~([0-9a-z]{10})$/;
/** Lowest valid order of a login: 2024-01-01 in microseconds. */
const FIRST_ORDER = 1_704_067_200_000_000;

/**
 * Returns the session's name, which CONNACK contains as `sessionId`. A later CONNECT sends the name
 * to continue the session.
 */
export function nameSession({ sessionId, order, connectedMs, endsSinceMs }: NamedSession): string {
  return `${sessionId}:${digitsOf(connectedMs)}:${digitsOf(endsSinceMs)}~${digitsOf(order)}`;
}

/**
 * Returns the value as ten digits in base 36. It is formatted in halves, because V8 formats numbers
 * below 2^31 many times faster.
 */
function digitsOf(value: number): string {
  const halves = [Math.floor(value / HALF), value % HALF];
  return halves.map((half) => half.toString(36).padStart(HALF_DIGITS, "0")).join("");
}

/** Returns the claim in a CONNECT, or `undefined` if `name` is "", which claims no session. */
export function claimIn(name: string): Claim | undefined {
  if (name === "") return undefined;
  const order = Number.parseInt(NAME.exec(name)?.[3] ?? "", 36);
  return order >= FIRST_ORDER ? { order } : { label: name };
}

/** Returns the times in a name, or `undefined` if the name contains no times. */
export function timesIn(
  name: string,
): Pick<NamedSession, "connectedMs" | "endsSinceMs"> | undefined {
  const [, connected, endsSince] = NAME.exec(name) ?? [];
  if (connected === undefined || endsSince === undefined) return undefined;
  return {
    connectedMs: Number.parseInt(connected, 36),
    endsSinceMs: Number.parseInt(endsSince, 36),
  };
}

const NUMBERS_PER_NODE = 2 ** 20;

/**
 * Returns a session's id as an integer below 2^53, as WuKongIM does. The upper 32 bits are a hash
 * of the node id. The lower 20 bits are the session's number on the node.
 */
export function connectionNumber(sessionId: string): number {
  const at = sessionId.lastIndexOf("-");
  const count = Number.parseInt(sessionId.slice(at + 1), 36);
  return crc32(Buffer.from(sessionId.slice(0, at))) * NUMBERS_PER_NODE + (count % NUMBERS_PER_NODE);
}
