// Reads the WAL back after a restart, from the last checkpoint on. No state. Drops an unfinished last
// write (nobody was told it succeeded) and refuses to go on when anything before valid data is
// damaged or missing.

import { readFileSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { BrokerError } from "../../../broker/errors.ts";
import {
  hasFrameAfter,
  listSegments,
  readFrames,
  readSegmentHeader,
  SEGMENT_HEADER_BYTES,
  SEGMENT_VERSION,
  segmentName,
  type WalPosition,
} from "./segment.ts";

export interface Recovered {
  /** Number for the first new segment. */
  readonly nextSegment: number;
  /** Bytes of an unfinished write that were cut off. */
  readonly droppedBytes: number;
}

interface Scan {
  readonly path: string;
  readonly bytes: Buffer;
  readonly end: number;
  readonly salt: number | undefined;
}

/** What takes the records. */
interface RecoveryTarget {
  /** Called with each record, oldest first. */
  record(bytes: Buffer): void;
  /** Throws when another process has taken the folder; asked before a file is changed. */
  assertOwned(): void;
}

/** Replays the segments of `folder` from `position` on into `target`. Throws `internal` with an error message when the WAL is not whole. */
export function recover(
  folder: string,
  position: WalPosition,
  target: RecoveryTarget,
): Recovered {
  const indexes = listSegments(folder).filter((i) => i >= position.segment);
  assertNoGap(indexes, position, folder);
  const torn: Scan[] = [];
  for (const index of indexes) {
    const isFirst = index === position.segment;
    const from = isFirst ? position.offset : 0;
    let count = 0;
    const scan = replay(join(folder, segmentName(index)), from, (record) => {
      count++;
      target.record(record);
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
