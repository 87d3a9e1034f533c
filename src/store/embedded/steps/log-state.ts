// The state of a log without its frames: how changes affect it, when it expires, and how it is
// stored. Also defines the WAL records of logs. State: `LogTerms` objects that logs share.
//
// A WAL record of a log. Numbers are little-endian.
//
//   version     u8       PLAIN_VERSION
//   kind        u8       LOG_RECORD
//   change      u8       STATE or APPEND
//   flags       u8       HAS_PRODUCER, HAS_ORDER, FORGETS; the upper 4 bits are the number of the
//                        ending in ENDINGS if the append closes the log
//   number      f64      number of the log
//   version     f64      version of the state after the change
//
//   STATE: the whole state, which replaces the previous state
//   fields      bytes    the list that `toFields` returns, as JSON, to the end of the record
//
//   APPEND: a frame to add after the existing frames, or the closing of the log, or both
//   timeMs      f64      time of the append
//   producer    string   id of the producer, if HAS_PRODUCER is set
//   epoch       f64      if HAS_PRODUCER is set
//   producerNo  f64      if HAS_PRODUCER is set
//   forgotten   string   id of the producer that was forgotten, if FORGETS is set
//   order       string   if HAS_ORDER is set
//   frame       bytes    to the end of the record; empty if the log is only closed
//
// A string is its length in bytes (u16), followed by its UTF-8 bytes.

import { randomBytes } from "node:crypto";
import { BrokerError } from "../../../broker/errors.ts";
import {
  type LogFrame,
  type LogName,
  type LogOffset,
  logNameOf,
  logNameText,
  recordCount,
} from "../../../broker/log-frame.ts";
import type { LogEnding, LogHead } from "../../../broker/log-ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { assertVersion, LOG_RECORD, PLAIN_VERSION } from "../engine/record.ts";

/**
 * Whether a log exists.
 *
 *     live     the log exists unless it has expired; appends are possible until it is closed
 *     deleted  only the forks of the log can be read
 *     removed  nothing of the log is left
 */
type LogStatus = "live" | "deleted" | "removed";

/** The log from which a fork inherits its first frames. */
export interface ForkPoint {
  /**
   * Number of the source. `COPIED` if the source is the stream of a channel: the fork then stores a
   * copy of the inherited frames, because the stream is removed with its message.
   */
  readonly number: number;
  readonly source: LogName;
  /** Offset and sub-offset with which the fork was created (see `LogOrigin`). */
  readonly offset: LogOffset | undefined;
  readonly subOffset: number;
  /** True if the fork was created with its own expiry, false if it has the expiry of its source. */
  readonly hasOwnExpiry: boolean;
  /** Position at which the fork's own frames begin, and the check of the frame before them. */
  readonly start: number;
  readonly startCheck: number;
}

/**
 * `ForkPoint.number` of a fork that stores copies of the inherited frames. No log has this number.
 */
export const COPIED = 0;

export function isCopy({ number }: ForkPoint): boolean {
  return number === COPIED;
}

/** Configuration with which a log was created. Logs may share one value (see `shareTerms`). */
export interface LogTerms {
  readonly contentType: string;
  readonly ttlS: number | undefined;
  readonly expiresAtMs: number | undefined;
  readonly origin: ForkPoint | undefined;
}

/**
 * State of a log. A value is immutable: each change to the log creates a new value. 32-bit numbers
 * are signed here, because V8 stores larger numbers as 16-byte objects, and a node keeps many
 * states in memory.
 */
export interface LogState {
  /**
   * Number of changes to the log so far. The replay uses it to skip changes that the database
   * already has.
   */
  readonly version: number;
  readonly status: LogStatus;
  readonly incarnation: number;
  readonly terms: LogTerms;
  /** Stored time of the last use, in Unix milliseconds. 0 if the log has no time to live. */
  readonly usedMs: number;
  readonly position: number;
  /** Check of the last frame, or the incarnation if the log has no frames. */
  readonly check: number;
  readonly records: number;
  readonly closed: LogEnding | undefined;
  /** `order` of the last append that had an `order`. */
  readonly order: string | undefined;
  readonly forks: number;
}

/** The newest request of a producer. */
export interface ProducerState {
  readonly epoch: number;
  readonly number: number;
  readonly seenMs: number;
}

/**
 * Multiple of a log's time to live after which the log expires, counted from its last stored use.
 */
