// Opens the data folder of an embedded store as the source of a migration to Redis, and decodes its
// binary rows. This process becomes the owner of the folder, and the WAL is replayed. The migration
// itself adds only one row, the id of the data.

import { randomUUID } from "node:crypto";
import { join } from "node:path";
import { type Key, open, type RangeOptions } from "lmdb";
import { BrokerError } from "../../broker/errors.ts";
import type { LogName } from "../../broker/log-frame.ts";
import type { Message, MessageHead, StreamSnapshot } from "../../broker/model.ts";
import type { ViewLimits } from "../../broker/stream-fold.ts";
import { logKey, numberIn, numberKey, seqIn } from "./engine/channel-rows.ts";
import { readCheckpointState } from "./engine/checkpoint.ts";
import { assertKinds, assertUsable, DATABASE_FOLDER, hasDatabase } from "./engine/data-folder.ts";
import { commit, fieldsOf, MAX_TABLES, type Stored } from "./engine/database.ts";
import { checkDatabase } from "./engine/database-check.ts";
import type { EventLog } from "./engine/event-log.ts";
import { countIn, LogRows, MAX_SEQ, recordAt, rowOf } from "./engine/log-rows.ts";
import { decodeRecord, peekCounted, peekHead, peekTimes } from "./engine/record.ts";
import type { Tables } from "./engine/tables.ts";
import { type EmbeddedOptions, openStore } from "./open.ts";
import { payloadHashIn } from "./steps/dedupe.ts";
import { seqOfCopy } from "./steps/inbox-rows.ts";
import { LiveStream } from "./steps/live-stream.ts";
import type { LogState, ProducerState } from "./steps/log-state.ts";
import { ownerOf } from "./steps/managers.ts";
import { StoredLogs } from "./steps/stored-logs.ts";

const DATA_ID = "moveId";
const VERSION = 1;
const NEVER_MS = 2 ** 31 - 1;
const CHUNK = 500;
const NUMBER_BYTES = 6;
const SEPARATOR = 0x0a;

export interface MoveSource {
  readonly id: string;
  readonly tables: Tables;
  readonly lastMessageId: number;
  readonly events: Pick<EventLog, "switch" | "newest" | "trimmed">;
  /** Returns a message's stream, or `undefined` if the stream is not stored. */
  stream(message: Message): SourceStream | undefined;
  close(): Promise<void>;
}

export interface SourceStream {
  readonly snapshot: StreamSnapshot;
  readonly log: Pick<SourceLog, "state" | "frames" | "producers">;
  /** Limits on what viewers are shown. `undefined` if `POST /event` started the stream. */
  readonly viewLimits: ViewLimits | undefined;
  /** Time of the end in Unix milliseconds, or `undefined` if the stream is active. */
  readonly endedMs: number | undefined;
  readonly eventMarks: ReadonlyMap<string, string>;
}

/**
 * Opens the source of a migration. Throws `unavailable` if there is no data, or if the folder
 * contains files of another program, is in use by another process or cannot be written. Throws
 * `disk_full` if the disk is full, and `internal` if the data cannot be read.
 */
