// Paths of the Durable Streams protocol. A path names either a free log, which belongs to no
// channel, or the log of a message in a channel. Pure functions.

import type { LogName } from "../../broker/log-frame.ts";
import { logPath, MAX_LOG_SEGMENTS } from "../../broker/log-frame.ts";
import {
  type ChannelRef,
  type ChannelType,
  channelKey,
  GROUP_CHANNEL,
  isId,
  isWellFormed,
  MAX_ID_LENGTH,
  PERSON_CHANNEL,
} from "../../broker/model.ts";
import type { HttpReply } from "../../transport/types.ts";
import { edgeReply, errorReply } from "../errors.ts";

export const STREAMS_PATH = "/v1/stream/*";
export const STREAMS_PREFIX = "/v1/stream/";

/** First path segment of channel streams. */
const CHANNEL = "channel";
/**
 * First segment that the protocol reserves for subscriptions, which this server does not support.
 */
const SUBSCRIPTIONS = "__ds";

interface FreeTarget {
  readonly kind: "free";
  readonly name: LogName;
  /** Path that a signature covers. It is decoded, except segments that contain a slash or `%`. */
  readonly path: string;
  readonly urlPath: string;
}

/**
 * A channel's stream. If the path names only one user of a personal channel, the caller is the
 * other user.
 */
export interface ChannelTarget extends Pick<FreeTarget, "path" | "urlPath"> {
  readonly kind: "channel";
  readonly type: ChannelType;
  /** Id of the group, uid of one user of a personal channel, or the uids of both users. */
  readonly ids: readonly string[];
  readonly clientMsgNo: string;
}

export type StreamTarget = FreeTarget | ChannelTarget;

/** A stream of a channel, from the point of view of one of the channel's users. */
interface ViewedStream {
  readonly name: LogName;
  readonly channel: ChannelRef;
}

type ParsedPath = { readonly target: StreamTarget } | { readonly refusal: HttpReply };

/** Returns the log that a path names, or an error reply if the path is invalid. */
export function parseStreamPath(path: string): ParsedPath {
  const segments = path.startsWith(STREAMS_PREFIX)
    ? decodeSegments(path.slice(STREAMS_PREFIX.length))
    : undefined;
  if (segments === undefined) return { refusal: badPath() };
  const [first] = segments;
  if (first === SUBSCRIPTIONS) return { refusal: edgeReply("not_found") };
  const urlPath = `${STREAMS_PREFIX}${segments.map(encodeURIComponent).join("/")}`;
  if (first === CHANNEL) return parseChannelPath(segments, urlPath);
  const logName = logPath(segments);
  if (logName === undefined) return { refusal: badPath() };
  const name = { kind: "free", path: logName } as const;
  return { target: { kind: "free", name, path: `${STREAMS_PREFIX}${logName}`, urlPath } };
}

function parseChannelPath(segments: readonly string[], urlPath: string): ParsedPath {
  const [, typeText, idText = "", clientMsgNo = ""] = segments;
  const type = Number(typeText);
  const isType = typeText === String(PERSON_CHANNEL) || typeText === String(GROUP_CHANNEL);
  const ids = type === PERSON_CHANNEL ? idText.split("@") : [idText];
  const isName =
    clientMsgNo !== "" && clientMsgNo.length <= MAX_ID_LENGTH && isWellFormed(clientMsgNo);
  if (segments.length !== 4 || !isType || ids.length > 2 || !ids.every(isId) || !isName)
    return { refusal: badChannelPath() };
  // A segment that contains a slash or a percent sign after decoding is encoded again. Otherwise,
  // the signature of one path would also be valid for another path.
  const path = segments.map((segment) =>
    /[/%]/.test(segment) ? encodeURIComponent(segment) : segment,
  );
  return {
    target: {
      ...{ kind: "channel", type: type as ChannelType, ids, clientMsgNo, urlPath },
      path: `${STREAMS_PREFIX}${path.join("/")}`,
    },
  };
}

/**
 * Returns the stream that the path names for the user `uid`. Returns an error reply if the path
 * names only one user of a personal channel and `uid` is `undefined`, or if the path names both
 * users and `uid` is neither of them.
 */
export function viewStream(
  { type, ids, clientMsgNo }: ChannelTarget,
  uid: string | undefined,
): ViewedStream | HttpReply {
  const [id = "", second] = ids;
  if (type === GROUP_CHANNEL) return viewedStream({ id, type }, "", clientMsgNo);
  if (second === undefined)
    return uid === undefined
      ? errorReply("bad_request", { message: PAIR_NEEDED })
      : viewedStream({ id, type }, uid, clientMsgNo);
  if (uid === undefined || uid === second) return viewedStream({ id, type }, second, clientMsgNo);
  if (uid === id) return viewedStream({ id: second, type }, uid, clientMsgNo);
  return errorReply("forbidden", { message: `${uid} is not a user of this personal channel` });
}

const PAIR_NEEDED =
  "The path names only one user of the personal channel, and the request names no user; name both in the path, as in /v1/stream/channel/1/alice@bob/answer";

function viewedStream(channel: ChannelRef, uid: string, clientMsgNo: string): ViewedStream {
  return { channel, name: { kind: "channel", key: channelKey(channel, uid), clientMsgNo } };
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
    message: `The path must be ${STREAMS_PREFIX} followed by 1 to ${MAX_LOG_SEGMENTS} segments of 1 to 128 characters, without control characters and without @ # &`,
  });
}

function badChannelPath(): HttpReply {
  return errorReply("bad_id", {
    message: `The path of a channel's stream must be ${STREAMS_PREFIX}${CHANNEL}/{channel_type}/{channel_id}/{client_msg_no}`,
  });
}
