// Reads logs. The frames that a fork inherits are read from its source. Keeps no state.

import {
  CHECK_BYTES,
  frameSize,
  framesIn,
  LOG_START,
  type LogName,
  type LogOffset,
  lastCheck,
  nextCheck,
  TRAILER_BYTES,
  wholeFrames,
} from "../../../broker/log-frame.ts";
import { crc32 } from "../../../lib/crc32.ts";
import { READ_LOG } from "../operations.ts";
import type { RedisStorePorts } from "../ports.ts";
import { decodeStoredLog, logPlace, namesIn, type StoredLog } from "./log-head.ts";

/** Maximum number of bytes per read. Only a single larger frame may exceed it. */
const MAX_READ_BYTES = 65_536;
/**
 * Minimum number of bytes per read. A read of this size contains the length of the next frame, but
 * never two whole frames.
 */
const MIN_READ_BYTES = 16;
const NOTHING = Buffer.alloc(0);
const ABSENCES = new Map([
  [1, "missing"],
  [2, "deleted"],
] as const);

interface LogFrames {
  readonly bytes: Buffer;
  readonly next: LogOffset;
}

export interface LogReads {
  /**
   * Returns the log. With `isKept`, also returns a log that is deleted or expired if Redis still
   * stores it.
   */
  stored(name: LogName, isKept?: boolean): Promise<StoredLog | "missing" | "deleted">;
  /**
   * Returns the log and whole frames from the offset `from`: up to `maxBytes` bytes, but at least
   * one frame unless `from` is the tail. `frames` is `undefined` if `from` is `undefined` or is not
   * an offset of the log.
   */
  frames(
    name: LogName,
    range: { readonly from: LogOffset | undefined; readonly maxBytes: number },
    isKept?: boolean,
  ): Promise<
    { readonly log: StoredLog; readonly frames: LogFrames | undefined } | "missing" | "deleted"
  >;
}

export function createLogReads({
  link,
  clock,
  limits,
}: Pick<RedisStorePorts, "link" | "clock" | "limits">): LogReads {
  const retentionMs = limits.retentionS * 1000;

  /**
   * Returns the log, and up to `maxBytes` bytes of its own frames from `position`. Up to 4 bytes of
   * own frames before `position` come first.
   */
  async function read(
    name: LogName,
    { position, maxBytes, isKept }: { position: number; maxBytes: number; isKept: boolean },
  ): Promise<{ readonly log: StoredLog; readonly own: Buffer } | "missing" | "deleted"> {
    const { base, text, key } = logPlace(link.keys, name);
    const nowMs = clock();
    const pastMs = retentionMs === 0 ? -1 : nowMs - retentionMs;
    const args = [base, text, nowMs, position, maxBytes, isKept ? 1 : 0, pastMs];
    const reply = await link.callFunction(READ_LOG, [key], args);
    // See the header of `read_log` in `library/logs.lua`.
    const [verdict, fields, own] = reply as readonly [number, (Buffer | null)[], Buffer | null];
    const absence = ABSENCES.get(verdict as 1);
    if (absence !== undefined) return absence;
    return { log: decodeStoredLog(fields), own: own ?? NOTHING };
  }

  async function frames(
    name: LogName,
    { from, maxBytes }: { readonly from: LogOffset | undefined; readonly maxBytes: number },
    isKept = false,
  ): ReturnType<LogReads["frames"]> {
    const size = Math.max(Math.min(maxBytes, MAX_READ_BYTES), MIN_READ_BYTES);
    const position = from?.position ?? 0;
    const result = await read(name, { position, maxBytes: from === undefined ? 0 : size, isKept });
    if (typeof result === "string") return result;
    const { log, own } = result;
    const { tail } = log.head;
    if (from === undefined || from.position > tail.position) return { log, frames: undefined };
    if (from.position === tail.position) {
      const frames = from.check === tail.check ? { bytes: NOTHING, next: tail } : undefined;
      return { log, frames };
    }
    if (from.position < log.start.position)
      return { log, frames: await inherited(log, from, maxBytes) };
    if (!isAfterCheck(log, from, own)) return { log, frames: undefined };
    const lead = Math.min(from.position - log.start.position, CHECK_BYTES);
    const bytes = own.subarray(lead);
    const whole = bytes.subarray(0, wholeFrames(bytes));
    if (whole.length > 0) return { log, frames: framesAfter(log, from, whole) };
    // If the offset is inside a frame, `bytes` does not begin with the length of a frame, and
    // `firstSize` may have any value.
    const firstSize = frameSize(bytes, 0) ?? 0;
    if (firstSize <= bytes.length || from.position + firstSize > tail.position)
      return { log, frames: undefined };
    const larger = await read(name, { position, maxBytes: firstSize, isKept });
    if (typeof larger === "string") return larger;
    const isSame = isAfterCheck(larger.log, from, larger.own);
    const frame = larger.own.subarray(lead);
    return { log: larger.log, frames: isSame ? framesAfter(larger.log, from, frame) : undefined };
  }

  /** Reads inherited frames, up to the offset at which the fork's own frames begin. */
  async function inherited(
    { reference, start }: StoredLog,
    from: LogOffset,
    maxBytes: number,
  ): Promise<LogFrames | undefined> {
    if (reference === undefined) return undefined;
    const result = await frames(namesIn(reference).source, { from, maxBytes }, true);
    if (typeof result === "string" || result.frames === undefined) return undefined;
    const bytes = result.frames.bytes.subarray(0, start.position - from.position);
    return { bytes, next: after(from, bytes) };
  }

  return {
    async stored(name, isKept = false) {
      const result = await read(name, { position: 0, maxBytes: 0, isKept });
      return typeof result === "string" ? result : result.log;
    },
    frames,
  };
}

/**
 * Returns true if the offset belongs to the log, that is, if the offset's check equals the bytes
 * before the offset.
 */
function isAfterCheck({ start }: StoredLog, from: LogOffset, own: Buffer): boolean {
  if (from.position === start.position) return from.check === start.check;
  const isInside = from.position - start.position >= CHECK_BYTES && own.length >= CHECK_BYTES;
  return isInside && own.readUInt32LE(0) === from.check;
}

/**
 * Returns the frames that follow an offset. Returns `undefined` if the first frame does not
 * continue the offset's check. In that case, the offset is inside a frame, after bytes that happen
 * to look like a check.
 */
function framesAfter({ start }: StoredLog, from: LogOffset, bytes: Buffer): LogFrames | undefined {
  const frames = { bytes, next: after(from, bytes) };
  if (from.position === start.position) return frames;
  const size = frameSize(bytes, 0) ?? 0;
  const before = from.check;
  const crc = crc32(bytes.subarray(0, size - TRAILER_BYTES));
  const isNext = nextCheck(before, crc) === bytes.readUInt32LE(size - CHECK_BYTES);
  return isNext ? frames : undefined;
}

function after(from: LogOffset, bytes: Buffer): LogOffset {
  const position = from.position + bytes.length;
  if (position === 0) return LOG_START;
  if (bytes.length === 0) return from;
  return { position, check: lastCheck(bytes) };
}

/** Returns the first frame in `bytes`, and the offset after it. */
export function firstFrame({ bytes }: LogFrames, from: LogOffset) {
  for (const frame of framesIn(bytes)) return { frame, next: after(from, frame.bytes) };
  return undefined;
}