export async function openMoveSource(
  options: Omit<EmbeddedOptions, "publisher" | "durability" | "retentionS" | "maxChannelMessages">,
  signal?: AbortSignal,
): Promise<MoveSource> {
  assertUsable(options.path);
  if (!hasDatabase(options.path))
    throw new BrokerError("unavailable", {
      message: `The folder ${options.path} does not contain an embedded store. Set migrate.from to the store.path of the old configuration.`,
    });
  const sourceOptions: EmbeddedOptions = {
    ...options,
    ...{ durability: "disk", retentionS: 0, maxChannelMessages: 0 },
    sweepIntervalMs: NEVER_MS,
    publisher: { publish() {} }, // a migration publishes nothing
  };
  const store = await openStore(sourceOptions, signal);
  const { tables, live, streamRows: rows, memtable, events } = store;
  const { viewLimits: limits } = rows;
  let closing: Promise<void> | undefined;
  const close = () => {
    closing ??= store.close();
    return closing;
  };
  try {
    return {
      id: await dataIdOf(tables),
      ...{ tables, events },
      lastMessageId: readCheckpointState(tables)?.lastMessageId ?? 0,
      stream(message) {
        const stream = live.atSeq(message.key, message.messageSeq) ?? endedStream(message);
        if (stream === undefined) return undefined;
        const log = rows.logOf(stream.log.number);
        if (log?.shown === undefined) throw new Error("The log of a stream is missing");
        const endedMs = stream.ending === undefined ? undefined : stream.endedMs;
        const producers = new Map(new StoredLogs(tables).producers(stream.log.number));
        return {
          ...{ snapshot: stream.snapshot(), eventMarks: stream.marks(), endedMs },
          log: { state: log.shown, frames: rows.framesOf(log), producers },
          viewLimits: stream.isTextSession ? undefined : limits,
        };
      },
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }

  function endedStream(message: Message): LiveStream | undefined {
    const ended = rows.find(message);
    if (ended === undefined) return undefined;
    const place = { log: ended.log, nowMs: 0, limits };
    const stream = new LiveStream(memtable.channel(message.key), message, place);
    rows.restore(stream, ended.log);
    return stream;
  }
}

/** A log with all of its stored data. */
export interface SourceLog {
  readonly number: number;
  readonly name: LogName;
  readonly state: LogState;
  /** The log's own frames, without the frames that a fork inherits. */
  readonly frames: Buffer;
  readonly producers: ReadonlyMap<string, ProducerState>;
}

/**
 * Reads the log that a row of the table `logHeads` describes. Returns `undefined` for the log of a
 * channel's stream, which is migrated with its message.
 */
export function logOf(tables: Tables, key: Buffer): SourceLog | undefined {
  const rows = new StoredLogs(tables);
  const number = numberIn(key);
  const head = rows.load(number);
  if (head === undefined || head.name.kind === "channel") return undefined;
  const frames = Buffer.concat([...rows.ownFrames(number)]);
  return { number, ...head, frames, producers: new Map(rows.producers(number)) };
}

export interface SourceSummary {
  /** Random id that the first migration assigned to the data, or "" before the first migration. */
  readonly id: string;
  /** Owners of access tokens, expired or not, by the SHA-256 hash of the token in hex. */
  readonly tokens: ReadonlyMap<string, ReturnType<typeof ownerOf>>;
}

/**
 * Reads the summary of a folder, even if another process is using it. Returns `undefined` if the
 * folder has no database. Throws the errors of `assertKinds` and `checkDatabase`.
 */
export async function readSourceSummary(
  path: string,
  ports: Parameters<typeof checkDatabase>[1],
): Promise<SourceSummary | undefined> {
  assertKinds(path);
  if (!hasDatabase(path)) return undefined;
  await checkDatabase(path, ports);
  const env = open({ path: join(path, DATABASE_FOLDER), maxDbs: MAX_TABLES, readOnly: true });
  try {
    const meta = env.openDB<Stored, string>({ name: "meta" });
    const tokens = env.openDB<Stored, string>({ name: "tokens" });
    const rows = [...tokens.getRange({})];
    return {
      id: idIn(meta.get(DATA_ID)),
      tokens: new Map(rows.map(({ key, value }) => [key, ownerOf(value)])),
    };
  } finally {
    await env.close();
  }
}

async function dataIdOf(tables: Tables): Promise<string> {
  const existing = idIn(tables.meta.get(DATA_ID));
  if (existing !== "") return existing;
  const id = randomUUID();
  await commit(tables, () => void tables.meta.put(DATA_ID, [VERSION, id]));
  return id;
}

function idIn(stored: Stored | undefined): string {
  return stored === undefined ? "" : String(fieldsOf(stored, VERSION)[0]);
}

export interface RowTable {
  getRange(options: RangeOptions): Iterable<{ readonly key: Key; readonly value: unknown }>;
  getStats(): object;
}

export type Range = Pick<RangeOptions, "start" | "end">;

export interface Row<K, V> {
  readonly key: K;
  readonly value: V;
  /** Key of the previous row in the range, or `undefined` for the first row. */
  readonly before: K | undefined;
  readonly at: string;
}

/** Yields the rows after the watermark `at` ("" for all), in the order of keys. */
export function* rowsOf<K, V = Stored>(
  table: RowTable,
  at: string,
  range: Range = {},
): Generator<Row<K, V>> {
  let before = at === "" ? undefined : keyOfWatermark(at);
  for (;;) {
    const bounds = { ...range, limit: CHUNK };
    if (before !== undefined) Object.assign(bounds, { start: before, exclusiveStart: true });
    const chunk = [...table.getRange(bounds)];
    for (const { key, value } of chunk) {
      const row = { key, value, before, at: watermarkOf(key) };
      yield row as Row<K, V>; // callers name the key and value types of this table
      before = key;
    }
    if (chunk.length < CHUNK) return;
  }
}

function watermarkOf(key: Key): string {
  return Buffer.isBuffer(key) ? `x${key.toString("hex")}` : JSON.stringify(key);
}

function keyOfWatermark(watermark: string): Key {
  if (watermark.startsWith("x")) return Buffer.from(watermark.slice(1), "hex");
  return JSON.parse(watermark) as Key; // as written by `watermarkOf`
}

/** Yields the record of each message after the watermark `at` ("" for all). */
export function* recordsOf(tables: Tables, at: string): Generator<Row<Buffer, Buffer>> {
  // `watermarkOf` made `at` from a Buffer.
  let before = at === "" ? undefined : (keyOfWatermark(at) as Buffer);
  const rowAt = (key: Buffer, value: Buffer): Row<Buffer, Buffer> => {
    const row = { key, value, before, at: watermarkOf(key) };
    before = key;
    return row;
  };
  const number = before === undefined ? 0 : numberIn(before);
  if (before !== undefined) {
    const records = new LogRows(tables).scan(number, seqIn(before) + 1, MAX_SEQ);
    for (const { seq, bytes } of records) yield rowAt(logKey(number, seq), bytes);
  }
  const range = { start: numberKey(number + 1) };
  for (const { key, value } of rowsOf<Buffer, Buffer>(tables.log, "", range)) {
    const row = rowOf(seqIn(key), value);
    for (let seq = row.first; seq <= row.last; seq++)
      yield rowAt(logKey(numberIn(key), seq), recordAt(row, seq));
  }
}

/**
 * Estimates the number of messages from the number of records in the first `CHUNK` rows, in
 * constant time.
 */
export function countRecords({ log }: Tables): number {
  const rows = [...log.getRange({ limit: CHUNK })];
  const records = rows.reduce((sum, { value }) => sum + countIn(value), 0);
  return Math.round((entriesOf(log) * records) / Math.max(1, rows.length));
}

export function entriesOf(table: { getStats(): object }): number {
  // LMDB's statistics of every table have this field.
  const { entryCount } = table.getStats() as { entryCount?: number };
  return entryCount ?? 0;
}

export interface SourceMessage {
  readonly message: Message;
  readonly isStream: boolean;
  readonly counted: number;
}

export function messageOf(record: Buffer): SourceMessage {
  const { message, isStream } = decodeRecord(record);
  const { counted, isCounted } = peekCounted(record);
  const hasDot = message.header.redDot && message.expireS === 0;
  // Readers expect `counted` to include the message itself. A record of version 1 stores no count,
  // so the message is added here.
  return {
    message,
    isStream,
    counted: hasDot && !isCounted ? counted + 1 : counted,
  };
}

export function edgesOf(
  tables: Tables,
  number: number,
): readonly [oldestAtMs: number, newest: MessageHead] | undefined {
  const logRows = new LogRows(tables);
  const [first] = logRows.scan(number, 1, MAX_SEQ);
  const [last] = logRows.scanReverse(number, 1, MAX_SEQ);
  if (first === undefined || last === undefined) return undefined;
  return [peekTimes(first.bytes).timestampMs, peekHead(last.bytes)];
}

/**
 * Decodes a row of the table `own`: a user, and the seq of the newest message that the user sent.
 */
export function ownOf({ key, value }: BinaryRow): {
  readonly uid: string;
  readonly seq: number;
} {
  return {
    uid: key.toString("utf8", NUMBER_BYTES),
    seq: value.readUIntBE(1, NUMBER_BYTES),
  };
}

export function uidOf(inbox: Buffer): string {
  return inbox.toString("utf8", 2);
}

export function copyOf(key: Buffer): {
  readonly uid: string;
  readonly seq: number;
} {
  return { uid: uidOf(key.subarray(0, -6)), seq: seqOfCopy(key) };
}

/** Returns true if this copy's inbox contains copies that users sent. */
export function hasUserCopies(
  { inboxSenders }: Pick<Tables, "inboxSenders">,
  copy: Buffer,
): boolean {
  const start = copy.subarray(0, -6);
  const end = Buffer.concat([start, Buffer.from([0xff])]);
  for (const _ of inboxSenders.getRange({ start, end, limit: 1 })) return true;
  return false;
}

interface BinaryRow {
  readonly key: Buffer;
  readonly value: Buffer;
}

/** Decoded entry of a dedupe table: the first message, whose result is returned for retries. */
export interface FirstRow {
  readonly fromUid: string;
  readonly clientMsgNo: string;
  /** Channel key of a command, or "" for a message, whose channel number is in the row's key. */
  readonly key: string;
  readonly messageId: number;
  /** 0 if the message was not stored or is a command. */
  readonly messageSeq: number;
  readonly timestampMs: number;
  /** Hash of the payload, or `undefined` if unknown. */
  readonly payloadHash: Buffer | undefined;
}

/** Decodes a dedupe entry. Returns `undefined` if the other table has a newer entry for the key. */
export function firstOf(
  { key, value }: BinaryRow,
  { dedupe: [even, odd] }: Tables,
  generation: number,
): FirstRow | undefined {
  const timestampMs = value.readDoubleLE(17);
  const sameKeyValue = (generation === 0 ? odd : even).get(key);
  if (sameKeyValue !== undefined && sameKeyValue.readDoubleLE(17) > timestampMs) return undefined;
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
    payloadHash: payloadHashIn(value),
  };
}

/** Number that takes the place of a channel number in the keys of commands' dedupe entries. */
export const COMMANDS = 0;
