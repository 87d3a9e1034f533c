// CRC-32 (IEEE 802.3). Uses the implementation of Node.js (20.15, 22.2 and later), or a table in
// earlier versions and for ASCII texts (`crc32OfText`).

import * as zlib from "node:zlib";

type Crc32 = (data: Uint8Array, seed?: number) => number;

const MAX_ASCII = 0x7f;

const table = new Uint32Array(256).map((_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

/** Returns the checksum without using zlib. Exported for a test. */
export function crc32ByTable(data: Uint8Array, seed = 0): number {
  let crc = ~seed;
  // The index is at most 255, so the table has an entry for it.
  for (const byte of data) crc = (table[(crc ^ byte) & 0xff] as number) ^ (crc >>> 8);
  return ~crc >>> 0;
}

/**
 * Returns the checksum of the text in UTF-8. For a short ASCII text, this is several times faster
 * than `crc32`, because the text is not encoded.
 */
export function crc32OfText(text: string): number {
  let crc = ~0;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit > MAX_ASCII) return crc32(Buffer.from(text));
    crc = (table[(crc ^ unit) & 0xff] as number) ^ (crc >>> 8);
  }
  return ~crc >>> 0;
}

// `undefined` in the oldest supported versions of Node.js, even though the type says otherwise.
const native = zlib.crc32 as Crc32 | undefined;

/** Returns the checksum of `data`. `seed` is the checksum of the preceding data, or a salt. */
export const crc32: Crc32 = native ?? crc32ByTable;
