// Writes the MessagePack subset of the native protocol: nil, bool, unsigned integers, str, bin,
// array. State: one slab that finished frames are cut from. A slab's bytes are written once, so a
// frame may be kept. Browser-safe.

import { charCode } from "../../lib/char-code.ts";

const SLAB_BYTES = 16 * 1024;
/** For longer texts the platform's encoder is faster than a loop. */
const SHORT_TEXT = 32;

const NO_BYTES = new Uint8Array(0);
const utf8 = new TextEncoder();

/** The most bytes `text` takes, header included. */
export function textBytes(text: string): number {
  return text.length * 3 + 5;
}

/** One frame at a time: `begin`, values, `end`. */
export class FrameWriter {
  #bytes: Uint8Array;
  #start: number;
  #at: number;

  constructor() {
    this.#bytes = NO_BYTES;
    this.#start = 0;
    this.#at = 0;
  }

  /** Makes room for a frame of at most `maxBytes`; drops an unfinished one. */
  begin(maxBytes: number): void {
    if (maxBytes > this.#bytes.length - this.#at) {
      this.#bytes = new Uint8Array(maxBytes > SLAB_BYTES / 4 ? maxBytes : SLAB_BYTES);
      this.#at = 0;
    }
    this.#start = this.#at;
  }

  /** The finished frame. Throws RangeError when it exceeds the `maxBytes` of `begin`. */
  end(): Uint8Array {
    const bytes = this.#bytes;
    const start = this.#start;
    const end = this.#at;
    if (end > bytes.length) throw new RangeError("The frame is larger than announced");
    if (bytes.length <= SLAB_BYTES || end - start > bytes.length / 2)
      return bytes.subarray(start, end);
    // Texts are announced at three times their usual size, which a kept frame must not hold.
    this.#bytes = NO_BYTES;
    this.#at = 0;
    return bytes.slice(start, end);
  }

  /** Header of an array of `count` values, which must follow. */
  array(count: number): void {
    const bytes = this.#bytes;
    if (count < 16) {
      bytes[this.#at++] = 0x90 | count;
      return;
    }
    bytes[this.#at++] = count < 0x10000 ? 0xdc : 0xdd;
    this.#bigEndian(count, count < 0x10000 ? 2 : 4);
  }

  /**
   * Throws RangeError unless it is a safe integer from 0. Above 32 bits a uint64, never a float.
   */
  uint(value: number): void {
    const bytes = this.#bytes;
    if (value >>> 0 !== value) {
      this.#uint64(value);
    } else if (value < 0x80) {
      bytes[this.#at++] = value;
    } else if (value < 0x100) {
      bytes[this.#at++] = 0xcc;
      bytes[this.#at++] = value;
    } else if (value < 0x10000) {
      bytes[this.#at++] = 0xcd;
      this.#bigEndian(value, 2);
    } else {
      bytes[this.#at++] = 0xce;
      this.#bigEndian(value, 4);
    }
  }

  text(value: string): void {
    const length = value.length;
    if (length > SHORT_TEXT || !this.#asciiText(value, length)) this.#anyText(value);
  }

  optionalText(value: string | undefined): void {
    if (value === undefined) this.nil();
    else this.text(value);
  }

  bin(value: Uint8Array): void {
    const bytes = this.#bytes;
    const length = value.length;
    if (length < 0x100) {
      bytes[this.#at++] = 0xc4;
      bytes[this.#at++] = length;
    } else {
      bytes[this.#at++] = length < 0x10000 ? 0xc5 : 0xc6;
      this.#bigEndian(length, length < 0x10000 ? 2 : 4);
    }
    bytes.set(value, this.#at);
    this.#at += length;
  }

  bool(value: boolean): void {
    this.#bytes[this.#at++] = value ? 0xc3 : 0xc2;
  }

  nil(): void {
    this.#bytes[this.#at++] = 0xc0;
  }

  /** False, with nothing written, when a character is not ASCII: its header may be longer. */
  #asciiText(value: string, length: number): boolean {
    const bytes = this.#bytes;
    const start = this.#at;
    this.#textHeader(length);
    let at = this.#at;
    for (let i = 0; i < length; i++) {
      const unit = charCode(value, i);
      if (unit >= 0x80) {
        this.#at = start;
        return false;
      }
      bytes[at++] = unit;
    }
    this.#at = at;
    return true;
  }

  /** Assumes the header's size for ASCII; moves the text when it is another one. */
  #anyText(value: string): void {
    const bytes = this.#bytes;
    const start = this.#at;
    const assumed = start + textHeaderBytes(value.length);
    const { read, written } = utf8.encodeInto(value, bytes.subarray(assumed));
    const begins = start + textHeaderBytes(written);
    if (begins !== assumed) bytes.copyWithin(begins, assumed, assumed + written);
    this.#textHeader(written);
    this.#at += written;
    if (read < value.length) this.#at = Number.POSITIVE_INFINITY; // did not fit: `end` throws
  }

  #textHeader(length: number): void {
    const bytes = this.#bytes;
    if (length < 32) {
      bytes[this.#at++] = 0xa0 | length;
    } else if (length < 0x100) {
      bytes[this.#at++] = 0xd9;
      bytes[this.#at++] = length;
    } else {
      bytes[this.#at++] = length < 0x10000 ? 0xda : 0xdb;
      this.#bigEndian(length, length < 0x10000 ? 2 : 4);
    }
  }

  #uint64(value: number): void {
    if (!Number.isSafeInteger(value) || value < 0)
      throw new RangeError(`${value} is not an unsigned safe integer`);
    this.#bytes[this.#at++] = 0xcf;
    this.#bigEndian(Math.floor(value / 0x1_0000_0000), 4);
    this.#bigEndian(value >>> 0, 4);
  }

  #bigEndian(value: number, size: 2 | 4): void {
    const bytes = this.#bytes;
    if (size === 4) {
      bytes[this.#at++] = value >>> 24;
      bytes[this.#at++] = value >>> 16;
    }
    bytes[this.#at++] = value >>> 8;
    bytes[this.#at++] = value;
  }
}

function textHeaderBytes(length: number): number {
  if (length < 32) return 1;
  if (length < 0x100) return 2;
  return length < 0x10000 ? 3 : 5;
}

/** Most bytes of the numbers and headers of a frame or nested entry. */
export const FIXED_BYTES = 80;

export interface Head {
  readonly op: number;
  readonly ref: number;
  /** Number of fields after op and ref. */
  readonly fields: number;
}

/** Begins a frame. `bytes`: the most that texts, payloads and lists take. */
export function begin(writer: FrameWriter, head: Head, bytes = 0): void {
  writer.begin(FIXED_BYTES + bytes);
  writer.array(head.fields + 2);
  writer.uint(head.op);
  writer.uint(head.ref);
}
