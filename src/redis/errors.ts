// Converts error replies of Redis and errors of the connection into the broker's errors.

import { BrokerError } from "../broker/errors.ts";
import { messageOf } from "../observe/error-fields.ts";

/** Error replies of a server that cannot run the command now, or not for this user. */
const UNABLE_NOW =
  /^(LOADING|MASTERDOWN|READONLY|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|NOREPLICAS|OOM|MISCONF|BUSY|NOSCRIPT|UNKILLABLE|NOAUTH|WRONGPASS|NOPERM)\b/;

// Parts of the error replies to a user without a right, in scripts and outside, of all versions.
export const NO_KEY = /access (at least )?one of the keys|permissions to access .*\bkeys?\b/;
export const NO_TOPIC = /publish to the channel|permissions to access .*\bchannels?\b/;
export const NO_COMMAND = /NOPERM|ACL failure|can't run this command/;

/** Error reply to a script if some of its keys are in a slot that is moving to another server. */
const SLOT_MOVING = /\bScript attempted to access a non local key\b/;

/** Thrown if a node cannot use the server or its data, and waiting does not help. */
export class UnusableRedis extends Error {}

/** Thrown if Redis cannot be used now but may be usable later. The message says what to do. */
export class RedisAway extends Error {}

const MAY_RECOVER =
  /^(LOADING|MASTERDOWN|READONLY|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|NOREPLICAS|OOM|MISCONF|BUSY|NOSCRIPT|UNKILLABLE)\b|max number of clients/;

/** Code of a TLS error that lasts until this machine's clock is set, often soon after the boot. */
const NOT_YET_VALID = "CERT_NOT_YET_VALID";
const TLS_CODE = /^(ERR_TLS|ERR_SSL|EPROTO)|CERT|SIGNATURE/;
const CHECK_URL = "check redis.url (JINDOU_REDIS_URL)";

export function startFailure(cause: unknown): UnusableRedis | RedisAway {
  if (cause instanceof UnusableRedis || cause instanceof RedisAway) return cause;
  if (!(cause instanceof Error)) return new RedisAway(`${String(cause)}; ${CHECK_URL}`);
  const { lastNodeError } = cause as { readonly lastNodeError?: unknown }; // of a Redis Cluster
  if (lastNodeError !== undefined) return startFailure(lastNodeError);
  if (cause instanceof BrokerError && cause.cause !== undefined) return startFailure(cause.cause);
  const text = messageOf(cause).trim().replace(/[.!]$/, "");
  if (isReply(cause))
    return MAY_RECOVER.test(text) ? new RedisAway(`${text}; ${CHECK_URL}`) : refusal(text);
  const { code = "" } = cause as NodeJS.ErrnoException;
  if (TLS_CODE.test(code) && code !== NOT_YET_VALID)
    return new UnusableRedis(
      `${text}. Check redis.url, redis.caFile (JINDOU_REDIS_CA_FILE) and the certificate of Redis`,
    );
  return new RedisAway(`${text}; ${CHECK_URL}`);
}

function refusal(text: string): UnusableRedis {
  if (/^(NOAUTH|WRONGPASS)\b|\bAUTH\b/.test(text))
    return new UnusableRedis(`${text}. Check the user and the password in redis.url`);
  if (text.startsWith("DENIED"))
    return new UnusableRedis(
      "Redis is in protected mode, in which it accepts only connections from its own machine. Set a password in its configuration and in redis.url",
    );
  if (/cluster support disabled/i.test(text))
    return new UnusableRedis(
      "Redis is not a Cluster. Set redis.cluster to false and redis.url to a single address",
    );
  return new UnusableRedis(`${text}. Check redis.url and the configuration of Redis`);
}

export function isDenied(error: unknown): boolean {
  const cause = error instanceof BrokerError ? error.cause : error;
  return isReply(cause) && [NO_COMMAND, NO_KEY, NO_TOPIC].some((part) => part.test(cause.message));
}

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

export function isRejected(error: unknown): error is BrokerError {
  return isUnavailable(error) && isReply(error.cause);
}

function isUnavailable(error: unknown): error is BrokerError {
  return error instanceof BrokerError && error.code === "unavailable";
}

export function isReply(cause: unknown): cause is Error {
  return cause instanceof Error && cause.name === "ReplyError";
}

/**
 * Converts an error into a `BrokerError`: `unavailable` for every failure of the connection and for
 * a server that cannot run the command now or not for this user, `too_late` for a write that
 * arrived after its deadline, `internal` for a command or script that is wrong.
 */
export function asBrokerError(cause: unknown): BrokerError {
  if (cause instanceof BrokerError) return cause;
  if (cause instanceof Error && cause.message.startsWith("LATE"))
    return new BrokerError("too_late", { cause });
  const isWrong = isReply(cause) && !UNABLE_NOW.test(cause.message);
  return isWrong && !SLOT_MOVING.test(cause.message) && !isDenied(cause)
    ? new BrokerError("internal", { cause })
    : new BrokerError("unavailable", { cause });
}

export function errorOfReply(text: string): BrokerError {
  const cause = new Error(text);
  cause.name = "ReplyError"; // the name ioredis uses for error replies
  return asBrokerError(cause);
}
