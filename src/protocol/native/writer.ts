// Writes the MessagePack subset of the native protocol: nil, bool, unsigned integers, str, bin and
// array. Owns the slab that finished frames are cut from. Each byte of a slab is used for one frame
// only, so a frame may be kept. Works in browsers.

import { charCode } from "../../lib/char-code.ts";
import { encodeUtf8Into } from "../../lib/utf8.ts";

const SLAB_BYTES = 16 * 1024;
/**
 * Maximum number of characters that are encoded in a loop. For longer strings, the platform's
 * encoder is faster.
 */
const MAX_LOOP_LENGTH = 32;

const NO_BYTES = new Uint8Array(0);

export function textBytes(text: string): number {
  return text.length * 3 + 5;
}

/**
 * Writes one frame at a time. For each frame, the caller calls `begin`, writes the frame's values,
 * and calls `end`.
 */
export class FrameWriter {
  #bytes: Uint8Array;
  #start: number;
  #offset: number;

  constructor() {
    this.#bytes = NO_BYTES;
    this.#start = 0;
    this.#offset = 0;
  }

  /** Reserves memory for a frame of at most `maxBytes` bytes. Drops an unfinished frame. */
  begin(maxBytes: number): void {
    if (maxBytes > this.#bytes.length - this.#offset) {
      this.#bytes = new Uint8Array(maxBytes > SLAB_BYTES / 4 ? maxBytes : SLAB_BYTES);
      this.#offset = 0;
    }
    this.#start = this.#offset;
  }

  /** Returns the frame. Throws RangeError if it does not fit in the reserved memory. */
  end(): Uint8Array {
    const bytes = this.#bytes;
    const start = this.#start;
    const end = this.#offset;
    if (end > bytes.length)
      throw new RangeError("The frame is larger than the maxBytes of begin()");
    if (bytes.length <= SLAB_BYTES || end - start > bytes.length / 2)
      return bytes.subarray(start, end);
    // `begin` reserved three bytes per character, which is usually far more than needed. The frame
    // is copied, because a retained frame would keep all the reserved memory.
    this.#bytes = NO_BYTES;
    this.#offset = 0;
    return bytes.slice(start, end);
  }

  array(count: number): void {
    const bytes = this.#bytes;
    if (count < 16) {
      bytes[this.#offset++] = 0x90 | count;
      return;
    }
    bytes[this.#offset++] = count < 0x10000 ? 0xdc : 0xdd;
    this.#bigEndian(count, count < 0x10000 ? 2 : 4);
  }

  /**
   * Writes an unsigned integer. A number of more than 32 bits is written as a uint64, never as a
   * float.
   */
  uint(value: number): void {
    const bytes = this.#bytes;
    if (value >>> 0 !== value) {
      this.#uint64(value);
    } else if (value < 0x80) {
      bytes[this.#offset++] = value;
    } else if (value < 0x100) {
      bytes[this.#offset++] = 0xcc;
      bytes[this.#offset++] = value;
    } else if (value < 0x10000) {
      bytes[this.#offset++] = 0xcd;
      this.#bigEndian(value, 2);
    } else {
      bytes[this.#offset++] = 0xce;
      this.#bigEndian(value, 4);
    }
  }

  text(value: string): void {
    const length = value.length;
    if (length > MAX_LOOP_LENGTH || !this.#asciiText(value, length)) this.#anyText(value);
  }

  optionalText(value: string | undefined): void {
    if (value === undefined) this.nil();
    else this.text(value);
  }

  bin(value: Uint8Array): void {
    const bytes = this.#bytes;
    const length = value.length;
    if (length < 0x100) {
      bytes[this.#offset++] = 0xc4;
      bytes[this.#offset++] = length;
    } else {
      bytes[this.#offset++] = length < 0x10000 ? 0xc5 : 0xc6;
      this.#bigEndian(length, length < 0x10000 ? 2 : 4);
    }
    bytes.set(value, this.#offset);
    this.#offset += length;
  }

  bool(value: boolean): void {
    this.#bytes[this.#offset++] = value ? 0xc3 : 0xc2;
  }

  nil(): void {
    this.#bytes[this.#offset++] = 0xc0;
  }

  #asciiText(value: string, length: number): boolean {
    const bytes = this.#bytes;
    const start = this.#offset;
    this.#textHeader(length);
    let offset = this.#offset;
    for (let i = 0; i < length; i++) {
      const unit = charCode(value, i);
      if (unit >= 0x80) {
        this.#offset = start;
        return false;
      }
      bytes[offset++] = unit;
    }
    this.#offset = offset;
    return true;
  }

  /**
   * Writes any text. Leaves room for the header that the text would have if it were ASCII, and
   * moves the text if its header has a different size.
   */
  #anyText(value: string): void {
    const bytes = this.#bytes;
    const start = this.#offset;
    const assumedStart = start + textHeaderBytes(value.length);
    const { read, written } = encodeUtf8Into(value, bytes.subarray(assumedStart));
    const textStart = start + textHeaderBytes(written);
    if (textStart !== assumedStart)
      bytes.copyWithin(textStart, assumedStart, assumedStart + written);
    this.#textHeader(written);
    this.#offset += written;
    // the text did not fit, so `end` throws
    if (read < value.length) this.#offset = Number.POSITIVE_INFINITY;
  }

  #textHeader(length: number): void {
    const bytes = this.#bytes;
    if (length < 32) {
      bytes[this.#offset++] = 0xa0 | length;
    } else if (length < 0x100) {
      bytes[this.#offset++] = 0xd9;
      bytes[this.#offset++] = length;
    } else {
      bytes[this.#offset++] = length < 0x10000 ? 0xda : 0xdb;
      this.#bigEndian(length, length < 0x10000 ? 2 : 4);
    }
  }

  #uint64(value: number): void {
    if (!Number.isSafeInteger(value) || value < 0)
      throw new RangeError(`${value} is not an unsigned safe integer`);
    this.#bytes[this.#offset++] = 0xcf;
    this.#bigEndian(Math.floor(value / 0x1_0000_0000), 4);
    this.#bigEndian(value >>> 0, 4);
  }

  #bigEndian(value: number, size: 2 | 4): void {
    const bytes = this.#bytes;
    if (size === 4) {
      bytes[this.#offset++] = value >>> 24;
      bytes[this.#offset++] = value >>> 16;
    }
    bytes[this.#offset++] = value >>> 8;
    bytes[this.#offset++] = value;
  }
}

function textHeaderBytes(length: number): number {
  if (length < 32) return 1;
  if (length < 0x100) return 2;
  return length < 0x10000 ? 3 : 5;
}

/** Maximum total size in bytes of the numbers and headers in a frame or a nested record. */
export const FIXED_BYTES = 80;

export interface Head {
  readonly op: number;
  readonly ref: number;
  readonly fields: number;
}

/** Begins a frame. `bytes` is the maximum size of its strings, payloads and lists. */
export function begin(writer: FrameWriter, head: Head, bytes = 0): void {
  writer.begin(FIXED_BYTES + bytes);
  writer.array(head.fields + 2);
  writer.uint(head.op);
  writer.uint(head.ref);
}
