// Encodes and decodes streams in Redis. The record of an event consists of a head, the event id and
// a tail. The head is stored with the stream, so that a script can end the stream for a caller that
// does not know the fields of the head. Pure.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelType,
  channelKey,
  type StreamNote,
  type StreamSnapshot,
} from "../../../broker/model.ts";
import { packr, type RecordedEvent, STREAM_STATES, WIRE_VERSION } from "../../../redis/wire.ts";

const ARRAY = 0x90;
const EVENT_FIELDS = 9;
const HEAD_FIELDS = 5;

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

export function eventTail({
  type,
  data,
  timestampMs,
}: Pick<RecordedEvent, "type" | "data" | "timestampMs">): Buffer {
  return packr.pack([type, data, timestampMs]).subarray(1);
}

interface VersionedSnapshot {
  readonly version: string;
  /** `undefined` if the stream still has the version that the caller had. */
  readonly snapshot: StreamSnapshot | undefined;
}

/** Decodes a reply of `stream_snapshot`. Throws `internal` if it has a newer format. */
export function decodeVersioned(reply: unknown): VersionedSnapshot {
  const fields = reply as readonly Buffer[]; // as `stream_snapshot` specifies
  const version = String(fields[0]);
  if (fields.length === 1) return { version, snapshot: undefined };
  return { version, snapshot: decodeSnapshot(reply) };
}

export function decodeSnapshot(reply: unknown): StreamSnapshot {
  const fields = reply as readonly (Buffer | null)[]; // as `stream_snapshot` specifies
  const [, head, id, seq, stateAt, next, startData, endData, text] = fields;
  const notes = fields[9] as unknown as readonly Buffer[];
  const [startId, endId] = fields.slice(10);
  const state = STREAM_STATES[Number(stateAt)];
  if (state === undefined) throw newer(`state ${String(stateAt)}`);
  return {
    ...decodeHead(head ?? Buffer.alloc(0)),
    messageId: Number(id),
    messageSeq: Number(seq),
    state,
    text: String(text),
    nextIndex: Number(next),
    startData: String(startData),
    endData: endData === null ? undefined : String(endData),
    startId: startId?.toString(),
    endId: endId?.toString(),
    notes: notes.map(decodeNote),
  };
}

function decodeHead(
  head: Buffer,
): Pick<StreamSnapshot, "key" | "channel" | "fromUid" | "clientMsgNo"> {
  const array = Buffer.from(head);
  array[0] = ARRAY + HEAD_FIELDS;
  const [version, type, id, fromUid, clientMsgNo] = packr.unpack(array) as [
    ...[number, ChannelType, string, string, string],
  ];
  if (version > WIRE_VERSION) throw newer(`format ${version}`);
  const channel = { id, type };
  return { key: channelKey(channel, fromUid), channel, fromUid, clientMsgNo };
}

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

function newer(problem: string): BrokerError {
  return new BrokerError("internal", {
    message: `Redis holds a stream with ${problem}, which this build does not know. Start the newer build that wrote it`,
  });
}