const EXPIRY_WINDOWS = 1.25;
/**
 * A use without an append or a close is stored only if more than this fraction of the time to live
 * has passed since the last stored use.
 */
const STORED_USE = 0.25;

export function newIncarnation(): number {
  return randomBytes(4).readUInt32LE();
}

export function emptyState(terms: LogTerms, incarnation: number): LogState {
  return {
    ...{ version: 1, status: "live", incarnation: incarnation | 0, terms: shareTerms(terms) },
    ...{ usedMs: 0, position: 0, check: incarnation | 0, records: 0 },
    ...{ closed: undefined, order: undefined, forks: 0 },
  };
}

export function tailOf({ position, check }: LogState): LogOffset {
  return { position, check: position === 0 ? 0 : check >>> 0 };
}

/** Returns the check from which the check of the log's next frame is computed. */
export function checkBeforeNext({ check }: LogState): number {
  return check >>> 0;
}

export function incarnationOf({ incarnation }: LogState): number {
  return incarnation >>> 0;
}

/** Returns the position at which the log's own frames begin. */
export function startOf({ terms }: LogState): number {
  return terms.origin?.start ?? 0;
}

/**
 * Returns the check of the frame before the log's own frames, or the incarnation if no frame
 * precedes them.
 */
export function startCheckOf(state: LogState): number {
  return state.terms.origin?.startCheck ?? incarnationOf(state);
}

/** Returns the time at which the log expires, or `undefined` if it never expires. */
export function dueMs({ terms, usedMs }: LogState): number | undefined {
  const { ttlS, expiresAtMs } = terms;
  if (ttlS === undefined) return expiresAtMs;
  return Math.min(usedMs + EXPIRY_WINDOWS * 1000 * ttlS, Number.MAX_SAFE_INTEGER);
}

/** Current time on the two clocks that determine expiry. */
export interface LogTime {
  /** Wall-clock time in Unix milliseconds. Compared with the fixed time at which a log expires. */
  readonly wallMs: number;
  /** Unix milliseconds, unaffected by adjustments of the wall clock. Used for times to live. */
  readonly idleMs: number;
}

export function isExpired(state: LogState, { wallMs, idleMs }: LogTime): boolean {
  const due = dueMs(state);
  return due !== undefined && due <= (state.terms.ttlS === undefined ? wallMs : idleMs);
}

/** Returns true if a use of the log at this time must be stored. */
export function mustStoreUse({ terms, usedMs }: LogState, { idleMs }: LogTime): boolean {
  return terms.ttlS !== undefined && idleMs - usedMs > STORED_USE * 1000 * terms.ttlS;
}

export function headOf(state: LogState): LogHead {
  const { records, closed } = state;
  const { contentType, ttlS, expiresAtMs } = state.terms;
  const incarnation = incarnationOf(state);
  return { incarnation, contentType, tail: tailOf(state), records, closed, ttlS, expiresAtMs };
}

/** Returns the state after an append or a close. `frame` must be sealed (see `sealFrame`). */
export function stateAfter(
  state: LogState,
  frame: LogFrame | undefined,
  { timeMs, order, close }: Pick<AppendRecord, "timeMs" | "order" | "close">,
): LogState {
  const { incarnation, terms } = state;
  // The state is written field by field, because a spread would cost a microsecond per append.
  return {
    version: state.version + 1,
    status: state.status,
    incarnation,
    terms,
    usedMs: terms.ttlS === undefined ? 0 : timeMs,
    position: state.position + (frame?.bytes.length ?? 0),
    check: frame === undefined ? state.check : frame.check | 0,
    records: frame === undefined ? state.records : frame.first + recordCount(frame),
    closed: close ?? state.closed,
    order: order ?? state.order,
    forks: state.forks,
  };
}

const MAX_SHARED_TERMS = 1000;
const sharedTerms = new BoundedMap<string, LogTerms>(MAX_SHARED_TERMS);

/**
 * Returns the object that all logs with these terms share, to save memory. Terms of forks and terms
 * with a fixed expiry time are not shared.
 */
function shareTerms(terms: LogTerms): LogTerms {
  const { contentType, ttlS, expiresAtMs, origin } = terms;
  if (expiresAtMs !== undefined || origin !== undefined) return terms;
  const key = `${ttlS} ${contentType}`;
  const shared = sharedTerms.get(key);
  if (shared !== undefined) return shared;
  sharedTerms.set(key, terms);
  return terms;
}

