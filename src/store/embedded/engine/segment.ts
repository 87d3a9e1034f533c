// Format of the WAL's segment files. A segment is a header, followed by frames. Keeps no state. All
// numbers are little-endian.
//
//   header    magic         u32
//             version       u32
//             salt          u32        random for each segment
//             flags         u32        1 means that each frame was synced
//             boot id       16 bytes
//             store id      16 bytes   see store-id.ts
//             checksum      u32        CRC-32 of the preceding fields
//
//   frame     magic         u32
//             checksum      u32        CRC-32 of body length and body
//             body length   u32
//             body          bytes      records, each preceded by its length (u32)
//
// A frame is one write. Its checksum is seeded with the segment's salt. Without the salt, a user
// could send a payload that looks like a valid frame.

import { randomBytes } from "node:crypto";
import { readdirSync } from "node:fs";
import { crc32 } from "../../../lib/crc32.ts";

export const SEGMENT_VERSION = 3;
export const FRAME_HEADER_BYTES = 12;
export const STORE_ID_BYTES = 16;

const SYNCED = 1;
const BOOT_AT = 16;
const STORE_AT = 32;
const CRC_AT = STORE_AT + STORE_ID_BYTES;
const CRC_BYTES = 4;
export const SEGMENT_HEADER_BYTES = CRC_AT + CRC_BYTES;
const SEGMENT_MAGIC = 0x4c4a_444a; // "JDJL"
const FRAME_MAGIC = Buffer.from([0xf5, 0x4a, 0x44, 0xfa]); // not valid UTF-8

export interface WalPosition {
  readonly segment: number;
  readonly offset: number;
}

export function segmentName(index: number): string {
  return `${String(index).padStart(8, "0")}.log`;
}

export function isSegmentName(name: string): boolean {
  return /^\d{8,}\.log$/.test(name);
}

export interface StoredPosition extends WalPosition, SegmentWriter {}

export function listSegments(folder: string): number[] {
  return readdirSync(folder)
    .filter(isSegmentName)
    .map((name) => Number.parseInt(name, 10))
    .sort((a, b) => a - b);
}

export interface SegmentWriter {
  /** True if each frame was on the disk before it was acknowledged. */
  readonly synced: boolean;
  /** The machine's boot id (32 hex digits), or `UNKNOWN_BOOT` if the system has none. */
  readonly boot: string;
}

export const UNKNOWN_BOOT = "0".repeat(32);

export function newSegmentHeader(
  { synced, boot }: SegmentWriter,
  storeId: string,
): {
  readonly header: Buffer;
  readonly salt: number;
} {
  const salt = randomBytes(4).readUInt32LE();
  const header = Buffer.alloc(SEGMENT_HEADER_BYTES);
  header.writeUInt32LE(SEGMENT_MAGIC, 0);
  header.writeUInt32LE(SEGMENT_VERSION, 4);
  header.writeUInt32LE(salt, 8);
  header.writeUInt32LE(synced ? SYNCED : 0, 12);
  header.write(boot, BOOT_AT, "hex");
  header.write(storeId, STORE_AT, "hex");
  header.writeUInt32LE(crc32(header.subarray(0, CRC_AT)), CRC_AT);
  return { header, salt };
}

type SegmentHeader =
  | ({
      readonly kind: "ok";
      readonly salt: number;
      readonly storeId: string;
    } & SegmentWriter)
  | { readonly kind: "other"; readonly version: number }
  | { readonly kind: "damaged" };

export function readSegmentHeader(bytes: Buffer): SegmentHeader {
  if (bytes.length < SEGMENT_HEADER_BYTES || bytes.readUInt32LE(0) !== SEGMENT_MAGIC)
    return { kind: "damaged" };
  const version = bytes.readUInt32LE(4);
  if (version !== SEGMENT_VERSION) return { kind: "other", version };
  if (bytes.readUInt32LE(CRC_AT) !== crc32(bytes.subarray(0, CRC_AT))) return { kind: "damaged" };
  return {
    kind: "ok",
    salt: bytes.readUInt32LE(8),
    synced: (bytes.readUInt32LE(12) & SYNCED) !== 0,
    boot: bytes.toString("hex", BOOT_AT, STORE_AT),
    storeId: bytes.toString("hex", STORE_AT, CRC_AT),
  };
}

/** Fills in the header of a frame, whose body must be complete. */
export function sealFrame(frame: Buffer, salt: number): void {
  frame.set(FRAME_MAGIC, 0);
  frame.writeUInt32LE(frame.length - FRAME_HEADER_BYTES, 8);
  frame.writeUInt32LE(crc32(frame.subarray(8), salt), 4);
}

function frameEnd(bytes: Buffer, at: number, salt: number): number | undefined {
  const bodyAt = at + FRAME_HEADER_BYTES;
  if (bodyAt > bytes.length || bytes.compare(FRAME_MAGIC, 0, 4, at, at + 4) !== 0) return undefined;
  const end = bodyAt + bytes.readUInt32LE(at + 8);
  if (end > bytes.length) return undefined;
  const sum = crc32(bytes.subarray(at + 8, end), salt);
  return sum === bytes.readUInt32LE(at + 4) ? end : undefined;
}

/**
 * Calls `visit` with each record of the valid frames. Returns the offset at which the valid frames
 * end.
 */
export function readFrames(
  bytes: Buffer,
  at: { readonly from: number; readonly salt: number },
  visit: (record: Buffer) => void,
): number {
  let start = at.from;
  for (;;) {
    const end = frameEnd(bytes, start, at.salt);
    if (end === undefined) return start;
    let record = start + FRAME_HEADER_BYTES;
    while (record < end) {
      const next = record + 4 + bytes.readUInt32LE(record);
      visit(bytes.subarray(record + 4, next));
      record = next;
    }
    start = end;
  }
}

/**
 * Returns true if a valid frame begins at `from` or later. Invalid data before this frame is then
 * not an unfinished last write.
 */
export function hasFrameAfter(bytes: Buffer, from: number, salt: number): boolean {
  let at = bytes.indexOf(FRAME_MAGIC, from);
  while (at !== -1) {
    if (frameEnd(bytes, at, salt) !== undefined) return true;
    at = bytes.indexOf(FRAME_MAGIC, at + 1);
  }
  return false;
}
