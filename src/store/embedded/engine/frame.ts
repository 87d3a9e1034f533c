// Encodes the WAL frame of the current batch: space for the frame's header, followed by the records
// with their lengths. Frames follow each other in one buffer and are never overwritten, so a record
// may be kept as a slice of its frame.

import { FRAME_HEADER_BYTES } from "./segment.ts";

/**
 * Minimum size of a buffer. Many frames share a buffer, because each buffer costs an object on the
 * heap.
 */
const BUFFER_BYTES = 512 * 1024;
const LENGTH_BYTES = 4;

export class Frame {
  #bytes = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  #start = 0;
  #end = 0;

  /** Returns the current buffer, which `begin` and `reserve` may replace. */
  get bytes(): Buffer {
    return this.#bytes;
  }

  begin(aboutBytes: number): void {
    this.#start = this.#end;
    if (this.#start + FRAME_HEADER_BYTES + aboutBytes > this.#bytes.length) this.#move(aboutBytes);
    this.#end = this.#start + FRAME_HEADER_BYTES;
  }

  reserve(maxBytes: number): number {
    const needed = LENGTH_BYTES + maxBytes;
    if (this.#end + needed > this.#bytes.length) this.#move(2 * (this.#end - this.#start + needed));
    return this.#end + LENGTH_BYTES;
  }

  /** Moves the frame to a new buffer. Records in the old buffer stay valid. */
  #move(bytes: number): void {
    const size = Math.max(BUFFER_BYTES, FRAME_HEADER_BYTES + bytes);
    const buffer = Buffer.allocUnsafeSlow(size);
    this.#end = this.#bytes.copy(buffer, 0, this.#start, this.#end);
    this.#start = 0;
    this.#bytes = buffer;
  }

  add(end: number): void {
    this.#bytes.writeUInt32LE(end - this.#end - LENGTH_BYTES, this.#end);
    this.#end = end;
  }

  finish(): Buffer | undefined {
    return this.#end === this.#start + FRAME_HEADER_BYTES
      ? undefined
      : this.#bytes.subarray(this.#start, this.#end);
  }
}
