// Rows of the route table for backends that stream text as in WuKongIM 2.2.4 and later. These rows
// exist only in the `wukongim` dialect. Keeps no state.

import { type ApiRoute, postRoute } from "../../api/route.ts";
import { SEND_REFUSALS } from "../../api/send-refusals.ts";
import {
  eventPageBody,
  eventSyncBody,
  laneBody,
  messageEventBody,
} from "./message-event-bodies.ts";
import type { MessageEventCalls } from "./message-events.ts";

export function messageEventRows(events: MessageEventCalls): readonly ApiRoute[] {
  return [
    postRoute({
      path: "/message/event",
      operation: "addMessageEvent",
      access: ["events:write"],
      tag: "streams",
      summary: "Adds text to a stream that was begun with is_stream, or ends it",
      body: messageEventBody,
      success: { description: "State of the stream's lane", body: laneBody },
      errors: [
        "bad_request",
        "bad_id",
        "too_large",
        "stream_not_found",
        "stream_closed",
        ...SEND_REFUSALS,
      ],
      forbidding: ["channel_not_found"],
      handle: events.append,
    }),
    postRoute({
      path: "/message/eventsync",
      operation: "listMessageEvents",
      access: ["messages:write"],
      tag: "streams",
      summary: "Lists the stored events of a stream. The list is empty while the stream is active",
      body: eventSyncBody,
      success: { description: "Events", body: eventPageBody },
      errors: ["bad_id"],
      handle: events.sync,
    }),
  ];
}
