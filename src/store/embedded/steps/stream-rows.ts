// Rows of streams in the database. An active stream has one row that marks it as active. Each
// checkpoint adds a row with the new events of the stream (a part). An ended stream has a row with
// its content, a row with the text offsets of its events and the marks of their ids, a row under
// its clientMsgNo, and rows by the time of its end. The message of a stream is in the log.

import { BrokerError } from "../../../broker/errors.ts";
import type { ChannelKey, StreamNote, StreamSnapshot } from "../../../broker/model.ts";
import type { StreamEnd } from "../../../broker/ports.ts";
import { type ChannelRows, logKey } from "../engine/channel-rows.ts";
import { commit, fieldsOf } from "../engine/database.ts";
import { decodeRecord } from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";
import type { LiveStream, StreamHead } from "./live-stream.ts";
import {
  decodeBody,
  type EncodedEvent,
  type Ending,
  endingCode,
  endingOf,
  type StreamEvent,
  stateAfter,
} from "./stream-record.ts";

const VERSION = 1;
const LENGTH_BYTES = 4;
const KEY_BYTES = 12;
const NUMBER_BYTES = 6;
const ENDED_MS = 8;

export interface EndedStream {
  readonly number: number;
  readonly messageSeq: number;
  readonly ending: Ending;
}

export class StreamRows {
  readonly #tables: Tables;
  readonly #rows: ChannelRows;

  constructor(tables: Tables, rows: ChannelRows) {
    this.#tables = tables;
    this.#rows = rows;
  }

  /** Puts the new events of a stream. Must be called inside `commit`, and may be repeated. */
  put(stream: LiveStream): void {
    const { channel, head, flushing } = stream;
    const key = logKey(channel.number, head.messageSeq);
    if (stream.isEndedBefore(flushing)) this.#putEnded(stream, key);
    else this.#putPart(stream, key);
  }

