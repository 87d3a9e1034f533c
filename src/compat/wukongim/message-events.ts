// Calls of WuKongIM 2.2.4 and later that stream text. `/message/send` with `is_stream` begins a
// stream, `/message/event` adds text to the stream or ends it, and `/message/eventsync` reads its
// stored events. Owns the senders and message ids of recently used streams, so that events may omit
// `from_uid`.

import { randomUUID } from "node:crypto";
import type { Static } from "typebox";
import { textOf } from "../../api/body.ts";
import { MAX_TIME_MS } from "../../api/fields.ts";
import { decodeBase64, notBase64 } from "../../api/messages.ts";
import { jsonReply } from "../../api/reply.ts";
import { type ExplainRefusal, hasCode } from "../../api/send-refusals.ts";
import { BrokerError } from "../../broker/errors.ts";
import {
  type ChannelRef,
  PERSON_CHANNEL,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
  SYSTEM_UID,
} from "../../broker/model.ts";
import type { EventInput, Streams } from "../../broker/streams.ts";
import { BoundedMap } from "../../lib/bounded-map.ts";
import { fieldText } from "../../lib/json-field.ts";
import type { HttpReply, HttpRequest } from "../../transport/types.ts";
import {
  type EventFields,
  MAX_EVENT_ID_LENGTH,
  MESSAGE_START_ID,
  writeEventId,
} from "./event-ids.ts";
import { type eventSyncBody, type messageEventBody, SYNC_LIMIT } from "./message-event-bodies.ts";
import { usersOf } from "./stored-id.ts";
import {
  END_SEQ,
  FINISH_LANE,
  FINISH_SEQ,
  isMessageStream,
  isRecord,
  laneEventData,
  MAIN_LANE,
  STATUSES,
  statusOf,
  storedEvents,
  TYPES,
} from "./stream-lane.ts";

const MAX_REMEMBERED_STREAMS = 10_000;
const MAX_PAYLOAD_DEPTH = 32;

type EventBody = Static<typeof messageEventBody>;
type SyncBody = Static<typeof eventSyncBody>;

interface StreamMessage {
  readonly payload: string;
  readonly from_uid: string;
  readonly channel_id: string;
  readonly channel_type: ChannelRef["type"];
  readonly client_msg_no?: string;
  readonly header?: { readonly no_persist?: number; readonly sync_once?: number };
  readonly expire?: number;
  readonly subscribers?: readonly string[];
}

/** Sender and id of a stream's message. */
interface Origin {
  readonly fromUid: string;
  readonly messageId: number;
}

interface MessageEventPorts {
  readonly streams: Pick<Streams, "post" | "read">;
  readonly explain: ExplainRefusal;
}

export interface MessageEventCalls {
  /** Sends a message, to which `append` later adds the text. Returns the ids of the message. */
  begin(message: StreamMessage): Promise<HttpReply>;
  /** Adds an event to a stream. The JSON text of its payload is copied from the request. */
  append(body: EventBody, request: HttpRequest): Promise<HttpReply>;
  sync(body: SyncBody): Promise<HttpReply>;
}

