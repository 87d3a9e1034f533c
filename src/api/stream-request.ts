// What a reader of a stream asks for, out of path, query and headers: one reading for who judges the call and for who answers it. State: none.

import type { Static } from "typebox";
import { type ChannelRef, GROUP_CHANNEL } from "../broker/model.ts";
import { hashToken } from "../broker/tokens.ts";
import type { HttpRequest } from "../transport/types.ts";
import { queryReader, type Read, type Reader } from "./body.ts";
import { errorReply } from "./errors.ts";
import { streamSchemas } from "./stream-schemas.ts";
import type { Viewer } from "./viewers.ts";

export const STREAM_PATH = "/stream/:channel_type/:channel_id/:client_msg_no";

/** What a viewer may say in headers, so that no token stands in a URL. */
export const VIEWER_HEADERS = ["x-uid", "x-token", "x-device-flag"];
export const STREAM_HEADERS = ["accept", "last-event-id", ...VIEWER_HEADERS];

/** Who calls: backends and viewers, or viewers only. */
export type Audience = "all" | "viewers";

export interface StreamRequest {
  readonly channel: ChannelRef;
  /** Whose conversation a personal channel is. */
  readonly uid: string | undefined;
  readonly clientMsgNo: string;
  readonly fromIndex: number;
  /** By server-sent events. */
  readonly follows: boolean;
  /** Undefined: whoever calls must have a credential of the control plane. */
  readonly viewer: Viewer | undefined;
}

const WEB = 1;

/** A reader for `audience`: there a call with a token, here every call, is a viewer's. */
export function createStreamReader(audience: Audience): Reader<StreamRequest> {
  const read = queryReader(streamSchemas.stream, beside);
  return (request) => {
    const asked = read(request);
    return "refused" in asked
      ? asked
      : toRequest(asked.value, request, audience);
  };
}

/** Whether a call that could not be read is a viewer's. */
export function presentsToken({ query, headers }: HttpRequest): boolean {
  return headers["x-token"] !== "" || new URLSearchParams(query).has("token");
}

/** What stands beside the query string; the path counts before it, and so does a header. */
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
  for (const [name, text = ""] of Object.entries(said))
    if (text !== "") values[name] = text;
  return values;
}

function toRequest(
  asked: Static<typeof streamSchemas.stream>,
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
  return accept
    .split(",")
    .some((type) => /^\s*text\/event-stream\s*(;|$)/i.test(type));
}
