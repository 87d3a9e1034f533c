// Brings the tail back after a restart: replays the WAL behind the last checkpoint. No state of its own.
// Drops an unfinished last write (nobody was told it succeeded) and refuses to go on when anything before valid data is damaged or missing.

import { readFileSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { BrokerError } from "../../broker/errors.ts";
import {
  hasFrameAfter,
  listSegments,
  readFrames,
  readSegmentHeader,
  SEGMENT_HEADER_BYTES,
  SEGMENT_VERSION,
  segmentName,
  type WalPosition,
} from "./engine/segment.ts";
import {
  CEILING_RECORD,
  decodeRecord,
  MESSAGE_RECORD,
  recordKind,
  STREAM_RECORD,
} from "./record.ts";
import type { StreamReplay } from "./stream-replay.ts";
import { type Tail, tailRecord } from "./tail.ts";

export interface Recovered {
  /** Number for the first new segment. */
  readonly nextSegment: number;
  /** The greatest message id in what was replayed. */
  readonly lastMessageId: number;
  /** Bytes of an unfinished write that were cut off. */
  readonly droppedBytes: number;
}

interface Scan {
  readonly path: string;
  readonly bytes: Buffer;
  readonly end: number;
  readonly salt: number | undefined;
}

/** What is brought back. */
export interface RecoveryTarget {
  readonly tail: Tail;
  readonly streams: Pick<StreamReplay, "message" | "event">;
  /** Throws when another process has taken the folder; asked before a file is changed. */
  assertOwned(): void;
}

/** Replays the segments of `folder` from `position` on into `target`. Throws `internal` with a sentence when it cannot be whole. */
export function recover(
  folder: string,
  position: WalPosition,
  target: RecoveryTarget,
): Recovered {
  const indexes = listSegments(folder).filter((i) => i >= position.segment);
  assertNoGap(indexes, position, folder);
  let lastMessageId = 0;
  const torn: Scan[] = [];
  for (const index of indexes) {
    const isFirst = index === position.segment;
    const from = isFirst ? position.offset : 0;
    let count = 0;
    const scan = replay(join(folder, segmentName(index)), from, (record) => {
      count++;
      lastMessageId = Math.max(lastMessageId, restore(record, target));
    });
    const [first] = torn;
    if (first !== undefined && count > 0) throw damaged(first);
    if (scan.end >= scan.bytes.length) continue;
    if (followsData(scan)) throw damaged(scan);
    torn.push(scan);
  }
  for (const scan of torn) {
    target.assertOwned(); // after a long replay without heartbeats
    cutOff(scan);
  }
  const { segment, offset } = position;
  return {
    nextSegment: Math.max(offset > 0 ? segment : segment - 1, ...indexes) + 1,
    lastMessageId,
    droppedBytes: torn.reduce((sum, t) => sum + t.bytes.length - t.end, 0),
  };
}

/** Reads one segment up to where its valid frames end. */
function replay(
  path: string,
  from: number,
  visit: (record: Buffer) => void,
): Scan {
  const bytes = readFileSync(path);
  const header = readSegmentHeader(bytes);
  if (header.kind === "newer")
    throw new BrokerError("internal", {
      message: `The journal file ${path} has format ${header.version}; this build reads up to ${SEGMENT_VERSION}. Start the newer build that wrote it`,
    });
  if (header.kind === "damaged") {
    // A file that was being created when the process ended has no more than its header, or nothing but zeros.
    const isUnborn =
      bytes.length <= SEGMENT_HEADER_BYTES || bytes.every((byte) => byte === 0);
    if (!isUnborn) throw damaged({ path, end: 0 });
    return { path, bytes, end: 0, salt: undefined };
  }
  const { salt } = header;
  const start = Math.max(from, SEGMENT_HEADER_BYTES);
  // After a power cut the file may be shorter than what the database already has of it.
  if (start >= bytes.length) return { path, bytes, end: bytes.length, salt };
  const end = readFrames(bytes, { from: start, salt }, visit);
  return { path, bytes, end, salt };
}

function followsData({ bytes, end, salt }: Scan): boolean {
  return salt !== undefined && hasFrameAfter(bytes, end + 1, salt);
}

function cutOff({ path, end }: Scan): void {
  truncateSync(path, end); // never removed: a missing number would look like a lost file
}

/** Puts one record back where it was; returns its message id. */
function restore(bytes: Buffer, { tail, streams }: RecoveryTarget): number {
  if (recordKind(bytes) === STREAM_RECORD) {
    streams.event(bytes);
    return 0;
  }
  const { kind, message, dedupe, counted, isStream } = decodeRecord(bytes);
  if (kind === CEILING_RECORD) return message.messageId;
  const channel = tail.channel(message.key);
  const before = { head: channel.head, counted: channel.headCounted };
  const record = tailRecord(channel, message, {
    remembered: dedupe,
    counted,
    bytes,
    start: 0,
    end: bytes.length,
  });
  if (kind === MESSAGE_RECORD) {
    const last = channel.log.at(-1)?.messageSeq;
    if (last !== undefined && message.messageSeq !== last + 1)
      throw new BrokerError("internal", {
        message: `The journal skips from ${last} to ${message.messageSeq} in channel ${message.key}`,
      });
  }
  tail.place(record);
  tail.settle(record);
  // After a power cut the database may be ahead of the WAL: a seq that was shown is never given again.
  if (before.head > channel.head) {
    channel.head = before.head;
    channel.headCounted = before.counted;
  }
  channel.assigned = channel.head;
  channel.counted = channel.headCounted;
  if (isStream) streams.message(channel, message);
  return message.messageId;
}

function assertNoGap(
  indexes: readonly number[],
  position: WalPosition,
  folder: string,
): void {
  indexes.forEach((index, i) => {
    const expected = i === 0 ? position.segment : (indexes[i - 1] ?? 0) + 1;
    if (index !== expected)
      throw new BrokerError("internal", {
        message: `The journal file ${join(folder, segmentName(expected))} is missing but later ones exist; acknowledged messages would be lost. Restore it, or delete the later files to give up what they hold`,
      });
  });
}

function damaged({ path, end }: Pick<Scan, "path" | "end">): BrokerError {
  return new BrokerError("internal", {
    message: `The journal file ${path} is damaged at byte ${end} and valid data follows; acknowledged messages would be lost. Restore the file from a copy, or cut it off at that byte to give up what follows`,
  });
}
