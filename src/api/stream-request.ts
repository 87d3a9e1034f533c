// The request of a stream's reader, taken from path, query and headers: read once to judge the call
// and once to answer it. State: none.

import { type Static, Type } from "typebox";
import { type ChannelRef, type DeviceFlag, GROUP_CHANNEL } from "../broker/model.ts";
import { hashToken } from "../broker/tokens.ts";
import type { HttpRequest } from "../transport/types.ts";
import { queryReader, type Read, type Reader } from "./body.ts";
import { errorReply } from "./errors.ts";
import { channelId, channelType, personUid, streamName } from "./fields.ts";

export const STREAM_PATH = "/stream/:channel_type/:channel_id/:client_msg_no";

/** Headers a viewer may use, so that its token is in no URL. */
export const VIEWER_HEADERS = ["x-uid", "x-token", "x-device-flag"];
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
      default: 0,
      description:
        "Following: index of the first event wanted; the header Last-Event-ID says the same",
    }),
  ),
  token: Type.Optional(
    Type.String({
      maxLength: 4096,
      description:
        "A viewer's own credential, in place of one of the control plane: the token of a device of `uid`, who must be in the channel. Also as header x-token",
    }),
  ),
  device_flag: Type.Optional(
    Type.Enum([0, 1, 2], {
      type: "integer",
      default: WEB,
      description: "Whose token it is: 0 app, 1 web, 2 desktop",
    }),
  ),
});

/** The callers a listener takes: backends and viewers, or viewers only. */
export type Audience = "all" | "viewers";

export interface StreamRequest {
  readonly channel: ChannelRef;
  /** Whose conversation a personal channel is. */
  readonly uid: string | undefined;
  readonly clientMsgNo: string;
  readonly fromIndex: number;
  /** By server-sent events. */
  readonly follows: boolean;
  /** Undefined: the caller needs a credential of the control plane. */
  readonly viewer: Viewer | undefined;
}

/** A user that reads a stream with the token of one of its devices. */
export interface Viewer {
  readonly uid: string;
  readonly flag: DeviceFlag;
  /** SHA-256 of the token. */
  readonly tokenHash: Uint8Array;
}

/** For `viewers` every call is a viewer's, for `all` a call with a token is. */
export function createStreamReader(audience: Audience): Reader<StreamRequest> {
  const read = queryReader(streamQuery, beside);
  return (request) => {
    const asked = read(request);
    return "refused" in asked ? asked : toRequest(asked.value, request, audience);
  };
}

/** Whether a call that cannot be read is a viewer's. */
export function presentsToken({ query, headers }: HttpRequest): boolean {
  return headers["x-token"] !== "" || new URLSearchParams(query).has("token");
}

/** Values of the path and of headers, which override the query string. */
function beside({ params, headers }: HttpRequest): Record<string, string> {
  const [type = "", id = "", clientMsgNo = ""] = params;
  const values: Record<string, string> = {
    channel_type: type,
    channel_id: id,
    client_msg_no: clientMsgNo,
  };
  const said = {
    from: headers["last-event-id"],
    uid: headers["x-uid"],
    token: headers["x-token"],
    device_flag: headers["x-device-flag"],
  };
  for (const [name, text = ""] of Object.entries(said)) if (text !== "") values[name] = text;
  return values;
}

function toRequest(
  asked: Static<typeof streamQuery>,
  { headers }: HttpRequest,
  audience: Audience,
): Read<StreamRequest> {
  const { uid, token, device_flag: flag = WEB } = asked;
  const isViewer = audience === "viewers" || token !== undefined;
  const channel = { id: asked.channel_id, type: asked.channel_type };
  if (uid === undefined && (isViewer || channel.type !== GROUP_CHANNEL))
    return { refused: uidMissing(isViewer) };
  return {
    value: {
      channel,
      uid,
      clientMsgNo: asked.client_msg_no,
      fromIndex: asked.from ?? 0,
      follows: acceptsEvents(headers.accept ?? ""),
      viewer:
        isViewer && uid !== undefined
          ? { uid, flag, tokenHash: hashToken(token ?? "") }
          : undefined,
    },
  };
}

function uidMissing(isViewer: boolean) {
  return errorReply("bad_request", {
    message: isViewer
      ? "uid is required with a viewer's token"
      : "uid is required for a personal channel",
    details: [{ path: "uid", message: "is required" }],
  });
}

function acceptsEvents(accept: string): boolean {
  return accept.split(",").some((type) => /^\s*text\/event-stream\s*(;|$)/i.test(type));
}
