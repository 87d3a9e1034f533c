// What Redis says when it cannot do something, as the broker's errors.

import { BrokerError } from "../broker/errors.ts";

/** The server is there but cannot serve now; a retry may find another one. */
const AWAY =
  /^(LOADING|MASTERDOWN|READONLY|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|NOREPLICAS|OOM|MISCONF|BUSY|NOSCRIPT|UNKILLABLE|NOAUTH|WRONGPASS|NOPERM)\b/;

/** A script needs keys of a slot that moves to another server. */
const MOVES = /\bScript attempted to access a non local key\b/;

export function isMissingScript(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith("NOSCRIPT");
}

/**
 * The server said nothing to it in time, or its connection ended: a wait, where every other failure
 * comes at once.
 */
export function isUnanswered(error: unknown): boolean {
  if (!(error instanceof BrokerError) || error.code !== "unavailable") return false;
  return error.cause instanceof Error && error.cause.name !== "ReplyError";
}

/**
 * `unavailable` for everything of the connection and the server's state, `internal` for a step that
 * is wrong.
 */
export function asBrokerError(cause: unknown): BrokerError {
  if (cause instanceof BrokerError) return cause;
  const isReply = cause instanceof Error && cause.name === "ReplyError";
  return isReply && !AWAY.test(cause.message) && !MOVES.test(cause.message)
    ? new BrokerError("internal", { cause })
    : new BrokerError("unavailable", { cause });
}

/** The same of an error that a step replied as text. */
export function errorOfReply(text: string): BrokerError {
  const cause = new Error(text);
  cause.name = "ReplyError"; // as the library names what a server replied
  return asBrokerError(cause);
}
