// Converts error replies of Redis and errors of the connection into the broker's errors.

import { BrokerError } from "../broker/errors.ts";

/** Error replies of a server that is reachable but cannot run the command now. */
const UNABLE_NOW =
  /^(LOADING|MASTERDOWN|READONLY|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|NOREPLICAS|OOM|MISCONF|BUSY|NOSCRIPT|UNKILLABLE|NOAUTH|WRONGPASS|NOPERM)\b/;

/** Error reply to a script if some of its keys are in a slot that is moving to another server. */
const SLOT_MOVING = /\bScript attempted to access a non local key\b/;

export function isMissingScript(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith("NOSCRIPT");
}

/**
 * Returns true for an `unavailable` error whose cause is not a reply of Redis. The command may have
 * run. Returns false if Redis rejected the command, or if the error has no cause.
 */
export function isUnanswered(error: unknown): boolean {
  return isUnavailable(error) && error.cause instanceof Error && !isReply(error.cause);
}

/**
 * Returns true if Redis replied that it cannot run the command now. False if the command was not
 * sent, was not answered, or was too late.
 */
export function isRejected(error: unknown): boolean {
  return isUnavailable(error) && isReply(error.cause);
}

function isUnavailable(error: unknown): error is BrokerError {
  return error instanceof BrokerError && error.code === "unavailable";
}

function isReply(cause: unknown): cause is Error {
  return cause instanceof Error && cause.name === "ReplyError";
}

/**
 * Converts an error into a `BrokerError`: `unavailable` for every failure of the connection and for
 * a server that cannot run the command now, `too_late` for a write that arrived after its deadline,
 * `internal` for a command or script that is wrong.
 */
export function asBrokerError(cause: unknown): BrokerError {
  if (cause instanceof BrokerError) return cause;
  if (cause instanceof Error && cause.message.startsWith("LATE"))
    return new BrokerError("too_late", { cause });
  return isReply(cause) && !UNABLE_NOW.test(cause.message) && !SLOT_MOVING.test(cause.message)
    ? new BrokerError("internal", { cause })
    : new BrokerError("unavailable", { cause });
}

export function errorOfReply(text: string): BrokerError {
  const cause = new Error(text);
  cause.name = "ReplyError"; // the name ioredis uses for error replies
  return asBrokerError(cause);
}
