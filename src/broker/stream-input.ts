// What an event of POST /event must be before anything is asked of the store [spec: Event; decisions: Messages and events]. Pure.

import { BrokerError } from "./errors.ts";
import { assertId, assertLabel } from "./ids.ts";
import {
  type ChannelRef,
  isWellFormed,
  RESERVED_EVENT_PREFIX,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  TOOL_CALL_EVENTS,
} from "./model.ts";

export interface EventInput {
  readonly channel: ChannelRef;
  /** Empty: the system. */
  readonly fromUid: string;
  /** Names the stream or message the event belongs to. */
  readonly clientMsgNo: string;
  /** The producer's own id of the event: the same one again is a retry. Undefined: the server makes one. */
  readonly eventId: string | undefined;
  readonly type: string;
  readonly data: string;
  /** Unix milliseconds; undefined: now. */
  readonly timestampMs: number | undefined;
  /** A start ends the channel's active stream first. */
  readonly force: boolean;
}

/** What the event has to do with streams. */
export type EventClass = "stream" | "tool_call" | "custom";

/** Throws `event_type_empty`, `bad_request`, `bad_id`, `too_large`. */
export function classify(input: EventInput, maxDataBytes: number): EventClass {
  const { type, data } = input;
  if (type === "") throw new BrokerError("event_type_empty");
  const found = classOf(type);
  if (found === undefined) throw refused("event.type", "a reserved type");
  assertStreamName(input.channel, input.clientMsgNo);
  if (input.fromUid !== "") assertId(input.fromUid, "from_uid");
  if (input.eventId !== undefined) assertLabel(input.eventId, "event.id");
  if (found === "custom") assertLabel(type, "event.type");
  if (!isWellFormed(data))
    throw refused("event.data", "Unicode with half of a character");
  if (Buffer.byteLength(data) > maxDataBytes)
    throw new BrokerError("too_large", {
      message: `event.data exceeds ${maxDataBytes} bytes`,
      details: [{ path: "event.data", message: "too large" }],
    });
  return found;
}

/** What names a stream. Throws `bad_id`, `bad_request`. */
export function assertStreamName(
  channel: ChannelRef,
  clientMsgNo: string,
): void {
  assertId(channel.id, "channel_id");
  assertLabel(clientMsgNo, "client_msg_no");
}

function classOf(type: string): EventClass | undefined {
  if (type === STREAM_CONTENT || type === STREAM_START || type === STREAM_END)
    return "stream";
  if (TOOL_CALL_EVENTS.has(type)) return "tool_call";
  return type.startsWith(RESERVED_EVENT_PREFIX) ? undefined : "custom";
}

function refused(path: string, message: string): BrokerError {
  return new BrokerError("bad_request", {
    message: `${path} is ${message}`,
    details: [{ path, message: `is ${message}` }],
  });
}