export function createMessageEventCalls({
  streams,
  explain,
}: MessageEventPorts): MessageEventCalls {
  const origins = new BoundedMap<string, Origin>(MAX_REMEMBERED_STREAMS);

  async function begin(message: StreamMessage): Promise<HttpReply> {
    assertMayStream(message);
    const payload = decodeBase64(message.payload);
    if (payload === undefined) return notBase64();
    const { from_uid: sender, channel_id: id, channel_type: type } = message;
    const channel = { id, type };
    const clientMsgNo = message.client_msg_no || randomUUID();
    try {
      await streams.post({
        ...{ channel, clientMsgNo, fromUid: sender, payload, expireS: message.expire },
        ...{ type: STREAM_START, data: "", eventId: MESSAGE_START_ID },
        ...{ timestampMs: undefined, force: false },
      });
    } catch (error) {
      // A repeated call for a stream that has ended returns the ids of the stream's message.
      if (!hasCode(error, "stream_closed")) return explain(error, channel);
    }
    const stream = await streams.read(viewOf(channel, sender), clientMsgNo);
    if (!isMessageStream(stream)) throw beganElsewhere();
    remember(channel, stream);
    const { messageId, messageSeq } = stream;
    return jsonReply(
      JSON.stringify({
        message_id: messageId,
        message_seq: messageSeq,
        client_msg_no: clientMsgNo,
      }),
    );
  }

  async function append(body: EventBody, request: HttpRequest): Promise<HttpReply> {
    const channel = { id: body.channel_id, type: body.channel_type };
    const event = eventOf(body, request);
    const origin = await originOf(channel, body);
    const target = { channel, clientMsgNo: body.client_msg_no, ...origin };
    try {
      const { status, seq } = await apply(target, event);
      return jsonReply(
        JSON.stringify({
          status: 200,
          data: {
            client_msg_no: body.client_msg_no,
            event_key: event.lane,
            event_id: body.event_id,
            msg_event_seq: seq,
            stream_status: status,
            channel_id: channel.id,
            channel_type: channel.type,
            from_uid: origin.fromUid,
          },
        }),
      );
    } catch (error) {
      return explain(error, channel);
    }
  }

  async function apply(target: Target, event: EventOfLane): Promise<Applied> {
    const { channel, fromUid, clientMsgNo, messageId } = target;
    const id = writeEventId({ ...event, messageId, occurredAtMs: 0 });
    const input = {
      ...{ channel, fromUid, clientMsgNo, eventId: id, force: false },
      timestampMs: event.occurredAtMs || undefined,
    };
    if (event.kind === TYPES.delta) return addText(input, event.text);
    let stream = await read(channel, fromUid, clientMsgNo);
    if (event.kind === TYPES.snapshot) {
      if (stream.text === "") return addText(input, event.text);
      if (stream.text !== event.text) throw snapshotAfterText();
      return { status: statusOf(stream), seq: seqOf(stream, event) }; // a retry
    }
    const isEnd = event.kind !== TYPES.open;
    const endId = writeEventId({ ...event, messageId });
    const { payload: endData = "" } = event;
    if (isEnd && stream.state === "active") {
      const isCancel = event.kind === TYPES.cancel;
      await streams.post({ ...input, eventId: endId, type: STREAM_END, data: endData, isCancel });
      // Another event, or a viewer, may have ended the stream first.
      stream = await read(channel, fromUid, clientMsgNo);
      if (stream.endId === endId && stream.endData === endData)
        return { status: statusOf(stream), seq: END_SEQ };
    }
    const applied = { status: statusOf(stream), seq: seqOf(stream, event) };
    if (stream.endId === endId && stream.endData === endData) return applied; // a retry
    const data = laneEventData({ ...target, ...event, ...applied });
    await streams.post({ ...input, eventId: event.id, type: event.type, data });
    return applied;
  }

  async function addText(input: Omit<EventInput, "type" | "data">, data: string): Promise<Applied> {
    const { state } = await streams.post({ ...input, type: STREAM_CONTENT, data });
    if (state === "active") return { status: "open", seq: 0 };
    // A viewer has cancelled the stream, or the event is a retry after the end.
    const stream = await read(input.channel, input.fromUid, input.clientMsgNo);
    return { status: statusOf(stream), seq: END_SEQ };
  }

  async function originOf(channel: ChannelRef, body: EventBody): Promise<Origin> {
    const { from_uid: sender = "", client_msg_no: clientMsgNo } = body;
    const origin = origins.get(originKey(channel, clientMsgNo));
    const isSame = sender === "" || sender === origin?.fromUid || channel.type !== PERSON_CHANNEL;
    if (origin !== undefined && isSame) return { ...origin, fromUid: sender || origin.fromUid };
    const stream = await read(channel, sender || SYSTEM_UID, clientMsgNo);
    remember(channel, stream);
    return { messageId: stream.messageId, fromUid: sender || stream.fromUid };
  }

  async function read(
    channel: ChannelRef,
    uid: string,
    clientMsgNo: string,
  ): Promise<StreamSnapshot> {
    try {
      const stream = await streams.read(viewOf(channel, uid), clientMsgNo);
      if (!isMessageStream(stream)) throw beganElsewhere();
      return stream;
    } catch (error) {
      if (!hasCode(error, "stream_unknown")) throw error;
      throw new BrokerError("stream_not_found", {
        message:
          "Stream does not exist. Send its message with is_stream 1 first, and set from_uid to the sender of that message.",
      });
    }
  }

  function remember(channel: ChannelRef, { fromUid, messageId, clientMsgNo }: StreamSnapshot) {
    origins.renew(originKey(channel, clientMsgNo), { fromUid, messageId });
  }

  async function sync(body: SyncBody): Promise<HttpReply> {
    const { client_msg_no: clientMsgNo, event_key: lane = "", from_msg_event_seq: from = 0 } = body;
    const limit = body.limit || SYNC_LIMIT;
    const events = (await storedOf(body)).filter(
      (event) => event.seq > from && (lane === "" || event.lane === lane),
    );
    const page = events.slice(0, limit);
    const fields = JSON.stringify({
      client_msg_no: clientMsgNo,
      from_msg_event_seq: from,
      next_msg_event_seq: page.at(-1)?.seq ?? from,
      more: events.length > limit ? 1 : 0,
    }).slice(0, -1);
    const list = page.map(({ json }) => json).join(",");
    return jsonReply(
      `{"status":200,"data":${fields},"events":[${list}],"filtered_by_event_key":${JSON.stringify(lane)}}}`,
    );
  }

  async function storedOf(body: SyncBody) {
    try {
      return storedEvents(await streams.read(syncedView(body), body.client_msg_no));
    } catch (error) {
      if (!hasCode(error, "stream_unknown")) throw error;
      return [];
    }
  }

  return { begin, append, sync };
}

