// Converts a stream of `/message/event` to WuKongIM's format: the stream's events for clients, and
// the state of its lane for backends. In WuKongIM, a message can have several texts, called lanes
// (`event_key`). Jindou has only the `main` lane. Contains only pure functions.

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

/** Lane status after an event, by event type. */
export const STATUSES: ReadonlyMap<string, LaneStatus> = new Map<string, LaneStatus>([
  [TYPES.open, "open"],
  [TYPES.delta, "open"],
  [TYPES.snapshot, "open"],
  [TYPES.close, "closed"],
  [TYPES.finish, "closed"],
  [TYPES.cancel, "cancelled"],
  [TYPES.error, "error"],
]);

/** Seqs of the two stored events of a stream that has ended. Events of an open lane have seq 0. */
export const END_SEQ = 1;
export const FINISH_SEQ = 2;

/** An event in the form that clients of WuKongIM receive. */
export interface ClientEvent {
  readonly id: string;
  readonly type: string;
  readonly timestampMs: number;
  readonly data: string;
}

/** Fields of an event that WuKongIM puts into the event's data. */
interface LaneEvent {
  readonly clientMsgNo: string;
  readonly channel: ChannelEvent["channel"];
  readonly fromUid: string;
  readonly messageId: number;
  readonly lane: string;
  readonly seq: number;
  readonly status: LaneStatus;
  readonly visibility: string;
  /**
   * JSON text that is copied into the event's data. If it is `undefined`, the data has no payload.
   */
  readonly payload: string | undefined;
}

export function isMessageStream({ startId }: Pick<StreamSnapshot, "startId">): boolean {
  return startId === MESSAGE_START_ID;
}

/**
 * Returns the stream of an imported message as if `/message/event` had written and closed it, or
 * `undefined` if the message had no stream with text. The import has put the stream's text into the
 * payload.
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
  const { clientMsgNo, channel, fromUid, messageId, lane, seq, status, payload } = event;
  const fields = {
    client_msg_no: clientMsgNo,
    channel_id: channel.id,
    channel_type: channel.type,
    from_uid: fromUid,
    message_id: messageId,
    event_key: lane,
    msg_event_seq: seq,
    stream_status: status,
    ...(event.visibility !== "" && { visibility: event.visibility }),
  };
  return payload === undefined ? JSON.stringify(fields) : withPayload(fields, payload);
}

/** Returns the fields and the payload as JSON. The payload's text is not changed. */
function withPayload(fields: object, payload: string): string {
  return `${JSON.stringify(fields).slice(0, -1)},"payload":${payload}}`;
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
  const payload =
    type === STREAM_END ? endPayload(data, stream.state)?.text : textPayload(fields, data);
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
    events.push(clientEventOf(snapshot, fields, { payload: payload?.text, timestampMs: endedMs }));
  }
  return events;
}

function clientEventOf(
  { clientMsgNo, channel, fromUid }: Pick<LaneEvent, "clientMsgNo" | "channel" | "fromUid">,
  { type, visibility, messageId, id }: EventFields,
  { payload, timestampMs }: Pick<LaneEvent, "payload"> & Pick<ClientEvent, "timestampMs">,
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

/** Types of events that did not come from `/message/event`, by the stream's state afterwards. */
const STATE_TYPES: Readonly<Record<StreamState, string>> = {
  active: TYPES.delta,
  closed: TYPES.close,
  cancelled: TYPES.cancel,
  interrupted: TYPES.error,
};

function unnamedFields(state: StreamState, id: string, messageId: number): EventFields {
  return { type: STATE_TYPES[state], visibility: "", messageId, occurredAtMs: 0, id };
}

function textPayload({ type }: EventFields, text: string): string {
  const isSnapshot = type.toLowerCase() === TYPES.snapshot;
  return JSON.stringify({ kind: "text", ...(isSnapshot ? { text } : { delta: text }) });
}

/** A JSON text and the value that was parsed from it. */
interface JsonText {
  readonly text: string;
  readonly value: unknown;
}

function endPayload(data: string, state: StreamState): JsonText | undefined {
  if (data === "") return state === "interrupted" ? INTERRUPTED : undefined;
  try {
    return { text: data, value: JSON.parse(data) };
  } catch {
    return jsonTextOf(data); // the stream was ended with `/event`
  }
}

function jsonTextOf(value: unknown): JsonText {
  return { text: JSON.stringify(value), value };
}

const INTERRUPTED = jsonTextOf({ error: "interrupted" });

function endOf({ state, endId = "", endData = "", clientMsgNo, messageId }: StreamSnapshot) {
  const fields = readEventId(endId) ?? unnamedFields(state, clientMsgNo, messageId);
  return { fields, payload: endPayload(endData, state) };
}

// --- State for backends --------------------------------------------------------------------------

/** Returns a message's `end`, `end_reason` and `error`. Omits values that are 0 or empty. */
export function laneEnding(stream: StreamSnapshot) {
  if (stream.state === "active") return {};
  return { end: 1, ...reasonOf(endOf(stream).payload) };
}

function reasonOf(payload: JsonText | undefined) {
  const { end_reason: reason, error } = isRecord(payload?.value) ? payload.value : {};
  return {
    ...(Number.isSafeInteger(reason) && reason !== 0 && { end_reason: Number(reason) }),
    ...(typeof error === "string" && error !== "" && { error }),
  };
}

/**
 * Returns a message's `event_meta` and `event_sync_hint`. Returns no fields for a lane without
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

interface StoredEvent {
  readonly seq: number;
  readonly lane: string;
  /** The event as `/message/eventsync` returns it. */
  readonly json: string;
}

/**
 * Returns the two stored events of a stream that has ended: the end of the `main` lane, and the
 * completion of the message. Returns an empty list while the stream is open.
 */
export function storedEvents(stream: StreamSnapshot): readonly StoredEvent[] {
  if (stream.state === "active") return [];
  const { fields, payload } = endOf(stream);
  const { id, visibility } = fields;
  const type = fields.type.toLowerCase();
  const isFinish = type === TYPES.finish;
  const common = {
    event_id: id,
    visibility,
    occurred_at: fields.occurredAtMs || messageTimeMs(stream.messageId),
  };
  const endFields = isRecord(payload?.value) ? payload : EMPTY;
  const toStored = (seq: number, lane: string, eventType: string, object: string) => {
    const fields = { msg_event_seq: seq, ...common, event_key: lane, event_type: eventType };
    return { seq, lane, json: withPayload(fields, object) };
  };
  const [ofEnd, ofFinish] = isFinish ? [EMPTY, endFields] : [endFields, EMPTY];
  return [
    toStored(END_SEQ, MAIN_LANE, isFinish ? TYPES.close : type, withText(ofEnd, stream.text)),
    toStored(FINISH_SEQ, FINISH_LANE, TYPES.finish, ofFinish.text),
  ];
}

const EMPTY = jsonTextOf({});

/**
 * Returns the JSON of an object with the stream's text added to it. The added fields replace fields
 * with the same names, because decoders use the last occurrence.
 */
function withText({ text: object, value }: JsonText, text: string): string {
  if (text === "") return object;
  const snapshot = JSON.stringify({ kind: "text", text });
  if (Object.keys(Object(value)).length === 0) return snapshot;
  return `${object.slice(0, object.lastIndexOf("}"))},${snapshot.slice(1)}`;
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
