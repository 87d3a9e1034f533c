// Encodes the WAL frame of the current batch: space for the frame's header, followed by the records
// with their lengths. Frames follow each other in one buffer and are never overwritten, so a record
// may be kept as a slice of its frame. Owns the buffer. Hot path: callers encode into the buffer
// directly, without a closure.

import { FRAME_HEADER_BYTES } from "./segment.ts";

/**
 * Size of a buffer. One buffer holds many frames, because each buffer also needs an object on the
 * heap.
 */
const BUFFER_BYTES = 512 * 1024;
const LENGTH_BYTES = 4;

/** Encoder of frames, one frame per batch. */
export class Frame {
  #bytes = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  #start = 0;
  #end = 0;

  /** The buffer. A call to `begin` or `reserve` may replace it. */
  get bytes(): Buffer {
    return this.#bytes;
  }

  /** Begins the next frame. `aboutBytes` is its approximate size. */
  begin(aboutBytes: number): void {
    this.#start = this.#end;
    if (this.#start + FRAME_HEADER_BYTES + aboutBytes > this.#bytes.length) this.#move(aboutBytes);
    this.#end = this.#start + FRAME_HEADER_BYTES;
  }

  /** Returns the offset of the next record in `bytes`, and makes room for `maxBytes` bytes. */
  reserve(maxBytes: number): number {
    const needed = LENGTH_BYTES + maxBytes;
    if (this.#end + needed > this.#bytes.length) this.#move(2 * (this.#end - this.#start + needed));
    return this.#end + LENGTH_BYTES;
  }

  /**
   * Replaces the buffer with a new one and copies the records of the current frame into it. The old
   * buffer also keeps these records, for callers that refer to it.
   */
  #move(bytes: number): void {
    const size = Math.max(BUFFER_BYTES, FRAME_HEADER_BYTES + bytes);
    const buffer = Buffer.allocUnsafeSlow(size);
    this.#end = this.#bytes.copy(buffer, 0, this.#start, this.#end);
    this.#start = 0;
    this.#bytes = buffer;
  }

  /** Adds the record that was encoded at the offset from `reserve` and that ends at `end`. */
  add(end: number): void {
    this.#bytes.writeUInt32LE(end - this.#end - LENGTH_BYTES, this.#end);
    this.#end = end;
  }

  /** Returns the frame with an empty header, `undefined` if it has no record. */
  finish(): Buffer | undefined {
    return this.#end === this.#start + FRAME_HEADER_BYTES
      ? undefined
      : this.#bytes.subarray(this.#start, this.#end);
  }
}
