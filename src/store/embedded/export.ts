// An embedded store's folder as the source of a move, and the decoding of its binary rows. The
// folder is opened as a node opens it: by one process at a time, and the WAL is flushed into the
// database. Only an id is added to it. State: the open store.

import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { type Key, open, type RangeOptions } from "lmdb";
import { BrokerError } from "../../broker/errors.ts";
import type { Message, StreamSnapshot } from "../../broker/model.ts";
import { ChannelRows, logKey, seqIn } from "./engine/channel-rows.ts";
import { readCheckpointState } from "./engine/checkpoint.ts";
import { commit, fieldsOf, MAX_TABLES, type Stored } from "./engine/database.ts";
import { countIn, LogRows, MAX_SEQ, recordAt, rowOf } from "./engine/log-rows.ts";
import { decodeRecord, peekCounted, peekTimes } from "./engine/record.ts";
import type { Tables } from "./engine/tables.ts";
import { type EmbeddedOptions, openStore } from "./open.ts";
import { seqOfCopy } from "./steps/inbox-rows.ts";
import { ownerOf } from "./steps/managers.ts";
import { endingOf } from "./steps/stream-record.ts";
import { StreamRows } from "./steps/stream-rows.ts";

const NAME = "moveId";
const VERSION = 1;
const NEVER_MS = 2 ** 31 - 1;
/** Rows per read. */
const CHUNK = 500;
const NUMBER_BYTES = 6;
const SEPARATOR = 0x0a;

/** The source of a move. No other process changes it while it is open. */
export interface MoveSource {
  /** Identifies the data: assigned once per folder. */
  readonly id: string;
  readonly tables: Tables;
  /** No message id above it was ever given. */
  readonly lastMessageId: number;
  /**
   * The stream of a message; undefined: none is stored. Throws `internal` on data it cannot read.
   */
  stream(number: number, message: Message): SourceStream | undefined;
  /** Releases the folder. Safe to call twice. */
  close(): Promise<void>;
}

/** A stream with what lookups by event need. */
export interface SourceStream {
  readonly snapshot: StreamSnapshot;
  /** A viewer stopped it. */
  readonly stopped: boolean;
  /** Of each event, the UTF-16 units of text before it. */
  readonly offsets: readonly number[];
  /** The ids that its producer chose. */
  readonly eventIds: readonly string[];
}

/**
 * Opens the folder. Throws `unavailable` with an error message when there is no data, another
 * process uses it or it cannot be written, `internal` when it cannot be read.
 */
export async function openMoveSource(
  options: Omit<EmbeddedOptions, "publisher" | "durability" | "retentionS" | "maxChannelMessages">,
): Promise<MoveSource> {
  if (!hasData(options.path))
    throw new BrokerError("unavailable", {
      message: `There is no data of an embedded store in ${options.path}; migrate.from is what store.path was`,
    });
  const store = await openStore({
    ...options,
    ...{ durability: "disk", retentionS: 0, maxChannelMessages: 0 },
    sweepIntervalMs: NEVER_MS,
    publisher: { publish() {} }, // nothing happens while it is open
  });
  const { tables, live } = store;
  const rows = new StreamRows(tables, new ChannelRows(tables));
  let closing: Promise<void> | undefined;
  const close = () => {
    closing ??= store.close();
    return closing;
  };
  try {
    return {
      id: await nameOf(tables),
      tables,
      lastMessageId: readCheckpointState(tables)?.lastMessageId ?? 0,
      stream(number, message) {
        const active = live.at(message.key, message.messageSeq);
        if (active === undefined) return endedStream(tables, number, message);
        const { offsets, ids } = active.trace();
        const snapshot = active.snapshot();
        return { snapshot, stopped: false, offsets, eventIds: ids };
      },
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }

  function endedStream(
    { streams, streamTraces }: Tables,
    number: number,
    message: Message,
  ): SourceStream | undefined {
    const snapshot = rows.snapshot(number, message);
    if (snapshot === undefined) return undefined;
    const key = logKey(number, message.messageSeq);
    const [code] = fieldsOf(streams.get(key) ?? []);
    const trace = streamTraces.get(key) ?? [VERSION, new Uint8Array(), []];
    const [packed, ids] = fieldsOf(trace) as [Uint8Array, string[]]; // as `StreamRows` writes it
    const bytes = Buffer.from(packed.buffer, packed.byteOffset, packed.length);
    const offsets = Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readUInt32LE(4 * at));
    const stopped = endingOf(code) === "stopped";
    return { snapshot, stopped, offsets, eventIds: ids };
  }
}

