// Sends operations that change streams: builds their arguments, the frames of events, and the
// record of the stream's message. Operations are queued synchronously. `library/streams.lua`
// describes the replies. State: only cached key names.

import { randomBytes } from "node:crypto";
import { BrokerError } from "../../../broker/errors.ts";
import {
  isJsonLog,
  type OpenFrame,
  openEventFrame,
  openTimedFrame,
} from "../../../broker/log-frame.ts";
import {
  isNoteType,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  streamPayload,
} from "../../../broker/model.ts";
import type { StreamAppendDraft, StreamCreationDraft, StreamDraft } from "../../../broker/ports.ts";
import { givenEventId, type StreamEvent } from "../../../broker/stream-event.ts";
import { StreamView, shownBytes } from "../../../broker/stream-fold.ts";
import { eventOfRecord } from "../../../broker/stream-record.ts";
import { encodeExtra, encodeRecord, encodeStreamHead } from "../../../redis/wire.ts";
import { eventMark } from "../../event-ids.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import type { OperationReply, Operations } from "../operations.ts";
import type { RedisStorePorts } from "../ports.ts";
import { checkOf, expiryOf } from "./append-call.ts";
import { ChannelNamesOf } from "./channel-names.ts";
import { endingIndex, withoutTrailer } from "./log-head.ts";

/** Numbers that the Redis function library uses for the kinds of events. */
const START = 1;
const CONTENT = 2;
const NOTE = 3;
const END = 4;
const KINDS = new Map<string, number>([
  [STREAM_START, START],
  [STREAM_CONTENT, CONTENT],
  [STREAM_END, END],
]);
const EVENT_BYTES = 22;
const START_BYTES = 36;
const END_BYTES = 13;
const CREATE_BYTES = 47;
const APPEND_BYTES = 52;
const PART_BYTES = 8;
/** Size that is passed to the library for content that is too large to be shown to viewers. */
const LARGE = 0xffff_ffff;
const VIEWER = -1;
/** Default of `streams.maxDataBytes`. */
const MAX_DATA_BYTES = 65_536;
/** Maximum number of bytes of an event id or type. A frame stores each length in two bytes. */
const MAX_TEXT_BYTES = 65_535;

const NO_TEXT = Buffer.from(streamPayload(""));

type StreamName = Pick<StreamDraft, "key" | "clientMsgNo">;

/**
 * Functions that send operations. `event` may throw `bad_request` or `too_large`. `create` may
 * throw `too_large`.
 */
interface StreamSteps {
  event(draft: StreamDraft): Promise<OperationReply>;
  create(draft: StreamCreationDraft): Promise<OperationReply>;
  append(draft: StreamAppendDraft): Promise<OperationReply>;
  end(name: StreamName, silentSinceMs?: number): Promise<OperationReply>;
}