// --- Stored states -------------------------------------------------------------------------------

const STATUSES: readonly LogStatus[] = ["live", "deleted", "removed"];
const ENDINGS: readonly (LogEnding | undefined)[] = [
  undefined,
  ...(["closed", "stopped", "cancelled", "interrupted"] as const),
];

/** Returns the name and the fields of the state in their stored form. */
export function toFields(text: string, state: LogState): readonly unknown[] {
  const { status, closed, order } = state;
  const { contentType, ttlS, expiresAtMs, origin } = state.terms;
  return [
    ...[text, state.version, STATUSES.indexOf(status), incarnationOf(state)],
    contentType,
    ...[ttlS ?? null, expiresAtMs ?? null, state.usedMs, state.position, checkBeforeNext(state)],
    ...[state.records, ENDINGS.indexOf(closed), order ?? null, state.forks],
    origin === undefined
      ? null
      : [
          ...[origin.number, logNameText(origin.source), origin.subOffset],
          ...[origin.hasOwnExpiry, origin.start, origin.startCheck],
          ...(origin.offset === undefined ? [] : [origin.offset.position, origin.offset.check]),
        ],
  ];
}

export function ofFields(fields: readonly unknown[]): {
  readonly name: LogName;
  readonly state: LogState;
} {
  const [name, version, status, incarnation, contentType, ttlS, ...others] = fields;
  const [expiresAtMs, usedMs, position, check, records, closed, order, forks, origin] = others;
  return {
    name: logNameOf(String(name)),
    state: {
      version: Number(version),
      status: STATUSES[Number(status)] ?? "removed",
      incarnation: Number(incarnation) | 0,
      terms: shareTerms({
        contentType: String(contentType),
        ttlS: numberOrNone(ttlS),
        expiresAtMs: numberOrNone(expiresAtMs),
        origin: Array.isArray(origin) ? forkPointOf(origin) : undefined,
      }),
      usedMs: Number(usedMs),
      position: Number(position),
      check: Number(check) | 0,
      records: Number(records),
      closed: ENDINGS[Number(closed)],
      order: order === null ? undefined : String(order),
      forks: Number(forks),
    },
  };
}

function forkPointOf(fields: readonly unknown[]): ForkPoint {
  const [number, source, subOffset, hasOwnExpiry, start, startCheck, ...offset] = fields;
  const [position, check] = offset;
  return {
    number: Number(number),
    source: logNameOf(String(source)),
    offset:
      position === undefined ? undefined : { position: Number(position), check: Number(check) },
    subOffset: Number(subOffset),
    hasOwnExpiry: hasOwnExpiry === true,
    start: Number(start),
    startCheck: Number(startCheck),
  };
}

function numberOrNone(field: unknown): number | undefined {
  return field === null ? undefined : Number(field);
}

// --- Records of the WAL --------------------------------------------------------------------------

const STATE = 1;
const APPEND = 2;
const HAS_PRODUCER = 1;
const HAS_ORDER = 2;
const FORGETS = 4;
const ENDING_SHIFT = 4;
const NUMBER_AT = 4;
const VERSION_AT = 12;
const HEADER_BYTES = 20;
const NUMBER_BYTES = 8;
const LENGTH_BYTES = 2;

export interface LogProducerChange extends ProducerState {
  readonly id: string;
  /** Id of the producer that was forgotten in favour of this producer. */
  readonly forgotten: string | undefined;
}

export interface AppendRecord {
  readonly timeMs: number;
  readonly producer: LogProducerChange | undefined;
  readonly order: string | undefined;
  /** Ending with which the log is closed after the frame. `undefined` if the log stays open. */
  readonly close: LogEnding | undefined;
  /** Empty if the log is only closed. */
  readonly frame: Uint8Array;
}

interface RecordPlace {
  readonly number: number;
  /** Version of the state after the change. */
  readonly version: number;
}

export type LogRecord = RecordPlace &
  (
    | { readonly kind: "state"; readonly name: LogName; readonly state: LogState }
    | ({ readonly kind: "append" } & AppendRecord)
  );

export function encodeState(text: string, state: LogState): Buffer {
  return Buffer.from(JSON.stringify(toFields(text, state)));
}

export function maxStateBytes(fields: Buffer): number {
  return HEADER_BYTES + fields.length;
}

