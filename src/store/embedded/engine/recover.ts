// Reads the WAL back after a restart, from the last checkpoint on. No state. Cuts off an unfinished
// last write, which was not acknowledged. Where data follows a damaged place, acknowledged messages
// are lost, and it refuses to start; except after a power loss with `durability = process`, which
// does not promise to survive one: it goes on with what is before the damaged place.

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
  UNKNOWN_BOOT,
  type WalPosition,
} from "./segment.ts";

export interface Recovered {
  /** Number for the first new segment. */
  readonly nextSegment: number;
  /** Bytes that were cut off. */
  readonly droppedBytes: number;
  /** They held acknowledged messages: the machine lost power. */
  readonly isLoss: boolean;
}

/** What takes the records. */
interface RecoveryTarget {
  /** Of the machine, now. */
  readonly boot: string;
  /** Called with each record, oldest first. */
  record(bytes: Buffer): void;
  /** Throws when another process has taken the folder; asked before a file is changed. */
  assertOwned(): void;
}

/** One file of the WAL. */
interface Segment {
  readonly path: string;
  readonly bytes: Buffer;
  /** Undefined: it was being created when the process ended, and holds nothing. */
  readonly header:
    | Extract<ReturnType<typeof readSegmentHeader>, { readonly kind: "ok" }>
    | undefined;
}

/** A segment that holds no good data from there on. */
interface Cut {
  readonly segment: Segment;
  readonly from: number;
}

/**
 * Replays the segments of `folder` from `position` on into `target`. Throws `internal`, with an
 * error message that says what to do, when acknowledged messages are lost.
 */
export function recover(folder: string, position: WalPosition, target: RecoveryTarget): Recovered {
  const indexes = listSegments(folder).filter((i) => i >= position.segment);
  const cuts: Cut[] = [];
  let isLoss = false;
  let expected = position.segment;
  /** What is wrong at the end of the good data, and the segment it is in, unless that is missing. */
  let fault: BrokerError | undefined;
  let faulty: Segment | undefined;
  for (const index of indexes) {
    const isAfterGap = index !== expected;
    if (isAfterGap) fault ??= missing(join(folder, segmentName(expected)));
    expected = index + 1;
    const segment = readSegment(join(folder, segmentName(index)));
    const { path, bytes, header } = segment;
    const start = header?.size ?? 0;
    let isFollowed = isAfterGap;
    if (fault === undefined) {
      const from = index === position.segment ? position.offset : 0;
      const end = replay(segment, Math.max(from, start), target);
      if (end >= bytes.length) continue;
      fault = damaged(path, end);
      faulty = segment;
      cuts.push({ segment, from: end });
      isFollowed ||= holdsFrame(segment, end + 1);
    } else {
      if (bytes.length > start) cuts.push({ segment, from: start });
      isFollowed ||= holdsFrame(segment, start);
    }
    if (!isFollowed) continue;
    for (const one of [faulty ?? segment, segment]) if (!mayLose(one, target.boot)) throw fault;
    isLoss = true;
  }
  for (const { segment, from } of cuts) {
    target.assertOwned(); // after a long replay without heartbeats
    truncateSync(segment.path, from); // never removed: a missing number would look like a lost file
  }
  const { segment, offset } = position;
  return {
    nextSegment: Math.max(offset > 0 ? segment : segment - 1, ...indexes) + 1,
    droppedBytes: cuts.reduce((sum, cut) => sum + cut.segment.bytes.length - cut.from, 0),
    isLoss,
  };
}

function readSegment(path: string): Segment {
  const bytes = readFileSync(path);
  const header = readSegmentHeader(bytes);
  if (header.kind === "newer")
    throw new BrokerError("internal", {
      message: `The journal file ${path} has format ${header.version}; this build reads up to ${SEGMENT_VERSION}. Start the newer build that wrote it`,
    });
  if (header.kind === "ok") return { path, bytes, header };
  // A file that was being created when the process ended has no more than its header, or nothing
  // but zeros.
  const isUnborn = bytes.length <= SEGMENT_HEADER_BYTES || bytes.every((byte) => byte === 0);
  if (!isUnborn) throw damaged(path, 0);
  return { path, bytes, header: undefined };
}

/** Returns where the valid frames from `from` on end. */
function replay({ bytes, header }: Segment, from: number, target: RecoveryTarget): number {
  if (header === undefined) return 0;
  // After a power loss the file may be shorter than what the database already has of it.
  if (from >= bytes.length) return bytes.length;
  const at = { from, salt: header.salt };
  return readFrames(bytes, at, (record) => target.record(record));
}

function holdsFrame({ bytes, header }: Segment, from: number): boolean {
  return header !== undefined && hasFrameAfter(bytes, from, header.salt);
}

/**
 * The segment was written without waiting for the disk, before the machine booted the last time.
 */
function mayLose({ header }: Segment, boot: string): boolean {
  if (header === undefined || header.synced) return false;
  if (header.boot === UNKNOWN_BOOT || boot === UNKNOWN_BOOT) return false;
  return header.boot !== boot;
}

function missing(path: string): BrokerError {
  return new BrokerError("internal", {
    message: `The journal file ${path} is missing but later ones exist; acknowledged messages would be lost. Restore it, or delete the later files to give up what they hold`,
  });
}

function damaged(path: string, end: number): BrokerError {
  return new BrokerError("internal", {
    message: `The journal file ${path} is damaged at byte ${end} and valid data follows; acknowledged messages would be lost. Restore the file from a copy, or cut it off at that byte to give up what follows`,
  });
}
