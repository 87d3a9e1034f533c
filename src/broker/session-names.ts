// The name by which a client continues its session: the session's id and the order of its login, so that the order is known also where the
// directory lost or never had the login. Pure.

import type { Claim } from "./session-ports.ts";

const ORDER_DIGITS = 10;
const NAME = /~([0-9a-z]{10})$/;
/** Microseconds of 2024-01-01: no login is older. */
const FIRST_ORDER = 1_704_067_200_000_000;

/** The name of a session whose login has that order. */
export function sessionName(sessionId: string, order: number): string {
  return `${sessionId}~${order.toString(36).padStart(ORDER_DIGITS, "0")}`;
}

/** What a client says by a name; "": nothing, it logs in. */
export function claimOf(name: string): Claim | undefined {
  if (name === "") return undefined;
  const order = Number.parseInt(NAME.exec(name)?.[1] ?? "", 36);
  return order >= FIRST_ORDER ? { order } : { label: name };
}
