// Reads and writes the event feed: the tables `events` and `onDemandEvents`. Keeps no state. A row
// that cannot be read is reported and left out, so that it does not stop the feed of its partition.
//
// A key is a partition (u8) and the number of the row's first event (u48). A value is a version,
// followed by the fields of up to 64 events with consecutive numbers. Each event has the fields id,
// index of the type in `EVENT_TYPES`, key, and seq of the message. In version 2, each event also
// has the JSON of `EventRow.fields`, or "" if the event has no `fields`.

import { EVENT_TYPES, type EventPosition, type EventRow } from "../../../broker/event-ports.ts";
import { messageTimeMs } from "../../../broker/model.ts";
import { ifReadable } from "../../../lib/readable.ts";
import { fieldsOf, type Stored } from "./database.ts";
import type { Tables } from "./tables.ts";

const NEWEST_VERSION = 2;
/**
 * Version of rows whose events have no JSON. Most rows have this version, because message events
 * need no JSON.
 */
const PLAIN_VERSION = 1;
const PLAIN_FIELDS = 4;
const FIELDS = 5;
export const MAX_ROW_EVENTS = 64;
const KEY_BYTES = 7;
const NUMBER_AT = 1;
const NUMBER_BYTES = 6;
const MAX_NUMBER = 2 ** 48 - 1;

/** Events with consecutive numbers, as they are stored in one row. */
interface EventChunk {
  readonly first: number;
  readonly last: number;
  /** Number of fields of each event. */
  readonly width: number;
  readonly fields: readonly unknown[];
}

export interface StoredEvents {
  readonly key: Buffer;
  readonly count: number;
  readonly newest: EventRow;
}

export type EventTable = Tables["events"];

export class EventRows {
  readonly #table: EventTable;
  readonly #onError: (error: Error, what: string) => void;

  constructor(table: EventTable, onError: (error: Error, what: string) => void) {
    this.#table = table;
    this.#onError = onError;
  }

  /**
   * Puts up to `MAX_ROW_EVENTS` events with consecutive numbers as one row. Must be called inside
   * `commit`.
   */
  put(partition: number, rows: readonly EventRow[]): void {
    const isPlain = rows.every(({ fields }) => fields === undefined);
    const values = rows.flatMap(({ id, type, key, messageSeq, fields }) => {
      const plain = [id, EVENT_TYPES.indexOf(type), key, messageSeq];
      if (isPlain) return plain;
      return [...plain, fields === undefined ? "" : JSON.stringify(fields)];
    });
    const version = isPlain ? PLAIN_VERSION : NEWEST_VERSION;
    void this.#table.put(keyOf(partition, rows[0]?.number ?? 0), [version, ...values]);
  }