  #putPart(stream: LiveStream, key: Buffer): void {
    const { stored, flushing, pending, parts } = stream;
    const { streamParts, streamsActive } = this.#tables;
    if (flushing <= stored) return;
    if (stored === 0) void streamsActive.put(key, Buffer.from([VERSION]));
    parts.add(stored);
    const value = encodePart(pending.slice(0, flushing - stored));
    void streamParts.put(partKey(key, stored), value);
  }

  #putEnded(stream: LiveStream, key: Buffer): void {
    const { streams, streamTraces, streamNames } = this.#tables;
    const { streamParts, streamsActive } = this.#tables;
    const { head, channel, ending } = stream;
    if (ending === undefined) throw new BrokerError("internal");
    const { text, nextIndex, startData, endData, startId, endId, notes } = stream.snapshot();
    const code = endingCode(ending);
    const ids = [startId ?? null, endId ?? null];
    const { endedMs } = stream;
    const fields = [text, nextIndex, startData, endData, notes.map(toFields), ...ids, endedMs];
    void streams.put(key, [VERSION, code, ...fields]);
    for (const scope of scopesOf(head.key)) {
      const endKey = [scope, endedMs, channel.number, head.messageSeq];
      void this.#tables.streamEnds.put(endKey, [VERSION, head.key, head.clientMsgNo]);
    }
    const { offsets, marks } = stream.trace();
    void streamTraces.put(key, [VERSION, packOffsets(offsets), [...marks].flat()]);
    const name = nameKey(channel.number, head.clientMsgNo);
    void streamNames.put(name, [VERSION, head.messageSeq, code]);
    void streamsActive.remove(key);
    for (const first of stream.parts) void streamParts.remove(partKey(key, first));
  }

  /** Removes the rows of a stream, whose message is `record`. Must be called inside `commit`. */
  remove(number: number, record: Buffer): void {
    const { streams, streamTraces, streamNames, streamEnds } = this.#tables;
    const { key: channel, messageSeq, clientMsgNo } = decodeRecord(record).message;
    const key = logKey(number, messageSeq);
    const endedMs = this.endedMs({ number, messageSeq });
    if (endedMs !== undefined)
      for (const scope of scopesOf(channel))
        void streamEnds.remove([scope, endedMs, number, messageSeq]);
    void streams.remove(key);
    void streamTraces.remove(key);
    void streamNames.remove(nameKey(number, clientMsgNo));
  }

  find(key: ChannelKey, clientMsgNo: string): EndedStream | undefined {
    const number = this.#rows.get(key)?.number;
    if (number === undefined) return undefined;
    const row = this.#tables.streamNames.get(nameKey(number, clientMsgNo));
    if (row === undefined) return undefined;
    const [messageSeq, code] = fieldsOf(row, VERSION);
    return {
      number,
      messageSeq: Number(messageSeq),
      ending: endingOf(code),
    };
  }

  endedMs({ number, messageSeq }: StreamPosition): number | undefined {
    const row = this.#tables.streams.get(logKey(number, messageSeq));
    const endedMs = row === undefined ? undefined : fieldsOf(row, VERSION)[ENDED_MS];
    return typeof endedMs === "number" ? endedMs : undefined;
  }

  /** Yields the ends of a scope (see `scopesOf`) at `sinceMs` or later, the newest first. */
  *ends(scope: string, sinceMs: number, limit: number): Generator<StreamEnd> {
    const range = { start: [scope, Number.MAX_SAFE_INTEGER], end: [scope, sinceMs] };
    const rows = this.#tables.streamEnds.getRange({ ...range, reverse: true, limit });
    for (const { key, value } of rows) {
      const [, endedMs, , messageSeq] = key;
      const [channel, clientMsgNo] = fieldsOf(value, VERSION);
      yield {
        key: String(channel),
        clientMsgNo: String(clientMsgNo),
        messageSeq: Number(messageSeq),
        endedMs: Number(endedMs),
      };
    }
  }

  record({ number, messageSeq }: StreamPosition): Buffer | undefined {
    return this.#tables.log.get(logKey(number, messageSeq));
  }

  markOf(position: StreamPosition, eventId: string | undefined): string | undefined {
    if (eventId === undefined) return undefined;
    return this.marks(position).get(eventId);
  }

  marks(position: StreamPosition): ReadonlyMap<string, string> {
    const marks = new Map<string, string>();
    const items = (this.#trace(position)?.[1] ?? []) as readonly string[]; // as `#putEnded` wrote it
    for (let i = 0; i < items.length; i += 2) marks.set(String(items[i]), String(items[i + 1]));
    return marks;
  }

  textOffset(position: StreamPosition, index: number): number | undefined {
    const bytes = this.#trace(position)?.[0];
    if (!(bytes instanceof Uint8Array) || index < 0) return undefined;
    const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    const count = view.length / 4;
    if (index > count) return undefined;
    // The last event is the end of the stream, which has no text.
    return view.readUInt32LE(4 * Math.min(index, count - 1));
  }

  #trace({ number, messageSeq }: StreamPosition): readonly unknown[] | undefined {
    const row = this.#tables.streamTraces.get(logKey(number, messageSeq));
    return row === undefined ? undefined : fieldsOf(row, VERSION);
  }

  snapshot(number: number, head: StreamHead): StreamSnapshot | undefined {
    const row = this.#tables.streams.get(logKey(number, head.messageSeq));
    if (row === undefined) return undefined;
    const [code, text, nextIndex, startData, endData, notes, ...ids] = fieldsOf(row, VERSION);
    const [startId, endId] = ids as readonly (string | null)[]; // written by `#putEnded`
    const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = head;
    return {
      ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq },
      state: stateAfter(endingOf(code)),
      text: String(text),
      nextIndex: Number(nextIndex),
      startData: String(startData),
      endData: String(endData),
      startId: startId ?? undefined,
      endId: endId ?? undefined,
      notes: (notes as NoteFields[]).map(toNote), // written by `#putEnded`
    };
  }

  isEnded(number: number, messageSeq: number): boolean {
    return number !== 0 && this.#tables.streams.doesExist(logKey(number, messageSeq));
  }

  *active(): Generator<{
    readonly head: StreamHead;
    readonly parts: readonly number[];
    readonly events: readonly StreamEvent[];
  }> {
    const { log, streamsActive, streamParts } = this.#tables;
    for (const { key, value } of streamsActive.getRange({})) {
      assertVersion(value);
      const record = log.get(key);
      if (record === undefined)
        throw new BrokerError("internal", {
          message: `The message of the active stream ${key.toString("hex")} is missing. Restore the data folder from a copy.`,
        });
      const parts: number[] = [];
      const events: StreamEvent[] = [];
      for (const part of streamParts.getRange(partRange(key))) {
        parts.push(part.key.readUInt32BE(KEY_BYTES));
        events.push(...decodePart(part.value));
      }
      yield { head: decodeRecord(record).message, parts, events };
    }
  }
}

