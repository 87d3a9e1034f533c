// The WAL frame of the batch under way: records with their lengths, behind room for the frame's
// header. Frames stand one behind another in a buffer and are never overwritten: who holds a record
// of one holds it there. Owns the buffer. Hot: a caller encodes into it, without a closure.

import { FRAME_HEADER_BYTES } from "./segment.ts";

/** A buffer for many frames: each needs an object on the heap. */
const BUFFER_BYTES = 512 * 1024;
const LENGTH_BYTES = 4;

export class Frame {
  #bytes = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  #start = 0;
  #end = 0;

  /** The buffer; another one after some calls of `begin` and `reserve`. */
  get bytes(): Buffer {
    return this.#bytes;
  }

  /** Begins the next frame, of about so many bytes. */
  begin(aboutBytes: number): void {
    this.#start = this.#end;
    if (this.#start + FRAME_HEADER_BYTES + aboutBytes > this.#bytes.length) this.#move(aboutBytes);
    this.#end = this.#start + FRAME_HEADER_BYTES;
  }

  /** Where the next record begins in `bytes`, with room for `maxBytes`. */
  reserve(maxBytes: number): number {
    const needed = LENGTH_BYTES + maxBytes;
    if (this.#end + needed > this.#bytes.length) this.#move(2 * (this.#end - this.#start + needed));
    return this.#end + LENGTH_BYTES;
  }

  /**
   * Goes on in a new buffer with what the frame has. Its records so far stand in the old one too.
   */
  #move(bytes: number): void {
    const size = Math.max(BUFFER_BYTES, FRAME_HEADER_BYTES + bytes);
    const moved = Buffer.allocUnsafeSlow(size);
    this.#end = this.#bytes.copy(moved, 0, this.#start, this.#end);
    this.#start = 0;
    this.#bytes = moved;
  }

  /** Adds the record that was encoded where `reserve` said, through `end`. */
  add(end: number): void {
    this.#bytes.writeUInt32LE(end - this.#end - LENGTH_BYTES, this.#end);
    this.#end = end;
  }

  /** All of it, the header left to fill in; undefined: nothing was added. */
  written(): Buffer | undefined {
    return this.#end === this.#start + FRAME_HEADER_BYTES
      ? undefined
      : this.#bytes.subarray(this.#start, this.#end);
  }
}
