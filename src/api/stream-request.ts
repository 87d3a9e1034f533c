// Parses the request of a stream reader from the path, the query string and the headers. Each
// request is parsed twice: to authorize the call, and to reply to it.

import { type Static, Type } from "typebox";
import {
  type ChannelRef,
  type DeviceFlag,
  GROUP_CHANNEL,
  MAX_TOKEN_LENGTH,
} from "../broker/model.ts";
import type { HttpRequest } from "../transport/types.ts";
import { queryReader, type Reader, type ReadResult } from "./body.ts";
import { errorReply, uidRequired } from "./errors.ts";
import { decodeExtended } from "./extended-value.ts";
import { channelId, channelType, deviceFlag, personUid, streamName } from "./fields.ts";

export const STREAM_PATH = "/stream/:channel_type/:channel_id/:client_msg_no";

/** Headers in which a viewer can send its credential, so that no URL contains the token. */
export const VIEWER_HEADERS = ["x-uid", "x-uid*", "x-token", "x-token*", "x-device-flag"];
export const STREAM_HEADERS = ["accept", "last-event-id", ...VIEWER_HEADERS];

const WEB = 1;

export const streamQuery = Type.Object({
  channel_type: channelType,
  channel_id: channelId,
  client_msg_no: streamName,
  uid: Type.Optional(personUid),
  from: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      description:
        "Index of the first event to send if the client follows the stream. Absent means 0. The Last-Event-ID header takes precedence. The `id` of each event is the index of the event after it, so a client that sends the last `id` when it reconnects continues with the next event",
    }),
  ),
  token: Type.Optional(
    Type.String({
      maxLength: MAX_TOKEN_LENGTH,
      description:
        "Device token of the user `uid`, who must be in the channel. With this token, the call needs no other credential. The token can also be sent in the x-token header, or in x-token* in the form of RFC 8187",
    }),
  ),
  device_flag: Type.Optional(
    deviceFlag(
      "Type of the device to which the token belongs: 0 app, 1 web, 2 desktop. Absent means 1",
    ),
  ),
});

export type Audience = "all" | "viewers";

export interface StreamRequest {
  readonly channel: ChannelRef;
  /** User who reads the channel. May be `undefined` only if the channel is a group. */
  readonly uid: string | undefined;
  readonly clientMsgNo: string;
  readonly fromIndex: number;
  readonly follows: boolean;
  /**
   * The viewer who made the request. `undefined` if the caller needs a control-plane credential.
   */
  readonly viewer: Viewer | undefined;
}

export interface Viewer {
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly token: string;
}

/**
 * Headers that may also be sent as `<name>*` in the form of RFC 8187. That form takes precedence.
 */
const EXTENDED_HEADERS = ["x-uid", "x-token"] as const;

/**
 * Creates a reader of stream requests. With the audience `all`, a caller without a client token is
 * a backend.
 */
export function createStreamReader(audience: Audience): Reader<StreamRequest> {
  const read = queryReader(streamQuery, valuesOf);
  return (request) => {
    const malformed = malformedHeaderIn(request);
    if (malformed !== undefined) return { refusal: malformedHeader(`${malformed}*`) };
    const result = read(request);
    return "refusal" in result ? result : toRequest(result.value, request, audience);
  };
}

/** Creates a reader of the client token in a request that has one (see `presentsToken`). */
export function createViewerReader(): Reader<Viewer> {
  const { uid: uidSchema, token: tokenSchema, device_flag: flagSchema } = streamQuery.properties;
  const schema = Type.Object({ uid: uidSchema, token: tokenSchema, device_flag: flagSchema });
  const read = queryReader(schema, ({ headers }) => presentValues(viewerValues(headers)));
  return (request) => {
    const malformed = malformedHeaderIn(request);
    if (malformed !== undefined) return { refusal: malformedHeader(`${malformed}*`) };
    const result = read(request);
    if ("refusal" in result) return result;
    const { uid, token = "", device_flag: flag = WEB } = result.value;
    if (uid === undefined || uid === "") return { refusal: uidRequired(VIEWER_WITHOUT_UID) };
    return { value: { uid, token, flag } };
  };
}

function malformedHeaderIn({ headers }: HttpRequest): string | undefined {
  return EXTENDED_HEADERS.find((name) => {
    const value = headers[`${name}*`] ?? "";
    return value !== "" && decodeExtended(value) === undefined;
  });
}

/** Returns true if the request has a client token. Does not validate the request. */
export function presentsToken({ query, headers }: HttpRequest): boolean {
  if ("x-token" in headers || "x-token*" in headers) return true;
  return new URLSearchParams(query).has("token");
}

function valuesOf({ params, headers }: HttpRequest): Record<string, string> {
  const [type = "", id = "", clientMsgNo = ""] = params;
  const path = { channel_type: type, channel_id: id, client_msg_no: clientMsgNo };
  const headerValues = { from: headers["last-event-id"], ...viewerValues(headers) };
  return { ...path, ...presentValues(headerValues) };
}

function viewerValues(headers: HttpRequest["headers"]) {
  return {
    uid: extendedOr(headers, "x-uid"),
    token: extendedOr(headers, "x-token"),
    device_flag: headers["x-device-flag"],
  };
}

function presentValues(
  texts: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const values: Record<string, string> = {};
  for (const [name, text = ""] of Object.entries(texts)) if (text !== "") values[name] = text;
  return values;
}

function extendedOr(
  headers: HttpRequest["headers"],
  name: (typeof EXTENDED_HEADERS)[number],
): string | undefined {
  return decodeExtended(headers[`${name}*`] ?? "") ?? headers[name];
}

function malformedHeader(name: string) {
  return errorReply("bad_request", {
    message: `The header ${name} must be an RFC 8187 extended value, such as UTF-8''jos%C3%A9`,
    details: [{ path: name, message: "is not an RFC 8187 extended value" }],
  });
}

function toRequest(
  query: Static<typeof streamQuery>,
  { headers }: HttpRequest,
  audience: Audience,
): ReadResult<StreamRequest> {
  const { token, device_flag: flag = WEB } = query;
  const uid = query.uid || undefined;
  const isViewer = audience === "viewers" || token !== undefined;
  const channel = { id: query.channel_id, type: query.channel_type };
  if (uid === undefined && (isViewer || channel.type !== GROUP_CHANNEL))
    return { refusal: isViewer ? uidRequired(VIEWER_WITHOUT_UID) : uidRequired() };
  return {
    value: {
      channel,
      uid,
      clientMsgNo: query.client_msg_no,
      fromIndex: query.from ?? 0,
      follows: acceptsEvents(headers.accept ?? ""),
      viewer: isViewer && uid !== undefined ? { uid, flag, token: token ?? "" } : undefined,
    },
  };
}

const VIEWER_WITHOUT_UID = "uid is required with a viewer's token";

function acceptsEvents(accept: string): boolean {
  return accept.split(",").some((type) => /^\s*text\/event-stream\s*(;|$)/i.test(type));
}
