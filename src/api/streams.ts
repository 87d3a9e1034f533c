// The route that reads a stream: its current state, or its events until the end. Besides this
// route, the client listener serves only the Durable Streams routes.

import { type StreamNote, type StreamSnapshot, streamLogPath } from "../broker/model.ts";
import type { StreamFollowers } from "../broker/stream-followers.ts";
import type { Streams } from "../broker/streams.ts";
import type { MayStay } from "./feed-wheel.ts";
import { FEED_HEAD, Feeds } from "./feeds.ts";
import { jsonReply, NOTHING_REPLY } from "./reply.ts";
import { streamBody } from "./reply-schemas.ts";
import type { ApiRoute, RouteReply } from "./route.ts";
import {
  type Audience,
  createStreamReader,
  STREAM_HEADERS,
  STREAM_PATH,
  type StreamRequest,
  streamQuery,
} from "./stream-request.ts";
import { type AdmissionPorts, createStreamAdmission, STREAM_ACCESS } from "./viewers.ts";

export interface StreamRoutePorts extends AdmissionPorts {
  readonly streams: Pick<Streams, "read">;
  readonly followers: Pick<StreamFollowers, "follow">;
  /**
   * Interval in milliseconds between two visits to a feed (see `FeedWheel`). The default is 15,000.
   */
  readonly keepAliveMs?: number;
}

const NOTE_OVERHEAD_BYTES = 200;

export function createStreamRoute(ports: StreamRoutePorts, audience: Audience): ApiRoute {
  const { streams, followers, viewers } = ports;
  const read = createStreamReader(audience);
  const admission = createStreamAdmission(ports, audience);
  const feeds = new Feeds(ports.keepAliveMs);

  async function reply(
    method: string,
    target: StreamRequest,
    mayStay: MayStay,
  ): Promise<RouteReply> {
    const { channel, uid, clientMsgNo, fromIndex } = target;
    const view = { channel, uid };
    const charge = target.viewer && viewers.beginRead(target.viewer.uid);
    let bytes = 0;
    try {
      const stream = await streams.read(view, clientMsgNo);
      if (!target.follows) {
        const json = JSON.stringify(streamReplyJson(stream));
        bytes = json.length;
        return jsonReply(json);
      }
      bytes = sizeOf(stream);
      // A browser's EventSource reconnects when the reply ends, unless the status is 204.
      if (stream.state !== "active" && fromIndex === stream.nextIndex) return NOTHING_REPLY;
      if (method === "HEAD") return FEED_HEAD;
      const viewer = target.viewer && { uid: target.viewer.uid, mayStay };
      const subscription = { view, clientMsgNo, fromIndex, viewer };
      return await feeds.open((sink) => followers.follow(subscription, sink), mayStay);
    } finally {
      charge?.(bytes);
    }
  }

  return {
    method: "GET",
    path: STREAM_PATH,
    operation: "readStream",
    access: STREAM_ACCESS,
    alsoAccepts: ["deviceToken"],
    admit: admission.admit,
    headers: STREAM_HEADERS,
    tag: "streams",
    summary:
      "Returns the state of a stream, or follows it with server-sent events. Viewers can call it with a client token",
    body: undefined,
    query: streamQuery,
    success: {
      description: "State of the stream",
      body: streamBody,
      eventStream:
        "`start`, `content`, `tool` and `end` events, from the requested index until the end of the stream. The id of an event is the index of the next event",
      nothing:
        "The call follows a stream that has ended and has no event at or after the requested index",
    },
    errors: [
      "bad_id",
      "stream_unknown",
      "not_in_channel",
      "token_expired",
      "banned",
      "rate_limited",
    ],
    run(request, guard) {
      const result = read(request);
      if ("refusal" in result) return result.refusal;
      const mayStay = () => admission.stillAdmits(request, guard);
      return reply(request.method, result.value, mayStay);
    },
  };
}

function sizeOf({ text, notes }: StreamSnapshot): number {
  let bytes = text.length;
  for (const { data } of notes) bytes += data.length + NOTE_OVERHEAD_BYTES;
  return bytes;
}

/** Returns a stream as JSON, in the same form as in the history. */
export function streamJson(stream: StreamSnapshot) {
  return {
    state: stream.state,
    text: stream.text,
    next_index: stream.nextIndex,
    start_data: stream.startData,
    end_data: stream.endData ?? null,
    events: stream.notes.map(noteJson),
    ...(stream.truncated && { truncated: 1 }),
    log: streamLogPath(stream.key, stream.clientMsgNo),
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
