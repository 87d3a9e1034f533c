// Converts a stream of `/message/event` to WuKongIM's format: its events for clients, and the state
// of its lane for backends. In WuKongIM, a lane is one of several texts of a message (`event_key`).
// Jindou has only the lane `main`. Pure.

import {
  type ChannelEvent,
  type Message,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  type StreamSnapshot,
  type StreamState,
} from "../../broker/model.ts";
import { type EventFields, MESSAGE_START_ID, readEventId } from "./event-ids.ts";
import { SETTINGS } from "./wkproto/packets.ts";

export const MAIN_LANE = "main";
/** Lane of `stream.finish`, which completes the whole message. */
export const FINISH_LANE = "__finish__";

export const TYPES = {
  open: "stream.open",
  delta: "stream.delta",
  snapshot: "stream.snapshot",
  close: "stream.close",
  finish: "stream.finish",
  cancel: "stream.cancel",
  error: "stream.error",
} as const;

type LaneStatus = "open" | "closed" | "error" | "cancelled";

/** Status of the lane after an event, by the type of the event. */
export const STATUSES: ReadonlyMap<string, LaneStatus> = new Map<string, LaneStatus>([
  [TYPES.open, "open"],
  [TYPES.delta, "open"],
  [TYPES.snapshot, "open"],
  [TYPES.close, "closed"],
  [TYPES.finish, "closed"],
  [TYPES.cancel, "cancelled"],
  [TYPES.error, "error"],
]);

/**
 * Seqs of the two stored events of a lane that has ended. Events of an open lane have the seq 0.
 */
export const END_SEQ = 1;
export const FINISH_SEQ = 2;

/** An event in the form that clients of WuKongIM receive. */
export interface ClientEvent {
  readonly id: string;
  readonly type: string;
  readonly timestampMs: number;
  readonly data: string;
}

/** Fields of an event that WuKongIM puts into the data of the event. */
interface LaneEvent {
  readonly clientMsgNo: string;
  readonly channel: ChannelEvent["channel"];
  readonly fromUid: string;
  readonly messageId: number;
  readonly lane: string;
  readonly seq: number;
  readonly status: LaneStatus;
  readonly visibility: string;
  /** Omitted from the event's data if `undefined`. */
  readonly payload: unknown;
}

export function isMessageStream({ startId }: Pick<StreamSnapshot, "startId">): boolean {
  return startId === MESSAGE_START_ID;
}

/**
 * Returns the stream of an imported message in the form of a closed stream of `/message/event`,
 * `undefined` if the message was not a stream. The import has put the text into the payload.
 */
export function importedStream(message: Message): StreamSnapshot | undefined {
  const { sourceId, passthrough, payload } = message;
  if (sourceId === undefined || ((passthrough?.setting ?? 0) & SETTINGS.stream) === 0)
    return undefined;
  const text = contentOf(payload);
  if (text === undefined) return undefined;
  const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = message;
  return {
    ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq, text },
    ...{ state: "closed", nextIndex: 0, notes: [] },
    ...{ startData: "", startId: MESSAGE_START_ID, endData: "" },
  };
}

function contentOf(payload: Uint8Array): string | undefined {
  try {
    const { content } = Object(JSON.parse(Buffer.from(payload).toString()));
    return typeof content === "string" ? content : undefined;
  } catch {
    return undefined;
  }
}

export function laneEventData(event: LaneEvent): string {
  const { clientMsgNo, channel, fromUid, messageId, lane, seq, status } = event;
  return JSON.stringify({
    client_msg_no: clientMsgNo,
    channel_id: channel.id,
    channel_type: channel.type,
    from_uid: fromUid,
    message_id: messageId,
    event_key: lane,
    msg_event_seq: seq,
    stream_status: status,
    ...(event.visibility !== "" && { visibility: event.visibility }),
    ...(event.payload !== undefined && { payload: event.payload }),
  });
}

/**
 * Returns the event in the form in which WuKongIM pushes it. Returns `undefined` unless the event
 * is text or the end of a stream of `/message/event`.
 */
export function laneClientEvent(event: ChannelEvent): ClientEvent | undefined {
  const { type, stream, start, eventId, timestampMs, data } = event;
  if (stream === undefined || (type !== STREAM_CONTENT && type !== STREAM_END)) return undefined;
  const fields =
    readEventId(eventId) ??
    (start !== undefined && isMessageStream(start)
      ? unnamedFields(type === STREAM_END ? stream.state : "active", eventId, start.messageId)
      : undefined);
  if (fields === undefined) return undefined;
  const payload = type === STREAM_END ? endPayload(data, stream.state) : textPayload(fields, data);
  return clientEventOf(event, fields, { payload, timestampMs });
}

/**
 * Returns the events for a client that joins late: the text so far, and the end if the stream has
 * ended.
 */
export function laneSnapshotEvents(snapshot: StreamSnapshot): readonly ClientEvent[] {
  const { clientMsgNo, messageId, text, state } = snapshot;
  const timestampMs = messageTimeMs(messageId);
  const events: ClientEvent[] = [];
  if (text !== "") {
    const fields = { ...unnamedFields("active", clientMsgNo, messageId), type: TYPES.snapshot };
    const payload = textPayload(fields, text);
    events.push(clientEventOf(snapshot, fields, { payload, timestampMs }));
  }
  if (state !== "active") {
    const { fields, payload } = endOf(snapshot);
    const endedMs = fields.occurredAtMs || timestampMs;
    events.push(clientEventOf(snapshot, fields, { payload, timestampMs: endedMs }));
  }
  return events;
}