  /** Returns the number of the oldest event, or `undefined` if the partition has no event. */
  oldest(partition: number): number | undefined {
    const start = keyOf(partition, 0);
    for (const key of this.#table.getKeys({
      start,
      end: keyOf(partition + 1, 0),
      limit: 1,
    }))
      return numberIn(key);
    return undefined;
  }

  /**
   * Returns the position of the newest event. If the last row cannot be read, returns the number of
   * the row's first event and the id 0.
   */
  newest(partition: number): EventPosition | undefined {
    for (const key of this.#table.getKeys(lastFrom(partition, MAX_NUMBER))) {
      const chunk = this.#chunkAt(key);
      return chunk ? positionOf(rowIn(chunk, chunk.last)) : { number: numberIn(key), id: 0 };
    }
    return undefined;
  }

  /** Returns at most `limit` events, from number `from` up to but not including `to`. */
  read(
    partition: number,
    { from, to }: { readonly from: number; readonly to: number },
    limit: number,
  ): EventRow[] {
    const rows: EventRow[] = [];
    const first = this.#lastChunkFrom(partition, from);
    const start = keyOf(partition, first?.first ?? from);
    for (const key of this.#table.getKeys({ start, end: keyOf(partition, to) })) {
      const chunk = this.#chunkAt(key);
      if (chunk === undefined) continue;
      const end = Math.min(chunk.last + 1, to);
      for (let number = Math.max(from, chunk.first); number < end; number++) {
        if (rows.length === limit) return rows;
        rows.push(rowIn(chunk, number));
      }
    }
    return rows;
  }

  /** Returns the newest event of the partition whose number is not higher than `number`. */
  floor(partition: number, number: number): EventRow | undefined {
    const chunk = this.#lastChunkFrom(partition, number);
    return chunk && rowIn(chunk, Math.min(number, chunk.last));
  }

  /**
   * Yields the rows, oldest first. A row that cannot be read is yielded with the time of the next
   * readable row. If no readable row follows, the row is not yielded.
   */
  *oldestRows(partition: number): Generator<StoredEvents> {
    const range = { start: keyOf(partition, 0), end: keyOf(partition + 1, 0) };
    let unreadable: Buffer[] = [];
    for (const key of this.#table.getKeys(range)) {
      const chunk = this.#chunkAt(key);
      if (chunk === undefined) {
        unreadable.push(key);
        continue;
      }
      const newest = rowIn(chunk, chunk.last);
      const before = { ...newest, number: chunk.first - 1 };
      for (const key of unreadable) yield { key, count: 0, newest: before };
      unreadable = [];
      yield { key, count: chunk.last - chunk.first + 1, newest };
    }
  }

  #lastChunkFrom(partition: number, number: number): EventChunk | undefined {
    for (const key of this.#table.getKeys(lastFrom(partition, number))) {
      const chunk = this.#chunkAt(key);
      if (chunk !== undefined) return chunk;
    }
    return undefined;
  }

  #chunkAt(key: Buffer): EventChunk | undefined {
    const read = () => {
      const value = this.#table.get(key);
      return value && chunkOf(key, value);
    };
    return ifReadable(
      read,
      "Could not read events, so they are left out of the feed",
      this.#onError,
    );
  }
}

export function partitionIn(key: Buffer): number {
  return key.readUInt8(0);
}

export function eventsIn(key: Buffer, value: Stored): readonly EventRow[] {
  const chunk = chunkOf(key, value);
  const { first, last } = chunk;
  return Array.from({ length: last - first + 1 }, (_, at) => rowIn(chunk, first + at));
}

function chunkOf(key: Buffer, value: Stored): EventChunk {
  const first = numberIn(key);
  const fields = fieldsOf(value, NEWEST_VERSION);
  const width = value[0] === PLAIN_VERSION ? PLAIN_FIELDS : FIELDS;
  return { first, last: first + fields.length / width - 1, width, fields };
}

function rowIn({ first, width, fields }: EventChunk, number: number): EventRow {
  const at = (number - first) * width;
  const id = Number(fields[at]);
  const json = width === FIELDS ? fields[at + PLAIN_FIELDS] : "";
  return {
    number,
    id,
    timestampMs: messageTimeMs(id),
    type: EVENT_TYPES[Number(fields[at + 1])] ?? "message.stored",
    key: String(fields[at + 2]),
    messageSeq: Number(fields[at + 3]),
    fields: json === "" ? undefined : JSON.parse(String(json)),
  };
}

/** Returns the range of a partition's keys in descending order, beginning at `number`. */
function lastFrom(partition: number, number: number) {
  return { start: keyOf(partition, number), end: keyOf(partition, 0), reverse: true };
}

function keyOf(partition: number, number: number): Buffer {
  const key = Buffer.allocUnsafe(KEY_BYTES);
  key[0] = partition;
  key.writeUIntBE(Math.min(number, MAX_NUMBER), NUMBER_AT, NUMBER_BYTES);
  return key;
}

function numberIn(key: Buffer): number {
  return key.readUIntBE(NUMBER_AT, NUMBER_BYTES);
}

export function positionOf({ number, id }: EventPosition): EventPosition {
  return { number, id };
}