export function createStreamSteps(
  { link, clock, limits }: Pick<RedisStorePorts, "link" | "clock" | "limits">,
  operations: Operations,
): StreamSteps {
  const names = new ChannelNamesOf(link);
  const viewLimits = {
    maxBytes: limits.maxStreamBytes,
    maxDataBytes: limits.maxStreamDataBytes ?? MAX_DATA_BYTES,
  };

  function start(draft: StreamDraft): Promise<OperationReply> {
    const { key, clientMsgNo, fromUid, eventId = "", expireS = 0 } = draft;
    const { bucket, head, ids, users, appendArgs } = names.get(key);
    const nowMs = clock();
    const expiresMs = expiryOf({ expireS }, nowMs);
    const frame = eventFrame({ ...draft, state: "active" }, nowMs);
    const otherEnd = draft.force ? endFrame(nowMs, "cancelled") : undefined;
    const numbers = Buffer.alloc(START_BYTES);
    numbers[0] = users;
    numbers.set(checkOf(draft.permission ?? "granted"), 1);
    numbers[3] = draft.force ? 1 : 0;
    let at = numbers.writeDoubleBE(ids.bucket, 4);
    at = numbers.writeUInt32BE(snapshotBytes(draft), at);
    at = numbers.writeUInt32BE(frame.crc, at);
    at += randomBytes(4).copy(numbers, at);
    at = numbers.writeUInt32BE(otherEnd?.crc ?? 0, at);
    numbers.writeDoubleBE(expiresMs, at);
    return operations.run(
      { bucket, key: head },
      {
        ...{ name: "stream_start", numbers, order: orderOf(draft) },
        texts: [
          ...[...appendArgs, clientMsgNo, fromUid, givenEventId(eventId), eventMark(draft) ?? ""],
          ...[withoutTrailer(frame), encodeStreamHead(draft), recordOf(draft, nowMs)],
          ...[STREAM_EXTRA, ids.key],
          otherEnd === undefined ? "" : withoutTrailer(otherEnd),
        ],
      },
    );
  }

  /** Returns the frame of the records, and the record sizes that the library needs. */
  function batchOf(
    { key, clientMsgNo, records, contentType = "" }: RecordBatch,
    nowMs: number,
  ): Batch {
    const counts = { bytes: 0, shown: 0, units: 0 };
    if (records.length === 0) return { frame: undefined, parts: "", counts };
    const isJson = isJsonLog(contentType);
    const view = new StreamView({ key, clientMsgNo }, viewLimits, true);
    const parts = Buffer.allocUnsafe(records.length * PART_BYTES);
    for (const [at, record] of records.entries()) {
      const event = eventOfRecord(record, nowMs, isJson);
      const size = sizeOf(view, event);
      const units = event.type === STREAM_CONTENT ? event.data.length : 0;
      parts.writeUInt32BE(size, at * PART_BYTES);
      parts.writeUInt32BE(units, at * PART_BYTES + 4);
      counts.bytes += snapshotBytes(event);
      counts.shown += size;
      counts.units += units;
    }
    const frame = openTimedFrame(records, nowMs, isJson);
    return { frame, parts: records.length === 1 ? "" : parts, counts };
  }

  return {
    async event(draft) {
      const kind = kindOf(draft, limits.maxStreamBytes);
      if (kind === START) return start(draft);
      const { key, clientMsgNo, fromUid, eventId = "", data } = draft;
      const { bucket, head, users, appendArgs } = names.get(key);
      const ending = draft.isCancel ? "cancelled" : "closed";
      const state = kind === END ? ending : "active";
      const frame = eventFrame({ ...draft, state }, clock());
      const numbers = Buffer.alloc(EVENT_BYTES);
      numbers[0] = kind;
      numbers[1] = users;
      numbers.set(checkOf(draft.permission ?? "granted"), 2);
      numbers[4] = kind === END ? endingIndex(ending) : 0;
      numbers[5] = kind === END && data === "" ? 1 : 0;
      numbers.writeUInt32BE(kind === CONTENT ? data.length : 0, 6);
      numbers.writeUInt32BE(snapshotBytes(draft), 10);
      numbers.writeUInt32BE(shownBytes(draft.type, data), 14);
      numbers.writeUInt32BE(frame.crc, 18);
      return operations.run(
        { bucket, key: head },
        {
          ...{ name: "stream_event", numbers, order: orderOf(draft) },
          texts: [
            ...[...appendArgs, clientMsgNo, fromUid, givenEventId(eventId), eventMark(draft) ?? ""],
            withoutTrailer(frame),
          ],
        },
      );
    },

    async create(draft) {
      const { key, clientMsgNo, fromUid, contentType, records, isClosed } = draft;
      if (Buffer.byteLength(clientMsgNo) > MAX_TEXT_BYTES) throw new BrokerError("too_large");
      const { bucket, head, ids, users, appendArgs } = names.get(key);
      const nowMs = clock();
      const start = eventFrame({ ...START_EVENT, state: "active" }, nowMs, true);
      const { frame, parts, counts } = batchOf(draft, nowMs);
      const end = isClosed ? endFrame(nowMs, "closed") : undefined;
      const numbers = Buffer.alloc(CREATE_BYTES);
      numbers[0] = users;
      numbers.set(checkOf(draft.permission), 1);
      let at = numbers.writeDoubleBE(ids.bucket, 3);
      at += randomBytes(4).copy(numbers, at);
      at = numbers.writeUInt32BE(viewLimits.maxDataBytes, at);
      at = numbers.writeUInt32BE(start.crc, at);
      at = numbers.writeUInt32BE(records.length, at);
      at = numbers.writeUInt32BE(frame?.crc ?? 0, at);
      at = numbers.writeDoubleBE(counts.shown, at);
      at = numbers.writeUInt32BE(counts.units, at);
      numbers.writeUInt32BE(end?.crc ?? 0, at);
      return operations.run(
        { bucket, key: head },
        {
          ...{ name: "stream_create", numbers, order: orderOf(draft) },
          texts: [
            ...[...appendArgs, clientMsgNo, fromUid, contentType, withoutTrailer(start)],
            ...[encodeStreamHead(draft), recordOf({ ...draft, payload: undefined }, nowMs)],
            ...[STREAM_EXTRA, ids.key, textOf(frame), parts, textOf(end)],
          ],
        },
      );
    },

    async append(draft) {
      const { key, clientMsgNo, fromUid, contentType, records, producer, order, close } = draft;
      const { bucket, head, users, appendArgs } = names.get(key);
      const nowMs = clock();
      const { frame, parts, counts } = batchOf(draft, nowMs);
      const end = close === undefined ? undefined : endFrame(nowMs, "closed");
      const numbers = Buffer.alloc(APPEND_BYTES);
      numbers[0] = users;
      numbers.set(checkOf(draft.permission), 1);
      let at = numbers.writeUInt32BE(records.length, 3);
      at = numbers.writeUInt32BE(frame?.crc ?? 0, at);
      at = numbers.writeUInt8(order === undefined ? 0 : 1, at);
      at = numbers.writeDoubleBE(producer?.epoch ?? 0, at);
      at = numbers.writeDoubleBE(producer?.number ?? 0, at);
      at = numbers.writeDoubleBE(counts.bytes, at);
      at = numbers.writeDoubleBE(counts.shown, at);
      at = numbers.writeUInt32BE(counts.units, at);
      numbers.writeUInt32BE(end?.crc ?? 0, at);
      return operations.run(
        { bucket, key: head },
        {
          ...{ name: "stream_append", numbers, order: orderOf(draft) },
          texts: [
            ...[...appendArgs, clientMsgNo, fromUid, textOf(frame), parts, contentType ?? ""],
            ...[producer?.id ?? "", order ?? "", textOf(end)],
          ],
        },
      );
    },

    end({ key, clientMsgNo }, silentSinceMs = VIEWER) {
      const { bucket, head, users, appendArgs } = names.get(key);
      const state = silentSinceMs === VIEWER ? "cancelled" : "interrupted";
      const frame = endFrame(clock(), state);
      const numbers = Buffer.alloc(END_BYTES);
      numbers[0] = users;
      numbers.writeDoubleBE(silentSinceMs, 1);
      numbers.writeUInt32BE(frame.crc, 9);
      return operations.run(
        { bucket, key: head },
        {
          ...{ name: "stream_end", numbers, order: orderOf({ key, clientMsgNo }) },
          texts: [...appendArgs, clientMsgNo, withoutTrailer(frame)],
        },
      );
    },
  };
}

