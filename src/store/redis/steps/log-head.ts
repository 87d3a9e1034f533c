// Keys and heads of logs in Redis: builds the key of a log's head, and encodes and decodes the
// fields of the head. `library/logs.lua` describes the keys. Keeps no state.

import { randomBytes } from "node:crypto";
import {
  formatOffset,
  isSameMediaType,
  LOG_START,
  type LogName,
  type LogOffset,
  logBucket,
  logNameOf,
  logNameText,
  type OpenFrame,
  TRAILER_BYTES,
} from "../../../broker/log-frame.ts";
import type { LogDraft, LogEnding, LogHead } from "../../../broker/log-ports.ts";
import type { Keys } from "../../../redis/keys.ts";
import { LOG_ENDINGS } from "../../../redis/wire.ts";

export const endingOf = (index: number): LogEnding | undefined => LOG_ENDINGS[index];
export const endingIndex = (ending: LogEnding | undefined): number => LOG_ENDINGS.indexOf(ending);

interface LogPlace {
  readonly bucket: number;
  /** Key prefix of the bucket. */
  readonly base: string;
  /** Name of the log, as it appears in its key names. */
  readonly text: string;
  /** Key of the log's head. */
  readonly key: string;
}

export function logPlace(keys: Keys, name: LogName): LogPlace {
  const bucket = logBucket(name);
  const base = keys.bucket("", bucket);
  const text = logNameText(name);
  return { bucket, base, text, key: `${base}logHead:${text}` };
}

/** A log's head, and the fields that only this store needs. */
export interface StoredLog {
  readonly head: LogHead;
  /** Time of the last use in Unix milliseconds. `undefined` if the log has no time to live. */
  readonly usedAtMs: number | undefined;
  /** Offset at which the log's own frames begin. */
  readonly start: LogOffset;
  /**
   * Settings with which the fork was created, see `originText`. `undefined` if the log is not a
   * fork.
   */
  readonly origin: string | undefined;
  /** The fork's reference to its source. `undefined` if the log is not a fork. */
  readonly reference: string | undefined;
}

const TAIL_POSITION_AT = 0;
const TAIL_CHECK_AT = 8;
const TAIL_RECORDS_AT = 12;

/**
 * Decodes the fields `i`, `t`, `n`, `c`, `w`, `x`, `u`, `b`, `o` and `r` of a head. Fields at the
 * end of this list may be missing.
 */
export function decodeStoredLog(fields: readonly (Buffer | null)[]): StoredLog {
  const [incarnation, contentType, tail, ending, ttlS, expiresAtMs, usedAtMs] = fields;
  const [start, origin, reference] = fields.slice(7);
  return {
    head: {
      incarnation: Number(incarnation),
      contentType: String(contentType),
      tail: tail == null ? LOG_START : offsetIn(tail),
      records: tail == null ? 0 : tail.readUInt32BE(TAIL_RECORDS_AT),
      closed: endingOf(Number(ending ?? 0)),
      ttlS: numberIn(ttlS),
      expiresAtMs: numberIn(expiresAtMs),
    },
    usedAtMs: numberIn(usedAtMs),
    start: start == null ? LOG_START : offsetIn(start),
    origin: origin == null ? undefined : String(origin),
    reference: reference == null ? undefined : String(reference),
  };
}

function numberIn(field: Buffer | null | undefined): number | undefined {
  return field == null ? undefined : Number(field);
}

/** Encodes a value of the field `n` or `b` of a head. */
export function encodeTail({ position, check }: LogOffset, records: number): Buffer {
  const bytes = Buffer.allocUnsafe(TAIL_RECORDS_AT + 4);
  bytes.writeDoubleBE(position, TAIL_POSITION_AT);
  bytes.writeUInt32BE(check, TAIL_CHECK_AT);
  bytes.writeUInt32BE(records, TAIL_RECORDS_AT);
  return bytes;
}

/** Returns a frame without its last two fields, which the operation adds. */
export function withoutTrailer({ bytes }: OpenFrame): Buffer {
  return bytes.subarray(0, bytes.length - TRAILER_BYTES);
}

/** Encodes a value of the hash `logProducers`. */
export function encodeProducer(producer: {
  readonly epoch: number;
  readonly number: number;
  readonly seenMs: number;
}): Buffer {
  const bytes = Buffer.allocUnsafe(24);
  bytes.writeDoubleBE(producer.epoch, 0);
  bytes.writeDoubleBE(producer.number, 8);
  bytes.writeDoubleBE(producer.seenMs, 16);
  return bytes;
}

function offsetIn(bytes: Buffer): LogOffset {
  return {
    position: bytes.readDoubleBE(TAIL_POSITION_AT),
    check: bytes.readUInt32BE(TAIL_CHECK_AT),
  };
}

/**
 * Encodes the settings that a draft requests for a fork. Equal settings yield equal strings.
 * Returns "" if the draft is not for a fork.
 */
export function originText({
  origin,
  ttlS,
  expiresAtMs,
}: Pick<LogDraft, "origin" | "ttlS" | "expiresAtMs">): string {
  if (origin === undefined) return "";
  const offset = origin.offset === undefined ? null : formatOffset(origin.offset);
  const { source, subOffset } = origin;
  return JSON.stringify([
    ...[logNameText(source), offset, subOffset],
    ...[ttlS ?? null, expiresAtMs ?? null],
  ]);
}

/** Returns true if a log has the configuration of a draft, see `LogCreation`. */
export function hasConfiguration({ head, origin }: StoredLog, draft: LogDraft): boolean {
  const { contentType } = draft;
  if ((head.closed === undefined) !== (draft.closed === undefined)) return false;
  if (originText(draft) !== (origin ?? "")) return false;
  if (contentType !== undefined && !isSameMediaType(contentType, head.contentType)) return false;
  // The requested settings of a fork are part of `origin`, which was compared above.
  if (draft.origin !== undefined) return true;
  return head.ttlS === draft.ttlS && head.expiresAtMs === draft.expiresAtMs;
}

/** Returns the text of a new reference. It contains the source, the fork, and a random id. */
export function newReference(source: LogName, fork: LogName): string {
  return referenceText(source, fork, randomBytes(8).toString("hex"));
}

export function referenceText(source: LogName, fork: LogName, id: string): string {
  return JSON.stringify([logNameText(source), logNameText(fork), id]);
}

export function namesIn(reference: string): { readonly source: LogName; readonly fork: LogName } {
  const [source = "", fork = ""] = JSON.parse(reference) as string[]; // written by `newReference`
  return { source: logNameOf(source), fork: logNameOf(fork) };
}