interface Target extends Origin {
  readonly channel: ChannelRef;
  readonly clientMsgNo: string;
}

interface Applied {
  readonly status: ReturnType<typeof statusOf>;
  readonly seq: number;
}

/** A valid event of `/message/event`. */
interface EventOfLane extends Omit<EventFields, "messageId"> {
  /** `type` in lower case. */
  readonly kind: string;
  readonly lane: string;
  /** Text of a delta or a snapshot, "" for other events. */
  readonly text: string;
  /** JSON text of the payload as it appeared in the request [decisions: A payload's text]. */
  readonly payload: string | undefined;
}

function eventOf(body: EventBody, request: HttpRequest): EventOfLane {
  const type = body.event_type.trim();
  const kind = type.toLowerCase();
  if (!STATUSES.has(kind))
    throw refused(
      "event_type",
      `must be one of ${[...STATUSES.keys()].join(", ")}. Other events of a message are not supported; send them as custom events with POST /event.`,
    );
  const lane = (body.event_key ?? "").trim();
  const isFinish = kind === TYPES.finish;
  if (!isFinish && lane !== "" && lane !== MAIN_LANE)
    throw refused(
      "event_key",
      `must be ${MAIN_LANE} or empty. A stream has no other lanes; send their events as custom events with POST /event.`,
    );
  // The body's pattern counts code points, but the broker's limit counts UTF-16 code units.
  if (body.event_id.length > MAX_EVENT_ID_LENGTH)
    throw refused("event_id", `must have at most ${MAX_EVENT_ID_LENGTH} characters.`);
  const payload =
    body.payload === undefined ? undefined : fieldText(textOf(request) ?? "", "payload");
  if (payload !== undefined && payload.depth > MAX_PAYLOAD_DEPTH)
    throw refused("payload", `must have at most ${MAX_PAYLOAD_DEPTH} levels of nesting.`);
  return {
    ...{ type, kind, lane: isFinish ? FINISH_LANE : MAIN_LANE },
    ...{ id: body.event_id, visibility: visibilityOf(body), payload: payload?.text },
    occurredAtMs: timeOf(body),
    text: addedTextOf(kind, body.payload),
  };
}

function visibilityOf({ visibility = "" }: EventBody): "" | "public" {
  if (visibility === "" || visibility === "public") return visibility;
  throw refused("visibility", "must be public or empty. All members of the channel get the text.");
}

/**
 * Returns the time of an event, or 0 if the value cannot be a time in milliseconds. The event then
 * gets the time at which it is accepted.
 */
function timeOf({ occurred_at: timeMs = 0 }: EventBody): number {
  return timeMs >= 0 && timeMs <= MAX_TIME_MS ? timeMs : 0;
}

function addedTextOf(kind: string, payload: unknown): string {
  if (kind !== TYPES.delta && kind !== TYPES.snapshot) return "";
  const field = kind === TYPES.delta ? "delta" : "text";
  const added = isRecord(payload) && payload.kind === "text" ? payload[field] : undefined;
  if (typeof added === "string") return added;
  throw refused(
    "payload",
    `of ${kind} must be {"kind":"text","${field}":<text>}. A stream contains only text.`,
  );
}

function seqOf({ state }: StreamSnapshot, { kind }: EventOfLane): number {
  if (state === "active") return 0;
  return kind === TYPES.finish ? FINISH_SEQ : END_SEQ;
}

function assertMayStream({ header, subscribers = [] }: StreamMessage): void {
  const problem = "cannot be combined with is_stream 1. Send a message without it.";
  if (header?.no_persist === 1) throw refused("header.no_persist", problem);
  if (header?.sync_once === 1) throw refused("header.sync_once", problem);
  if (subscribers.length > 0) throw refused("subscribers", problem);
}

function viewOf(channel: ChannelRef, uid: string) {
  return { channel, uid: channel.type === PERSON_CHANNEL ? uid : undefined };
}

function syncedView({ channel_id: id, channel_type: type, from_uid: sender = "" }: SyncBody) {
  const users = type === PERSON_CHANNEL && sender === "" ? usersOf(id) : undefined;
  return users === undefined
    ? viewOf({ id, type }, sender || SYSTEM_UID)
    : viewOf({ id: users.peer, type }, users.uid);
}

function originKey({ id, type }: ChannelRef, clientMsgNo: string): string {
  return `${type}\n${id}\n${clientMsgNo}`;
}

function beganElsewhere(): BrokerError {
  return refused(
    "client_msg_no",
    "belongs to a stream that POST /event began. Add events to that stream with POST /event.",
  );
}

function snapshotAfterText(): BrokerError {
  return refused(
    "event_type",
    "must not be stream.snapshot once the stream has text. Text can only be added; send a stream.delta.",
  );
}

function refused(path: string, problem: string): BrokerError {
  return new BrokerError("bad_request", {
    message: `${path} ${problem}`,
    details: [{ path, message: problem }],
  });
}