type RecordBatch = Pick<StreamAppendDraft, "key" | "clientMsgNo" | "records" | "contentType">;

interface Batch {
  /** `undefined` if there are no records. */
  readonly frame: OpenFrame | undefined;
  /** See `add_event` in `library/streams.lua`. */
  readonly parts: string | Buffer;
  readonly counts: { readonly bytes: number; readonly shown: number; readonly units: number };
}

/** Start event of a stream that is created with the Durable Streams protocol. */
const START_EVENT = { type: STREAM_START, data: "", eventId: undefined, timestampMs: undefined };
const STREAM_EXTRA = encodeExtra({ origin: undefined, recipients: undefined, isStream: true });

function textOf(frame: OpenFrame | undefined): string | Buffer {
  return frame === undefined ? "" : withoutTrailer(frame);
}

function sizeOf(view: StreamView, event: StreamEvent): number {
  return Math.min(view.sizeOf(event), LARGE);
}

function eventFrame(
  event: Pick<StreamDraft, "type" | "data" | "eventId" | "timestampMs"> &
    Pick<StreamEvent, "state">,
  nowMs: number,
  isHidden = false,
): OpenFrame {
  const { type, data, eventId, timestampMs = nowMs, state } = event;
  const isTimed = event.timestampMs !== undefined;
  // Always 0, because only the embedded store uses `detail` (see `StreamEvent`).
  const detail = 0;
  return openEventFrame({ type, data, eventId, timestampMs, isTimed, detail, state, isHidden });
}

/** Returns the frame of an end event that the producer did not send. */
function endFrame(nowMs: number, state: StreamEvent["state"]): OpenFrame {
  const event = { type: STREAM_END, data: "", eventId: undefined, timestampMs: undefined, state };
  return eventFrame(event, nowMs, true);
}

function orderOf({ key, clientMsgNo }: StreamName): string {
  return `${key}\n${clientMsgNo}`;
}

function kindOf(draft: StreamDraft, maxStreamBytes: number): number {
  const { type, data, eventId = "", timestampMs } = draft;
  const kind = isNoteType(type) ? NOTE : KINDS.get(type);
  const isTime = timestampMs === undefined || Number.isFinite(timestampMs);
  if (kind === undefined || !isTime) throw new BrokerError("bad_request");
  const textBytes = Math.max(Buffer.byteLength(type), Buffer.byteLength(eventId));
  if (data.length > maxStreamBytes || textBytes > MAX_TEXT_BYTES)
    throw new BrokerError("too_large");
  return kind;
}

function recordOf(
  draft: Pick<StreamDraft, "channel" | "fromUid" | "clientMsgNo" | "payload" | "expireS">,
  nowMs: number,
): Buffer {
  const { channel, fromUid, clientMsgNo, payload = NO_TEXT, expireS = 0 } = draft;
  return encodeRecord(
    {
      ...{ channel, fromUid, clientMsgNo, payload },
      header: { noPersist: false, redDot: true },
      ...{ expireS, streamNo: undefined, tagKey: undefined },
    },
    nowMs,
  );
}