function clientEventOf(
  { clientMsgNo, channel, fromUid }: Pick<LaneEvent, "clientMsgNo" | "channel" | "fromUid">,
  { type, visibility, messageId, id }: EventFields,
  { payload, timestampMs }: { readonly payload: unknown; readonly timestampMs: number },
): ClientEvent {
  const kind = type.toLowerCase();
  const status = STATUSES.get(kind) ?? "open";
  const data = laneEventData({
    ...{ clientMsgNo, channel, fromUid, messageId, visibility, status, payload },
    lane: kind === TYPES.finish ? FINISH_LANE : MAIN_LANE,
    seq: status === "open" ? 0 : END_SEQ,
  });
  return { id, type, timestampMs, data };
}

/** Types of events that no producer sent, by the state of the stream after the event. */
const STATE_TYPES: Readonly<Record<StreamState, string>> = {
  active: TYPES.delta,
  closed: TYPES.close,
  cancelled: TYPES.cancel,
  interrupted: TYPES.error,
};

function unnamedFields(state: StreamState, id: string, messageId: number): EventFields {
  return { type: STATE_TYPES[state], visibility: "", messageId, occurredAtMs: 0, id };
}

function textPayload({ type }: EventFields, text: string) {
  return type.toLowerCase() === TYPES.snapshot
    ? { kind: "text", text }
    : { kind: "text", delta: text };
}

function endPayload(data: string, state: StreamState): unknown {
  if (data === "") return state === "interrupted" ? { error: "interrupted" } : undefined;
  try {
    return JSON.parse(data);
  } catch {
    return data;
  }
}

function endOf({ state, endId = "", endData = "", clientMsgNo, messageId }: StreamSnapshot) {
  const fields = readEventId(endId) ?? unnamedFields(state, clientMsgNo, messageId);
  return { fields, payload: endPayload(endData, state) };
}

// --- State for backends --------------------------------------------------------------------------

/** Returns `end`, `end_reason` and `error` of a message, without values that are 0 or empty. */
export function laneEnding(stream: StreamSnapshot) {
  if (stream.state === "active") return {};
  return { end: 1, ...reasonOf(endOf(stream).payload) };
}

function reasonOf(payload: unknown) {
  const { end_reason: reason, error } = isRecord(payload) ? payload : {};
  return {
    ...(Number.isSafeInteger(reason) && reason !== 0 && { end_reason: Number(reason) }),
    ...(typeof error === "string" && error !== "" && { error }),
  };
}

/**
 * Returns `event_meta` and `event_sync_hint` of a message. Returns no fields for a lane without
 * events.
 */
export function laneMeta(stream: StreamSnapshot, hasText: boolean) {
  const { text, state, clientMsgNo } = stream;
  const isOpen = state === "active";
  if (isOpen && text === "") return {};
  const seqs = isOpen ? {} : { event_version: END_SEQ, last_msg_event_seq: END_SEQ };
  const lane = {
    event_key: MAIN_LANE,
    status: statusOf(stream),
    ...(!isOpen && { last_msg_event_seq: END_SEQ }),
    ...(hasText && text !== "" && { snapshot: { kind: "text", text } }),
    ...(!isOpen && reasonOf(endOf(stream).payload)),
  };
  return {
    event_meta: {
      has_events: true,
      completed: !isOpen,
      ...seqs,
      event_count: 1,
      ...(isOpen && { open_event_count: 1 }),
      events: [lane],
    },
    event_sync_hint: { client_msg_no: clientMsgNo, from_msg_event_seq: 0 },
  };
}

export function statusOf(stream: StreamSnapshot): LaneStatus {
  if (stream.state === "active") return "open";
  return STATUSES.get(endOf(stream).fields.type.toLowerCase()) ?? "closed";
}

/**
 * Returns the stored events of a stream: an empty list while it is open, later its end and its
 * completion.
 */
export function storedEvents(stream: StreamSnapshot) {
  if (stream.state === "active") return [];
  const { fields, payload } = endOf(stream);
  const { id, visibility } = fields;
  const type = fields.type.toLowerCase();
  const isFinish = type === TYPES.finish;
  const snapshot = stream.text === "" ? {} : { kind: "text", text: stream.text };
  const common = {
    event_id: id,
    visibility,
    occurred_at: fields.occurredAtMs || messageTimeMs(stream.messageId),
  };
  const endFields = isRecord(payload) ? payload : {};
  return [
    {
      msg_event_seq: END_SEQ,
      ...common,
      event_key: MAIN_LANE,
      event_type: isFinish ? TYPES.close : type,
      payload: { ...(isFinish ? {} : endFields), ...snapshot },
    },
    {
      msg_event_seq: FINISH_SEQ,
      ...common,
      event_key: FINISH_LANE,
      event_type: TYPES.finish,
      payload: isFinish ? endFields : {},
    },
  ];
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
