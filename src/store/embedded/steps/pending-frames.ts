// The committed frames of one log that are not in the database yet, one after the other in one
// buffer. With one object per frame, every object would survive until the next checkpoint, and the
// garbage collector would copy it twice.

import { CHECK_BYTES, frameSize } from "../../../broker/log-frame.ts";

/** One frame or several contiguous frames of a log. The bytes never change. */
export interface FrameRun {
  /** Position of the first frame. */
  readonly start: number;
  /** Check of the frame before the first frame, or the log's seed (see `nextCheck`). */
  readonly checkBefore: number;
  readonly bytes: Buffer;
}

/** Minimum size of a buffer with several frames, so that small frames do not need many buffers. */
const MIN_GROWN_BYTES = 1024;
/** Minimum distance in bytes between two elements of `#starts`. */
const START_DISTANCE = 4096;
const EMPTY = Buffer.alloc(0);

export class PendingFrames {
  /** The frames, followed by unused bytes. The bytes of the frames never change. */
  #buffer: Buffer = EMPTY;
  #size = 0;
  /** Position of the first frame, and the check before it (see `FrameRun`). */
  #position = 0;
  #checkBefore = 0;
  /**
   * Offsets in `#buffer` at which some of the frames begin. A search for a frame starts at one of
   * these offsets.
   */
  #starts: number[] | undefined;

  get bytes(): Buffer {
    return this.#buffer.subarray(0, this.#size);
  }

  /** Adds the frame that follows the last frame. */
  add({ start: position, checkBefore, bytes }: FrameRun): void {
    const start = this.#size;
    this.#size += bytes.length;
    if (start === 0) {
      this.#position = position;
      this.#checkBefore = checkBefore;
      this.#buffer = bytes;
      return;
    }
    if (this.#size > this.#buffer.length) this.#grow(start);
    this.#buffer.set(bytes, start);
    if (start - (this.#starts?.at(-1) ?? 0) < START_DISTANCE) return;
    this.#starts ??= [];
    this.#starts.push(start);
  }

  #grow(used: number): void {
    const size = Math.max(this.#size, 2 * this.#buffer.length, MIN_GROWN_BYTES);
    const buffer = Buffer.allocUnsafeSlow(size);
    buffer.set(this.#buffer.subarray(0, used));
    this.#buffer = buffer;
  }

  /**
   * Returns the run from the frame that contains `position` to the last frame, or `undefined` if no
   * frame contains the position.
   */
  runAt(position: number): FrameRun | undefined {
    const byte = position - this.#position;
    if (byte < 0 || byte >= this.#size) return undefined;
    const { bytes } = this;
    let start = this.#startBefore(byte);
    for (;;) {
      const next = start + (frameSize(bytes, start) ?? this.#size);
      if (next > byte) break;
      start = next;
    }
    return {
      start: this.#position + start,
      checkBefore: this.#checkBeforeByte(start),
      bytes: bytes.subarray(start),
    };
  }

  /** Returns the highest element of `#starts` that is at most `byte`, or 0 if there is none. */
  #startBefore(byte: number): number {
    const starts = this.#starts ?? [];
    let low = 0;
    let high = starts.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((starts[middle] ?? 0) > byte) high = middle;
      else low = middle + 1;
    }
    return starts[low - 1] ?? 0;
  }

  #checkBeforeByte(start: number): number {
    return start === 0 ? this.#checkBefore : this.#buffer.readUInt32LE(start - CHECK_BYTES);
  }

  /** Removes the oldest frames, whose total size is `size` bytes. */
  removeFirst(size: number): void {
    if (size === 0) return;
    this.#checkBefore = this.#checkBeforeByte(size);
    this.#position += size;
    const rest = this.bytes.subarray(size);
    this.#buffer = rest.length === 0 ? EMPTY : Buffer.from(rest);
    this.#size = rest.length;
    this.#starts = this.#starts?.filter((start) => start > size).map((start) => start - size);
  }
}