/** What can be read of a folder without opening it. */
export interface SourceLook {
  /** See `MoveSource`; "": it has none yet. */
  readonly id: string;
  /**
   * Owners of access tokens as stored, by the tokens' SHA-256 in hex; also of tokens that expired.
   */
  readonly tokens: ReadonlyMap<string, ReturnType<typeof ownerOf>>;
}

/** Reads the folder `path`, also where another process uses it. Undefined: there is no data. */
export async function lookInto(path: string): Promise<SourceLook | undefined> {
  if (!hasData(path)) return undefined;
  const folder = databaseIn(path);
  const env = open({ path: folder, maxDbs: MAX_TABLES, readOnly: true });
  try {
    const meta = env.openDB<Stored, string>({ name: "meta" });
    const tokens = env.openDB<Stored, string>({ name: "tokens" });
    const rows = [...tokens.getRange({})];
    return {
      id: idIn(meta.get(NAME)),
      tokens: new Map(rows.map(({ key, value }) => [key, ownerOf(value)])),
    };
  } finally {
    await env.close();
  }
}

/** The id of the data; assigned once. */
async function nameOf(tables: Tables): Promise<string> {
  const known = idIn(tables.meta.get(NAME));
  if (known !== "") return known;
  const name = randomUUID();
  await commit(tables, () => void tables.meta.put(NAME, [VERSION, name]));
  return name;
}

function hasData(path: string): boolean {
  return existsSync(databaseIn(path));
}

function databaseIn(path: string): string {
  return join(path, "lmdb");
}

function idIn(stored: Stored | undefined): string {
  return stored === undefined ? "" : String(fieldsOf(stored, VERSION)[0]);
}

/** What a move needs of a table. */
export interface RowTable {
  getRange(options: RangeOptions): Iterable<{ readonly key: Key; readonly value: unknown }>;
  getStats(): object;
}

/** Keys from `start` to before `end`. */
export type Range = Pick<RangeOptions, "start" | "end">;

export interface Row<K, V> {
  readonly key: K;
  readonly value: V;
  /** The key of the row before it, in the range. */
  readonly before: K | undefined;
  /** The watermark of the row. */
  readonly at: string;
}

/**
 * Rows of a table after the watermark `at` ("": all), in the order of keys and read in chunks: no
 * cursor stays open in between.
 */
export function* rowsOf<K, V = Stored>(
  table: RowTable,
  at: string,
  range: Range = {},
): Generator<Row<K, V>> {
  let before = at === "" ? undefined : keyAt(at);
  for (;;) {
    const bounds = { ...range, limit: CHUNK };
    if (before !== undefined) Object.assign(bounds, { start: before, exclusiveStart: true });
    const chunk = [...table.getRange(bounds)];
    for (const { key, value } of chunk) {
      const row = { key, value, before, at: placeOf(key) };
      yield row as Row<K, V>; // lmdb's types of keys and values are those of all tables
      before = key;
    }
    if (chunk.length < CHUNK) return;
  }
}

function placeOf(key: Key): string {
  return Buffer.isBuffer(key) ? `x${key.toString("hex")}` : JSON.stringify(key);
}

function keyAt(place: string): Key {
  if (place.startsWith("x")) return Buffer.from(place.slice(1), "hex");
  return JSON.parse(place) as Key; // as `placeOf` wrote it
}

/** The messages of the log after the watermark `at`, as if each had a row of its own. */
export function* recordsOf(tables: Tables, at: string): Generator<Row<Buffer, Buffer>> {
  let before = at === "" ? undefined : (keyAt(at) as Buffer); // of one of these rows
  const place = (key: Buffer, value: Buffer): Row<Buffer, Buffer> => {
    const row = { key, value, before, at: placeOf(key) };
    before = key;
    return row;
  };
  const number = before === undefined ? 0 : numberIn(before);
  if (before !== undefined) {
    const rest = new LogRows(tables).up(number, seqIn(before) + 1, MAX_SEQ);
    for (const { seq, bytes } of rest) yield place(logKey(number, seq), bytes);
  }
  const others = { start: numberKey(number + 1) };
  for (const { key, value } of rowsOf<Buffer, Buffer>(tables.log, "", others)) {
    const row = rowOf(seqIn(key), value);
    for (let seq = row.first; seq <= row.last; seq++)
      yield place(logKey(numberIn(key), seq), recordAt(row, seq));
  }
}

/**
 * How many messages the log has, approximately and in constant time: a row has several, about as
 * many as the first rows.
 */