/**
 * Writes a STATE record and returns the offset of its end. The target must have room for
 * `maxStateBytes` bytes.
 */
export function writeStateRecord(
  target: Buffer,
  at: number,
  record: RecordPlace & { readonly fields: Buffer },
): number {
  const start = writeHeader(target, at, { change: STATE, flags: 0 }, record);
  target.set(record.fields, start);
  return start + record.fields.length;
}

export function maxAppendBytes({ producer, order, frame }: AppendRecord): number {
  const units = (producer?.id.length ?? 0) + (producer?.forgotten?.length ?? 0);
  const texts = 3 * (units + (order?.length ?? 0)) + 3 * LENGTH_BYTES;
  return HEADER_BYTES + 3 * NUMBER_BYTES + texts + frame.length;
}

/**
 * Writes an APPEND record and returns the offset of its end. The target must have room for
 * `maxAppendBytes` bytes.
 */
export function writeAppendRecord(
  target: Buffer,
  at: number,
  record: AppendRecord & RecordPlace,
): number {
  const { timeMs, producer, order, close, frame } = record;
  const flags =
    (ENDINGS.indexOf(close) << ENDING_SHIFT) |
    (producer === undefined ? 0 : HAS_PRODUCER) |
    (order === undefined ? 0 : HAS_ORDER) |
    (producer?.forgotten === undefined ? 0 : FORGETS);
  let end = writeHeader(target, at, { change: APPEND, flags }, record);
  end = target.writeDoubleLE(timeMs, end);
  if (producer !== undefined) {
    end = writeString(target, end, producer.id);
    end = target.writeDoubleLE(producer.epoch, end);
    end = target.writeDoubleLE(producer.number, end);
    if (producer.forgotten !== undefined) end = writeString(target, end, producer.forgotten);
  }
  if (order !== undefined) end = writeString(target, end, order);
  target.set(frame, end);
  return end + frame.length;
}

/** Decodes a record. The frame of an append is a view of `bytes`, not a copy. */
export function decodeLogRecord(bytes: Buffer): LogRecord {
  assertVersion(bytes[0]);
  const number = bytes.readDoubleLE(NUMBER_AT);
  const version = bytes.readDoubleLE(VERSION_AT);
  const change = bytes[2];
  if (change === STATE) {
    // The fields were written by `encodeState`.
    const fields = JSON.parse(bytes.toString("utf8", HEADER_BYTES)) as readonly unknown[];
    return { kind: "state", number, version, ...ofFields(fields) };
  }
  if (change !== APPEND)
    throw new BrokerError("internal", {
      message: `The WAL contains a log change of the unknown type ${change}. Start the newer build that wrote it.`,
    });
  const flags = bytes[3] ?? 0;
  let at = HEADER_BYTES;
  const nextNumber = () => {
    at += NUMBER_BYTES;
    return bytes.readDoubleLE(at - NUMBER_BYTES);
  };
  const nextText = () => {
    const start = at + LENGTH_BYTES;
    at = start + bytes.readUInt16LE(at);
    return bytes.toString("utf8", start, at);
  };
  const timeMs = nextNumber();
  let producer: LogProducerChange | undefined;
  if (flags & HAS_PRODUCER) {
    const id = nextText();
    const epoch = nextNumber();
    const producerNumber = nextNumber();
    const forgotten = flags & FORGETS ? nextText() : undefined;
    producer = { id, epoch, number: producerNumber, seenMs: timeMs, forgotten };
  }
  const order = flags & HAS_ORDER ? nextText() : undefined;
  const close = ENDINGS[flags >>> ENDING_SHIFT];
  const frame = bytes.subarray(at);
  return { kind: "append", number, version, timeMs, producer, order, close, frame };
}

function writeHeader(
  target: Buffer,
  at: number,
  { change, flags }: { readonly change: number; readonly flags: number },
  { number, version }: RecordPlace,
): number {
  target[at] = PLAIN_VERSION;
  target[at + 1] = LOG_RECORD;
  target[at + 2] = change;
  target[at + 3] = flags;
  target.writeDoubleLE(number, at + NUMBER_AT);
  return target.writeDoubleLE(version, at + VERSION_AT);
}

function writeString(target: Buffer, at: number, text: string): number {
  const size = target.write(text, at + LENGTH_BYTES);
  target.writeUInt16LE(size, at);
  return at + LENGTH_BYTES + size;
}
