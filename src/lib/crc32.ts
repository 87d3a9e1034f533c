// CRC-32 (IEEE 802.3), native where Node has it (20.15, 22.2 and later), else by table. No state
// but the table.

import * as zlib from "node:zlib";

type Crc32 = (data: Uint8Array, seed?: number) => number;

const table = new Uint32Array(256).map((_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

/** The table-driven form; exported so that both can be compared. */
export function crc32ByTable(data: Uint8Array, seed = 0): number {
  let crc = ~seed;
  for (const byte of data) crc = (table[(crc ^ byte) & 0xff] as number) ^ (crc >>> 8); // the index is below 256
  return ~crc >>> 0;
}

// The types claim it always exists; engines of the supported range say otherwise.
const native = zlib.crc32 as Crc32 | undefined;

/** Checksum of `data`, continued from `seed` (a former checksum, or any 32 bits as a salt). */
export const crc32: Crc32 = native ?? crc32ByTable;
