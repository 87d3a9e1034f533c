// Reads a stream out of the embedded store's database for a move: an ended one from what it came to, an active one from its events. No state.

import type {
  Message,
  StreamNote,
  StreamSnapshot,
} from "../../broker/model.ts";
import {
  STREAM_CONTENT,
  STREAM_START,
  TOOL_CALL_EVENTS,
} from "../../broker/model.ts";
import type { MovedStream } from "../moved.ts";
import { logKey } from "./channel-rows.ts";
import { fieldsOf, type Tables } from "./database.ts";
import { endingOf, madeEventId, type StreamEvent } from "./stream-record.ts";
import { bodiesIn, partRange, type StreamRows } from "./stream-rows.ts";

export interface StreamTables {
  readonly tables: Tables;
  readonly streamRows: StreamRows;
}

/** The stream of a message; undefined: nothing is kept of one. Throws `internal` on data it cannot read. */
export function exportStream(
  { tables, streamRows }: StreamTables,
  number: number,
  message: Message,
): MovedStream | undefined {
  const key = logKey(number, message.messageSeq);
  const ended = streamRows.snapshot(number, message);
  const startedAtMs = message.timestampMs;
  if (ended !== undefined) {
    const [code] = fieldsOf(tables.streams.get(key) ?? [1]);
    const stopped = endingOf(code) === "stopped";
    const traced = traceOf(tables, key);
    return { kind: "stream", snapshot: ended, stopped, startedAtMs, ...traced };
  }
  if (tables.streamsActive.get(key) === undefined) return undefined;
  const events = [...tables.streamParts.getRange(partRange(key))].flatMap(
    ({ value }) => bodiesIn(value),
  );
  return {
    kind: "stream",
    stopped: false,
    startedAtMs,
    ...grown(message, events),
  };
}

function traceOf(
  tables: Tables,
  key: Buffer,
): Pick<MovedStream, "offsets" | "eventIds"> {
  const row = tables.streamTraces.get(key);
  if (row === undefined) return { offsets: [], eventIds: [] };
  const [packed, ids] = fieldsOf(row) as [Uint8Array, string[]]; // as `StreamRows` writes it
  const bytes = Buffer.from(packed.buffer, packed.byteOffset, packed.length);
  const offsets: number[] = [];
  for (let at = 0; at < bytes.length; at += 4)
    offsets.push(bytes.readUInt32LE(at));
  return { offsets, eventIds: ids };
}

/** An active stream from its events. */
function grown(
  message: Message,
  events: readonly StreamEvent[],
): Pick<MovedStream, "snapshot" | "offsets" | "eventIds"> {
  const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = message;
  const pieces: string[] = [];
  const offsets: number[] = [];
  const eventIds: string[] = [];
  const notes: StreamNote[] = [];
  let units = 0;
  let startData = "";
  for (const { index, type, eventId, data, timestampMs } of events) {
    offsets.push(units);
    if (eventId !== undefined) eventIds.push(eventId);
    if (type === STREAM_START) startData = data;
    if (type === STREAM_CONTENT) {
      pieces.push(data);
      units += data.length;
    }
    if (TOOL_CALL_EVENTS.has(type)) {
      const id = eventId ?? madeEventId(index);
      notes.push({
        ...{ index, textOffset: units, eventId: id, type, data, timestampMs },
      });
    }
  }
  const snapshot: StreamSnapshot = {
    ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq },
    ...{ state: "active", text: pieces.join(""), nextIndex: events.length },
    ...{ startData, endData: undefined, notes },
  };
  return { snapshot, offsets, eventIds };
}
