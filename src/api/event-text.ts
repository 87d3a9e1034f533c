// Events of a stream as server-sent events [WHATWG HTML: Server-sent events]. The id is the index behind the event: what a reader that comes
// back names in Last-Event-ID is where it goes on.

import {
  type ChannelEvent,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
} from "../broker/model.ts";

/** A comment: says nothing, keeps what lies between awake. */
export const COMMENT = ":\n\n";

/** How long a reader waits before it comes back, in milliseconds. */
export function retryText(ms: number): string {
  return `retry: ${ms}\n\n`;
}

/** Writes events; one that goes to many readers in a row is written once. */
export function createEventText(): (event: ChannelEvent) => string {
  let lastEvent: ChannelEvent | undefined;
  let lastText = "";
  return (event) => {
    if (event !== lastEvent) {
      lastEvent = event;
      lastText = eventText(event);
    }
    return lastText;
  };
}

/** JSON has no line break in it, so one `data` line holds it. */
function eventText({ eventId, type, data, stream, ...rest }: ChannelEvent) {
  if (stream === undefined) return "";
  const body = {
    index: stream.index,
    next_index: stream.nextIndex,
    text_offset: stream.textOffset,
    id: eventId,
    type,
    data,
    timestamp: rest.timestampMs,
    state: stream.state,
  };
  return `id: ${stream.nextIndex}\nevent: ${nameOf(type)}\ndata: ${JSON.stringify(body)}\n\n`;
}

function nameOf(type: string): "start" | "content" | "end" | "tool" {
  switch (type) {
    case STREAM_START:
      return "start";
    case STREAM_CONTENT:
      return "content";
    case STREAM_END:
      return "end";
    default:
      return "tool";
  }
}
