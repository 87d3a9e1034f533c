// Converts Redis error replies and connection errors into the broker's errors.

import { BrokerError, ERRORS } from "../broker/errors.ts";
import { messageOf } from "../observe/error-fields.ts";
import {
  type Cause,
  causeOfFailure,
  causeOfReply,
  MISSING_FUNCTION,
  sentenceAbout,
} from "./causes.ts";

// Patterns that match the error replies about missing rights, from scripts and commands, in all
// versions of Redis.
export const NO_KEY = /access (at least )?one of the keys|permissions to access .*\bkeys?\b/;
export const NO_TOPIC = /publish to the channel|permissions to access .*\bchannels?\b/;
export const NO_COMMAND = /NOPERM|ACL failure|can't run this command/;

/** Address of a server at the start of a message. */
const SERVER = /^at \S+ /;

/** Thrown if a node cannot use the server or its data, and waiting does not help. */
export class UnusableRedis extends Error {
  /** The message without network addresses. */
  readonly publicMessage: string;

  constructor(message: string, publicMessage = message.replace(SERVER, "")) {
    super(message);
    this.publicMessage = publicMessage;
  }
}

/** Thrown if Redis cannot be used now but may be usable later. */
export class RedisAway extends Error {
  readonly publicMessage: string;

  constructor(message: string, publicMessage = message.replace(SERVER, "")) {
    super(message);
    this.publicMessage = publicMessage;
  }
}

const CHECK_URL = "Check redis.url (JINDOU_REDIS_URL)";
const UNKNOWN = "the connection to Redis failed. The node's log contains the reason";

/** Converts any connection or command error into an error for the operator. */
export function startFailure(error: unknown): UnusableRedis | RedisAway {
  const origin = originOf(error);
  if (origin instanceof UnusableRedis || origin instanceof RedisAway) return origin;
  const text = textOf(origin);
  const cause = causeOf(origin);
  if (cause !== undefined) {
    const [firstSentence] = text.split(". ");
    const sentences = [sentenceAbout(cause, firstSentence), sentenceAbout(cause)] as const;
    return cause.lasts === true ? new UnusableRedis(...sentences) : new RedisAway(...sentences);
  }
  if (isReply(origin))
    return new UnusableRedis(`${text}. ${CHECK_URL} and the configuration of Redis`);
  if (origin instanceof BrokerError) return new RedisAway(text);
  return new RedisAway(`${text}. ${CHECK_URL}`, UNKNOWN);
}

export function causeOf(error: unknown): Cause | undefined {
  const origin = originOf(error);
  const text = textOf(origin);
  if (isReply(origin)) return causeOfReply(text);
  if (origin instanceof BrokerError) return undefined;
  const { code } = Object(origin) as { readonly code?: unknown };
  return causeOfFailure(typeof code === "string" ? `${code} ${text}` : text);
}

/** Returns true unless the error's origin is a `BrokerError` with its code's general message. */
export function isExplained(error: unknown): boolean {
  const origin = originOf(error);
  return !(origin instanceof BrokerError && origin.message === ERRORS[origin.code].message);
}

/**
 * Returns the error that led to `error`: the cause of a `BrokerError`, or the last error that a
 * Redis Cluster client received from a server. Returns `error` itself if there is no such error, or
 * if the message of `error` already states the cause. If the cause is a Redis error reply or an
 * `UnusableRedis`, the message of `error` is meant for callers and not for the operator, so the
 * cause is returned.
 */
function originOf(error: unknown): unknown {
  const { cause, lastNodeError } = Object(error) as {
    readonly cause?: unknown;
    readonly lastNodeError?: unknown; // set by the client of a Redis Cluster
  };
  if (lastNodeError != null) return originOf(lastNodeError);
  if (!(error instanceof BrokerError) || cause === undefined) return error;
  const isGeneric = error.message === ERRORS[error.code].message;
  const isOrigin = isReply(cause) || cause instanceof UnusableRedis;
  return isGeneric || isOrigin ? originOf(cause) : error;
}

/** Returns an error's message without script positions and the text that libraries add. */
function textOf(error: unknown): string {
  // Node.js throws an error without a message if none of a host name's addresses can be reached.
  const { errors } = Object(error) as { readonly errors?: unknown };
  if (Array.isArray(errors)) return errors.map(textOf).join(", ");
  // The replacements remove the text that Redis, ioredis and OpenSSL add.
  return messageOf(error)
    .replace(/ script: [0-9a-f]{40}.*$/s, "")
    .replace(/\. Please report this\.$/, "")
    .replace(/ are unreachable\..* Last error: /s, " are unreachable: ")
    .replace(/^[0-9A-F]+:error:[0-9A-F]+:[^:]*:[^:]*:([^:]+):.*$/s, "$1")
    .trim()
    .replace(/[.!]$/, "");
}

export function isDenied(error: unknown): boolean {
  const cause = error instanceof BrokerError ? error.cause : error;
  return isReply(cause) && [NO_COMMAND, NO_KEY, NO_TOPIC].some((part) => part.test(cause.message));
}

export function isMissingScript(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith("NOSCRIPT");
}

/** Returns true if the server lacks the function's library. The call then had no effect. */
export function isMissingFunction(error: unknown): boolean {
  return isReply(error) && MISSING_FUNCTION.pattern.test(error.message);
}

/** Returns true if a library was not loaded because the server already has it. */
export function isExistingLibrary(error: unknown): boolean {
  return isReply(error) && /^ERR Library '\w+' already exists/.test(error.message);
}

/**
 * Returns true if the error is the `unavailable` error of a call that Redis did not reject. The
 * command may have run.
 */
export function isUnanswered(error: unknown): boolean {
  return isUnavailable(error) && error.cause instanceof Error && !isRejected(error);
}

/**
 * Returns true if the error is the `unavailable` error of a call that Redis rejected, or that was
 * not sent because this Redis cannot be used.
 */
export function isRejected(error: unknown): error is BrokerError {
  return isUnavailable(error) && (isReply(error.cause) || error.cause instanceof UnusableRedis);
}

function isUnavailable(error: unknown): error is BrokerError {
  return error instanceof BrokerError && error.code === "unavailable";
}

export function isReply(cause: unknown): cause is Error {
  return cause instanceof Error && cause.name === "ReplyError";
}

/**
 * Converts an error to a `BrokerError`: `unavailable` for a connection failure, a missing right or
 * a server that currently cannot run the command, `too_late` for a write after its deadline, and
 * `internal` for an invalid command or script. Returns a `BrokerError` unchanged.
 */
export function asBrokerError(cause: unknown): BrokerError {
  if (cause instanceof BrokerError) return cause;
  if (cause instanceof Error && cause.message.startsWith("LATE"))
    return new BrokerError("too_late", { cause });
  const reason = isReply(cause) ? causeOfReply(cause.message) : undefined;
  if (isReply(cause) && reason === undefined && !isDenied(cause))
    return new BrokerError("internal", { cause });
  const { callerMessage: message = ERRORS.unavailable.message } = reason ?? {};
  return new BrokerError("unavailable", { message, cause });
}

/** Returns the error for a call that cannot succeed until the operator acts. */
export function unusable(cause: UnusableRedis): BrokerError {
  const message = `Redis cannot be used: ${cause.publicMessage}`;
  return new BrokerError("unavailable", { message, cause });
}

export function errorOfReply(text: string): BrokerError {
  return asBrokerError(replyError(text));
}

/** Returns an error of the kind that ioredis creates for error replies. */
export function replyError(text: string): Error {
  const error = new Error(text);
  error.name = "ReplyError";
  return error;
}
