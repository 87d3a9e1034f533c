// Paths of the protocol Durable Streams: a log with a path of its own, or the log of a message in a
// channel. Pure.

import type { LogName } from "../../broker/log-frame.ts";
import { logPath, MAX_LOG_SEGMENTS } from "../../broker/log-frame.ts";
import type { HttpReply } from "../../transport/types.ts";
import { edgeReply, errorReply } from "../errors.ts";

export const STREAMS_PATH = "/v1/stream/*";
export const STREAMS_PREFIX = "/v1/stream/";

/** First segment of the paths of channels' streams. */
const CHANNEL = "channel";
/** First segment that the protocol reserves for subscriptions, which do not exist here. */
const SUBSCRIPTIONS = "__ds";

export interface StreamTarget {
  readonly name: LogName;
  /** The percent-decoded path, which a signature covers. */
  readonly path: string;
}

/** Returns the log that a path names, or the reply to an invalid path. */
export function parseStreamPath(
  path: string,
): { readonly target: StreamTarget } | { readonly refusal: HttpReply } {
  const segments = path.startsWith(STREAMS_PREFIX)
    ? decodeSegments(path.slice(STREAMS_PREFIX.length))
    : undefined;
  if (segments === undefined) return { refusal: badPath() };
  const [first] = segments;
  if (first === SUBSCRIPTIONS || first === CHANNEL) return { refusal: edgeReply("not_found") };
  const logName = logPath(segments);
  if (logName === undefined) return { refusal: badPath() };
  return {
    target: { name: { kind: "free", path: logName }, path: `${STREAMS_PREFIX}${logName}` },
  };
}

/** Returns the percent-encoded path of a URL. */
export function encodeStreamPath({ path }: StreamTarget): string {
  const segments = path.slice(STREAMS_PREFIX.length).split("/");
  return `${STREAMS_PREFIX}${segments.map(encodeURIComponent).join("/")}`;
}

function decodeSegments(path: string): readonly string[] | undefined {
  try {
    return path.split("/").map(decodeURIComponent);
  } catch {
    return undefined;
  }
}

function badPath(): HttpReply {
  return errorReply("bad_id", {
    message: `The path must be ${STREAMS_PREFIX} and 1 to ${MAX_LOG_SEGMENTS} segments of 1 to 128 characters, without control characters and @ # &`,
  });
}
