// The row that reads a stream: its state now, or event by event until its end. On the clients'
// listener it is the only row. State: the open feeds.

import type { StreamNote, StreamSnapshot } from "../broker/model.ts";
import type { StreamFollowers } from "../broker/stream-followers.ts";
import type { Streams } from "../broker/streams.ts";
import { Feeds, type MayStay } from "./feeds.ts";
import { jsonReply, NOTHING_REPLY } from "./reply.ts";
import { streamBody } from "./reply-schemas.ts";
import type { Answered, ApiRoute } from "./route.ts";
import {
  type Audience,
  createStreamReader,
  STREAM_HEADERS,
  STREAM_PATH,
  type StreamRequest,
  streamQuery,
} from "./stream-request.ts";
import { type AdmissionParts, createStreamAdmission, STREAM_ACCESS } from "./viewers.ts";

export interface StreamRouteParts extends AdmissionParts {
  readonly streams: Pick<Streams, "read">;
  readonly followers: Pick<StreamFollowers, "follow">;
  /** Interval of keep-alive comments and of checks that a reader may stay. Absent: 15 s. */
  readonly keepAliveMs?: number;
}

export function createStreamRoute(parts: StreamRouteParts, audience: Audience): ApiRoute {
  const { streams, followers } = parts;
  const read = createStreamReader(audience);
  const admission = createStreamAdmission(parts, audience);
  const feeds = new Feeds(parts.keepAliveMs);

  async function answer(asked: StreamRequest, mayStay: MayStay): Promise<Answered> {
    const { channel, uid, clientMsgNo, fromIndex } = asked;
    const view = { channel, uid };
    const stream = await streams.read(view, clientMsgNo);
    if (!asked.follows) return jsonReply(JSON.stringify(streamReplyJson(stream)));
    // A browser's EventSource reconnects after the end; 204 stops it.
    if (stream.state !== "active" && fromIndex === stream.nextIndex) return NOTHING_REPLY;
    const viewer = asked.viewer && { uid: asked.viewer.uid, mayStay };
    const target = { view, clientMsgNo, fromIndex, viewer };
    return feeds.open((sink) => followers.follow(target, sink), mayStay);
  }

  return {
    method: "GET",
    path: STREAM_PATH,
    access: STREAM_ACCESS,
    admit: admission.admit,
    headers: STREAM_HEADERS,
    tag: "streams",
    summary:
      "Tells how a stream stands, or follows it by server-sent events; also for viewers with a token of their own",
    body: undefined,
    query: streamQuery,
    success: {
      description: "How it stands",
      body: streamBody,
      eventStream:
        "Events start, content, tool and end from the index asked for, live until the end; each id is the index behind the event",
      nothing: "Following: it is over, and all of it was before the index asked for",
    },
    errors: ["bad_id", "stream_unknown", "not_in_channel", "rate_limited"],
    run(request, guard) {
      const asked = read(request);
      if ("refused" in asked) return asked.refused;
      const mayStay = () => admission.stillAdmits(request, guard);
      return answer(asked.value, mayStay);
    },
  };
}

/** A stream as history shows it with its message. */
export function streamJson(stream: StreamSnapshot) {
  return {
    state: stream.state,
    text: stream.text,
    next_index: stream.nextIndex,
    start_data: stream.startData,
    end_data: stream.endData ?? null,
    events: stream.notes.map(noteJson),
  };
}

function streamReplyJson(stream: StreamSnapshot) {
  return {
    ...streamJson(stream),
    client_msg_no: stream.clientMsgNo,
    from_uid: stream.fromUid,
    message_id: stream.messageId,
    message_seq: stream.messageSeq,
  };
}

function noteJson(note: StreamNote) {
  return {
    index: note.index,
    text_offset: note.textOffset,
    id: note.eventId,
    type: note.type,
    data: note.data,
    timestamp: note.timestampMs,
  };
}