export function countRecords({ log }: Tables): number {
  const rows = [...log.getRange({ limit: CHUNK })];
  const records = rows.reduce((sum, { value }) => sum + countIn(value), 0);
  return Math.round((entriesOf(log) * records) / Math.max(1, rows.length));
}

/** How many rows a table has, in constant time. */
export function entriesOf(table: { getStats(): object }): number {
  const { entryCount } = table.getStats() as { entryCount?: number }; // what LMDB says of every table
  return entryCount ?? 0;
}

/** The keys of a table that begin with a channel's number. */
export function rangeOf(number: number): Range {
  return { start: numberKey(number), end: numberKey(number + 1) };
}

function numberKey(number: number): Buffer {
  const key = Buffer.alloc(NUMBER_BYTES);
  key.writeUIntBE(number, 0, NUMBER_BYTES);
  return key;
}

/** The channel's number that a key of a table begins with. */
export function numberIn(key: Buffer): number {
  return key.readUIntBE(0, NUMBER_BYTES);
}

/** A record of the log. */
export interface LogRow {
  readonly message: Message;
  /** The payload of a stream's message is empty: the text is stored with the stream. */
  readonly isStream: boolean;
  /** How many messages through it count as unread for as long as they are kept. */
  readonly counted: number;
}

export function messageOf(record: Buffer): LogRow {
  const { message, isStream } = decodeRecord(record);
  const { counted, counts } = peekCounted(record);
  const hasDot = message.header.redDot && message.expireS === 0;
  // A record of an old format does not count itself, and a reader of `counted` takes one off.
  return {
    message,
    isStream,
    counted: hasDot && !counts ? counted + 1 : counted,
  };
}

/**
 * When the oldest and the newest message of a channel that are kept were accepted, Unix
 * milliseconds; undefined: none is.
 */
export function edgesOf(
  tables: Tables,
  number: number,
): readonly [oldestAtMs: number, newestAtMs: number] | undefined {
  const logRows = new LogRows(tables);
  const [first] = logRows.up(number, 1, MAX_SEQ);
  const [last] = logRows.down(number, 1, MAX_SEQ);
  if (first === undefined || last === undefined) return undefined;
  const [oldest, newest] = [peekTimes(first.bytes), peekTimes(last.bytes)];
  return [oldest.timestampMs, newest.timestampMs];
}

/** A user's newest own seq in a channel. */
export function ownOf({ key, value }: BinaryRow): {
  readonly uid: string;
  readonly seq: number;
} {
  return {
    uid: key.toString("utf8", NUMBER_BYTES),
    seq: value.readUIntBE(1, NUMBER_BYTES),
  };
}

/** The uid of an inbox. */
export function uidOf(inbox: Buffer): string {
  return inbox.toString("utf8", 2);
}

/** The uid and seq of a copy of a command. */
export function copyOf(key: Buffer): {
  readonly uid: string;
  readonly seq: number;
} {
  return { uid: uidOf(key.subarray(0, -6)), seq: seqOfCopy(key) };
}

interface BinaryRow {
  readonly key: Buffer;
  readonly value: Buffer;
}

/** A dedupe entry: the message that a retry is answered with. */
export interface FirstRow {
  readonly fromUid: string;
  readonly clientMsgNo: string;
  /** The channel of a command; "": the key's number says it. */
  readonly key: string;
  readonly messageId: number;
  /** 0: the message was not kept, or was a command. */
  readonly messageSeq: number;
  readonly timestampMs: number;
}

/** Undefined: the other generation of the table has a newer row of that key. */
export function firstOf(
  { key, value }: BinaryRow,
  { dedupe: [even, odd] }: Tables,
  generation: number,
): FirstRow | undefined {
  const timestampMs = value.readDoubleLE(17);
  const other = (generation === 0 ? odd : even).get(key);
  if (other !== undefined && other.readDoubleLE(17) > timestampMs) return undefined;
  const end = key.indexOf(SEPARATOR, NUMBER_BYTES);
  const isCommand = numberIn(key) === COMMANDS;
  const last = isCommand ? key.lastIndexOf(SEPARATOR) : key.length;
  return {
    fromUid: key.toString("utf8", NUMBER_BYTES, end),
    clientMsgNo: key.toString("utf8", end + 1, last),
    key: isCommand ? key.toString("utf8", last + 1) : "",
    messageId: value.readDoubleLE(1),
    messageSeq: value.readDoubleLE(9),
    timestampMs,
  };
}

/** In the place of a channel's number in the dedupe entries of commands. */
export const COMMANDS = 0;
