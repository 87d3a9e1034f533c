// Encodes the WAL frame of the current batch: space for the frame's header, followed by the records
// with their lengths. Frames follow each other in one buffer and are never overwritten, so a record
// may be kept as a slice of its frame. Owns the buffer. Hot path: callers encode into the buffer
// directly, without a closure.

import { FRAME_HEADER_BYTES } from "./segment.ts";

/** Size of a buffer. It holds many frames, because each buffer also needs an object on the heap. */
const BUFFER_BYTES = 512 * 1024;
const LENGTH_BYTES = 4;

export class Frame {
  #bytes = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  #start = 0;
  #end = 0;

  /** Buffer that contains the current frame. A call to `begin` or `reserve` may replace it. */
  get bytes(): Buffer {
    return this.#bytes;
  }

  begin(aboutBytes: number): void {
    this.#start = this.#end;
    if (this.#start + FRAME_HEADER_BYTES + aboutBytes > this.#bytes.length) this.#move(aboutBytes);
    this.#end = this.#start + FRAME_HEADER_BYTES;
  }

  /** Makes room for a record of up to `maxBytes`. Returns the offset of the record in `bytes`. */
  reserve(maxBytes: number): number {
    const needed = LENGTH_BYTES + maxBytes;
    if (this.#end + needed > this.#bytes.length) this.#move(2 * (this.#end - this.#start + needed));
    return this.#end + LENGTH_BYTES;
  }

  /** Copies the current frame to a new buffer. Records in the old buffer stay valid. */
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

  /** Returns `undefined` if the frame has no record. */
  finish(): Buffer | undefined {
    return this.#end === this.#start + FRAME_HEADER_BYTES
      ? undefined
      : this.#bytes.subarray(this.#start, this.#end);
  }
}