/**
 * Removes the rows of active streams whose message is not in the log. Must be called before the
 * replay, which restores the streams that are only in the WAL.
 */
export async function removeOrphanedStreams(
  tables: Tables,
  onError: (error: Error, what: string) => void,
): Promise<void> {
  const { log, streamsActive, streamParts } = tables;
  const orphaned = [...streamsActive.getKeys({})].filter((key) => !log.doesExist(key));
  if (orphaned.length === 0) return;
  const parts = orphaned.flatMap((key) => [...streamParts.getKeys(partRange(key))]);
  await commit(
    tables,
    () => {
      for (const key of orphaned) void streamsActive.remove(key);
      for (const key of parts) void streamParts.remove(key);
    },
    "reclaim",
  );
  onError(
    new Error(
      `${orphaned.length} active streams had rows but no message. They are restored from the WAL.`,
    ),
    "Rows of active streams without a message were removed",
  );
}

/** Returns the names under which the end of a channel's stream is found. */
export function scopesOf(key: ChannelKey): readonly string[] {
  return isPersonal(key) ? [...usersOf(key)].map(userScope) : [key];
}

export function userScope(uid: string): string {
  return `u:${uid}`;
}

function isPersonal(key: ChannelKey): boolean {
  return key.startsWith("1:");
}

/** Returns the users of a personal channel, an empty set for a group. Uids contain no `@`. */
export function usersOf(key: ChannelKey): ReadonlySet<string> {
  return new Set(isPersonal(key) ? key.slice(2).split("@") : []);
}

type StreamPosition = Pick<EndedStream, "number" | "messageSeq">;

type NoteFields = readonly [number, number, string, string, string, number];

function toFields(note: StreamNote): NoteFields {
  const { index, textOffset, eventId, type, data, timestampMs } = note;
  return [index, textOffset, eventId, type, data, timestampMs];
}

function toNote(fields: NoteFields): StreamNote {
  const [index, textOffset, eventId, type, data, timestampMs] = fields;
  return { index, textOffset, eventId, type, data, timestampMs };
}

function partRange(streamKey: Buffer): {
  readonly start: Buffer;
  readonly end: Buffer;
} {
  return { start: partKey(streamKey, 0), end: partKey(streamKey, 0xffff_ffff) };
}

function partKey(streamKey: Buffer, first: number): Buffer {
  const key = Buffer.allocUnsafe(KEY_BYTES + 4);
  streamKey.copy(key);
  key.writeUInt32BE(first, KEY_BYTES);
  return key;
}

function nameKey(number: number, clientMsgNo: string): Buffer {
  const size = Buffer.byteLength(clientMsgNo);
  const key = Buffer.allocUnsafe(NUMBER_BYTES + size);
  key.writeUIntBE(number, 0, NUMBER_BYTES);
  key.write(clientMsgNo, NUMBER_BYTES);
  return key;
}

/** Encodes a part: version u8, then for each event the size of its body (u32) and the body. */
function encodePart(events: readonly EncodedEvent[]): Buffer {
  let size = 1;
  for (const { body, end } of events) size += LENGTH_BYTES + end - body;
  const value = Buffer.allocUnsafe(size);
  value[0] = VERSION;
  let at = 1;
  for (const { bytes, body, end } of events) {
    value.writeUInt32LE(end - body, at);
    at += LENGTH_BYTES;
    at += bytes.copy(value, at, body, end);
  }
  return value;
}

function decodePart(part: Buffer): StreamEvent[] {
  assertVersion(part);
  const events: StreamEvent[] = [];
  let at = 1;
  while (at < part.length) {
    const start = at + LENGTH_BYTES;
    at = start + part.readUInt32LE(at);
    events.push(decodeBody(part.subarray(start, at)));
  }
  return events;
}

function packOffsets(numbers: readonly number[]): Buffer {
  const bytes = Buffer.allocUnsafe(4 * numbers.length);
  numbers.forEach((number, i) => {
    bytes.writeUInt32LE(number, 4 * i);
  });
  return bytes;
}

function assertVersion(value: Buffer): void {
  fieldsOf([...value.subarray(0, 1)], VERSION);
}
