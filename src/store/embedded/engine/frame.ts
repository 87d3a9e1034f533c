// The WAL frame of the batch under way: records with their lengths, behind room for the frame's
// header. Owns the reused buffer. Hot: a caller encodes into the buffer, without a closure.

import { FRAME_HEADER_BYTES } from "./segment.ts";

const FRAME_BYTES = 64 * 1024;
/** A buffer that grew beyond is not kept. */
const MAX_KEPT_BYTES = 8 * 1024 * 1024;
const LENGTH_BYTES = 4;

export class Frame {
  #bytes = Buffer.allocUnsafe(FRAME_BYTES);
  #end = FRAME_HEADER_BYTES;

  /** The buffer; another one after some calls of `reserve`. */
  get bytes(): Buffer {
    return this.#bytes;
  }

  /** Empties it. */
  begin(): void {
    if (this.#bytes.length > MAX_KEPT_BYTES)
      this.#bytes = Buffer.allocUnsafe(FRAME_BYTES);
    this.#end = FRAME_HEADER_BYTES;
  }

  /** Where the next record begins in `bytes`, with room for `maxBytes`. */
  reserve(maxBytes: number): number {
    const start = this.#end + LENGTH_BYTES;
    const size = start + maxBytes;
    if (size > this.#bytes.length) {
      const grown = Buffer.allocUnsafe(Math.max(size, this.#bytes.length * 2));
      this.#bytes.copy(grown, 0, 0, this.#end);
      this.#bytes = grown;
    }
    return start;
  }

  /** Adds the record that was encoded where `reserve` said, through `end`. */
  add(end: number): void {
    this.#bytes.writeUInt32LE(end - this.#end - LENGTH_BYTES, this.#end);
    this.#end = end;
  }

  /** All of it, the header left to fill in; undefined: nothing was added. Valid until `begin`. */
  written(): Buffer | undefined {
    return this.#end === FRAME_HEADER_BYTES
      ? undefined
      : this.#bytes.subarray(0, this.#end);
  }
}
