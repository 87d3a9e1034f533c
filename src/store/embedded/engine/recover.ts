// Reads the WAL after a restart, starting at the last checkpoint. An unfinished or damaged last
// write is truncated. If valid data follows damaged data, acknowledged messages are lost, and the
// store refuses to start. It also refuses to start if the checkpoint's segment is missing or ends
// before the checkpoint. There is one exception: `durability = process` does not promise to survive
// a power loss. After a power loss in that mode, the valid data before the damage is used.

import { readFileSync, statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { BrokerError } from "../../../broker/errors.ts";
import {
  hasFrameAfter,
  listSegments,
  readFrames,
  readSegmentHeader,
  SEGMENT_HEADER_BYTES,
  SEGMENT_VERSION,
  type SegmentWriter,
  type StoredPosition,
  segmentName,
  UNKNOWN_BOOT,
} from "./segment.ts";

export interface Recovery {
  readonly nextSegment: number;
  readonly droppedBytes: number;
  readonly isDataLost: boolean;
}

interface RecoveryTarget {
  readonly boot: string;
  /** Called once for each record, oldest first. */
  record(bytes: Buffer): void;
  /** Called before a file is changed. Throws if another process owns the folder. */
  assertOwned(): void;
}

interface SegmentFile {
  readonly path: string;
  readonly bytes: Buffer;
  /** `undefined` if the file has no valid header, as after a crash during its creation. */
  readonly header:
    | Extract<ReturnType<typeof readSegmentHeader>, { readonly kind: "ok" }>
    | undefined;
}

interface Truncation {
  readonly segment: SegmentFile;
  readonly from: number;
}

export function recover(
  folder: string,
  position: StoredPosition,
  target: RecoveryTarget,
): Recovery {
  assertComplete(folder, position, target.boot);
  const indexes = listSegments(folder).filter((i) => i >= position.segment);
  const truncations: Truncation[] = [];
  let isDataLost = false;
  let expected = position.segment;
  let fault: BrokerError | undefined;
  let faulty: SegmentFile | undefined;
  for (const index of indexes) {
    const isAfterGap = index !== expected;
    if (isAfterGap) fault ??= missingError(join(folder, segmentName(expected)));
    expected = index + 1;
    const segment = readSegment(join(folder, segmentName(index)));
    const { path, bytes, header } = segment;
    const start = header === undefined ? 0 : SEGMENT_HEADER_BYTES;
    if (index === position.segment && position.offset > 0 && header === undefined) {
      if (bytes.length === position.offset) continue; // made by truncate -s, see `lostError`
      if (!mayHaveLostData(position, target.boot))
        throw lostError(path, "contains only zeros", position.offset);
    }
    let isFollowed = isAfterGap;
    if (fault === undefined) {
      const from = index === position.segment ? position.offset : 0;
      const end = replaySegment(segment, Math.max(from, start), target);
      if (end >= bytes.length && bytes.length >= from) continue;
      fault = damagedError(path, end);
      faulty = segment;
      // A file that is shorter than the position of the checkpoint is extended, so that the next
      // start accepts it.
      truncations.push({ segment, from: Math.max(end, from) });
      isFollowed ||= holdsFrame(segment, end + 1);
    } else {
      if (bytes.length > start) truncations.push({ segment, from: start });
      isFollowed ||= holdsFrame(segment, start);
    }
    if (!isFollowed) continue;
    for (const suspect of [faulty ?? segment, segment])
      if (!mayHaveLostData(suspect.header ?? position, target.boot)) throw fault;
    isDataLost = true;
  }
  // The newest segment is truncated first. If the process crashes between two truncations, the next
  // start still finds the first damage.
  for (const { segment, from } of truncations.toReversed()) {
    target.assertOwned(); // ownership may be lost, because a long replay writes no heartbeats
    truncateSync(segment.path, from); // not deleted: a missing number would look like a lost file
  }
  const { segment, offset } = position;
  return {
    nextSegment: Math.max(offset > 0 ? segment : segment - 1, ...indexes) + 1,
    droppedBytes: truncations.reduce(
      (sum, { segment, from }) => sum + Math.max(0, segment.bytes.length - from),
      0,
    ),
    isDataLost,
  };
}

function readSegment(path: string): SegmentFile {
  const bytes = readFileSync(path);
  const header = readSegmentHeader(bytes);
  if (header.kind === "other")
    throw new BrokerError("internal", {
      message: `The WAL file ${path} has format ${header.version}, but this build reads only format ${SEGMENT_VERSION}. Start the build that wrote it.`,
    });
  if (header.kind === "ok") return { path, bytes, header };
  // A file that was being created when the process ended contains at most its header, or only
  // zeros.
  const isUnfinished = bytes.length <= SEGMENT_HEADER_BYTES || bytes.every((byte) => byte === 0);
  if (!isUnfinished) throw damagedError(path, 0);
  return { path, bytes, header: undefined };
}

/**
 * Passes the records of the valid frames to the target. Returns the offset at which the valid
 * frames end.
 */
function replaySegment(
  { bytes, header }: SegmentFile,
  from: number,
  target: RecoveryTarget,
): number {
  if (header === undefined) return 0;
  // After a power loss the file may be shorter than the position that the database has stored.
  if (from >= bytes.length) return bytes.length;
  const at = { from, salt: header.salt };
  return readFrames(bytes, at, (record) => target.record(record));
}

function holdsFrame({ bytes, header }: SegmentFile, from: number): boolean {
  return header !== undefined && hasFrameAfter(bytes, from, header.salt);
}

function mayHaveLostData(writer: SegmentWriter, boot: string): boolean {
  if (writer.synced) return false;
  if (writer.boot === UNKNOWN_BOOT || boot === UNKNOWN_BOOT) return false;
  return writer.boot !== boot;
}

function assertComplete(folder: string, position: StoredPosition, boot: string): void {
  const { segment, offset } = position;
  // A clean stop stores the position at offset 0 of the next segment, which does not exist yet.
  if (offset === 0 || mayHaveLostData(position, boot)) return;
  const path = join(folder, segmentName(segment));
  const size = statSync(path, { throwIfNoEntry: false })?.size;
  if (size === undefined) throw lostError(path, "is missing", offset);
  if (size < offset) throw lostError(path, `has only ${size} bytes`, offset);
}

/**
 * Returns the error for lost data. The command in its message creates a file that `recover`
 * accepts.
 */
function lostError(path: string, fault: string, offset: number): BrokerError {
  return new BrokerError("internal", {
    message: `The WAL file ${path} ${fault}, but the database refers to its byte ${offset}. A start without it would lose the acknowledged messages that are only in this file, and would assign their numbers again. Restore the data folder from a backup, or run truncate -s ${offset} ${path} to accept the loss, and start again.`,
  });
}

function missingError(path: string): BrokerError {
  return new BrokerError("internal", {
    message: `The WAL file ${path} is missing, but later files exist. Ignoring this would lose acknowledged messages. Restore the file, or delete the later files and lose their messages.`,
  });
}

function damagedError(path: string, end: number): BrokerError {
  return new BrokerError("internal", {
    message: `The WAL file ${path} is damaged at byte ${end}, and valid data follows. Ignoring this would lose acknowledged messages. Restore the file from a backup, or truncate it to ${end} bytes and lose the messages that follow.`,
  });
}
