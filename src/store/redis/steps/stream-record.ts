// The bytes of streams in Redis: the record of an event in two halves, of which the first is the
// same for all events of a stream and kept with it (so that a step can write the end of a stream
// its caller does not know), and what `lua/snapshot.lua` shows of a stream. Pure.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelType,
  channelKey,
  type StreamNote,
  type StreamSnapshot,
} from "../../../broker/model.ts";
import { packr, type RecordedEvent, STREAM_STATES, WIRE_VERSION } from "../../../redis/wire.ts";

/** First bytes of MessagePack arrays of that many fields. */
const ARRAY = 0x90;
const EVENT_FIELDS = 9;
const HEAD_FIELDS = 5;

/**
 * What the record of every event of a stream begins with (`decodeEvent` of wire.ts reads it). The
 * whole record is this, the event id as a MessagePack string, and `eventTail`.
 */
export function eventHead({
  channel,
  fromUid,
  clientMsgNo,
}: Pick<RecordedEvent, "channel" | "fromUid" | "clientMsgNo">): Buffer {
  const { type, id } = channel;
  const head = packr.pack([WIRE_VERSION, type, id, fromUid, clientMsgNo]);
  head[0] = ARRAY + EVENT_FIELDS;
  return head;
}

/** What the record of an event ends with. */
export function eventTail({
  type,
  data,
  timestampMs,
}: Pick<RecordedEvent, "type" | "data" | "timestampMs">): Buffer {
  return packr.pack([type, data, timestampMs]).subarray(1);
}

/** A stream as a script shows it, and the version of that state. */
interface ShownStream {
  readonly version: string;
  /** Undefined: it is of the version that was known. */
  readonly snapshot: StreamSnapshot | undefined;
}

/**
 * Reads what `stream_snapshot` of `lua/snapshot.lua` returned. Throws `internal` on a newer format.
 */
export function decodeShown(reply: unknown): ShownStream {
  const fields = reply as readonly Buffer[]; // Redis' reply
  const version = String(fields[0]);
  if (fields.length === 1) return { version, snapshot: undefined };
  return { version, snapshot: decodeSnapshot(reply) };
}

/**
 * The stream that `stream_snapshot` of `lua/snapshot.lua` returned whole. Throws `internal` on a
 * newer format.
 */
export function decodeSnapshot(reply: unknown): StreamSnapshot {
  const fields = reply as readonly (Buffer | null)[]; // Redis' reply
  const [, head, id, seq, stateAt, next, startData, endData, text] = fields;
  const notes = fields[9] as unknown as readonly Buffer[];
  const state = STREAM_STATES[Number(stateAt)];
  if (state === undefined) throw newer(`a stream in state ${String(stateAt)}`);
  return {
    ...decodeHead(head ?? Buffer.alloc(0)),
    messageId: Number(id),
    messageSeq: Number(seq),
    state,
    text: String(text),
    nextIndex: Number(next),
    startData: String(startData),
    endData: endData === null ? undefined : String(endData),
    notes: notes.map(decodeNote),
  };
}

function decodeHead(
  head: Buffer,
): Pick<StreamSnapshot, "key" | "channel" | "fromUid" | "clientMsgNo"> {
  const whole = Buffer.from(head);
  whole[0] = ARRAY + HEAD_FIELDS;
  const [version, type, id, fromUid, clientMsgNo] = packr.unpack(whole) as [
    ...[number, ChannelType, string, string, string],
  ];
  if (version > WIRE_VERSION) throw newer(`a stream of format ${version}`);
  const channel = { id, type };
  return { key: channelKey(channel, fromUid), channel, fromUid, clientMsgNo };
}

/** A tool-call event as an element of the list `streamNotes` (`lua/snapshot.lua`). */
export function encodeNote(note: StreamNote): Buffer {
  const { index, textOffset, eventId, type, data, timestampMs } = note;
  return packr.pack([index, textOffset, eventId, type, data, timestampMs]);
}

function decodeNote(note: Buffer): StreamNote {
  const [index, textOffset, eventId, type, data, timestampMs] = packr.unpack(note) as [
    number,
    number,
    string,
    string,
    string,
    number,
  ];
  return { index, textOffset, eventId, type, data, timestampMs };
}

function newer(what: string): BrokerError {
  return new BrokerError("internal", {
    message: `Redis holds ${what}, which this build does not know`,
  });
}
