// Reads the MessagePack subset of the native protocol, one value at a time, and checks the type,
// range and bounds of each value. Owns one cursor per frame. Throws only FrameError. The error is
// `fatal` if the bytes are not one complete array in this subset. Otherwise, its code is
// `bad_request` or the code of the violated rule. Never recurses, and never allocates memory for
// bytes that are not in the frame. Works in browsers.

import type { ErrorCode } from "../../broker/errors.ts";
import { decodeUtf8 } from "../../lib/utf8.ts";
import { FrameError, type Ref } from "../protocol.ts";

/**
 * Maximum number of bytes that are decoded in a loop. For longer strings, the platform's decoder is
 * faster.
 */
const MAX_LOOP_BYTES = 32;
const NIL = 0xc0;

export class FrameReader {
  readonly #bytes: Uint8Array;
  #offset: number;
  #remaining: number;
  /** Ref of the request, or 0 until it has been read. Every FrameError contains it. */
  #ref: Ref;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#offset = 0;
    this.#remaining = 1;
    this.#ref = 0;
    const count = this.#arrayHeader(this.#token("frame"));
    if (count === undefined) throw this.broken("The frame must be a MessagePack array");
    this.#remaining = count;
  }

  set ref(ref: Ref) {
    this.#ref = ref;
  }

  /** Returns an error that refuses the request but does not close the connection. */
  refusal(code: ErrorCode, message: string): FrameError {
    return new FrameError(code, this.#ref, message);
  }

  /** Returns the error for bytes that violate this protocol. The connection must be closed. */
  broken(message: string): FrameError {
    return new FrameError("malformed_frame", this.#ref, message, true);
  }

  /** Skips the remaining fields, which a newer version may have added. */
  finish(): void {
    this.#skipRemaining();
    if (this.#offset !== this.#bytes.length)
      throw this.broken("The frame has bytes after its array");
  }

  /** Returns true if the next field is missing or nil, and skips a nil. */
  absent(): boolean {
    if (this.#remaining === 0) return true;
    if (this.#bytes[this.#offset] !== NIL) return false;
    this.#offset++;
    this.#remaining--;
    return true;
  }

  /** Reads an integer in any encoding, because some libraries encode large integers as floats. */
  uint(field: string, max = Number.MAX_SAFE_INTEGER): number {
    const token = this.#token(field);
    const value = token < 0x80 ? token : this.#number(token);
    if (value === undefined || !Number.isSafeInteger(value) || value < 0 || value > max)
      throw this.#mismatch(token, field, `an integer from 0 to ${max}`);
    return value;
  }

  bool(field: string): boolean {
    const token = this.#token(field);
    if (token !== 0xc2 && token !== 0xc3) throw this.#mismatch(token, field, "true or false");
    return token === 0xc3;
  }

  /**
   * Reads a string. A string of more than `maxLength` UTF-16 code units is rejected with `code`.
   */
  text(field: string, maxLength: number, code: ErrorCode = "bad_request"): string {
    const length = this.#textHeader(this.#token(field), field);
    const start = this.#advance(length);
    // a string of more than 3 bytes per permitted UTF-16 code unit is too long and need not be
    // decoded
    const text = length <= maxLength * 3 ? this.#utf8(start, field) : undefined;
    if (text === undefined || text.length > maxLength)
      throw this.refusal(code, `${field} exceeds ${maxLength} characters`);
    return text;
  }

  /** Returns a view into the frame. Throws `too_large` for more than `maxBytes` bytes. */
  bin(field: string, maxBytes: number): Uint8Array {
    const token = this.#token(field);
    if (token < 0xc4 || token > 0xc6) throw this.#mismatch(token, field, "binary");
    const length = this.#unsigned(1 << (token - 0xc4));
    const start = this.#advance(length);
    if (length > maxBytes) throw this.refusal("too_large", `${field} exceeds ${maxBytes} bytes`);
    const { buffer, byteOffset } = this.#bytes;
    return new Uint8Array(buffer, byteOffset + start, length);
  }

  /**
   * Reads an array. `readItem` must read one value. Throws `too_large` if there are more than `max`
   * values.
   */
  list<T>(field: string, max: number, readItem: () => T): T[] {
    const outerRemaining = this.#enter(field);
    if (this.#remaining > max) throw this.refusal("too_large", `${field} exceeds ${max} entries`);
    const items: T[] = [];
    while (this.#remaining > 0) items.push(readItem());
    this.#remaining = outerRemaining;
    return items;
  }

  /** Reads an array as a record. Fields that `read` does not read are skipped. */
  tuple<T>(field: string, read: () => T): T {
    const outerRemaining = this.#enter(field);
    const value = read();
    this.#skipRemaining();
    this.#remaining = outerRemaining;
    return value;
  }

  #enter(field: string): number {
    const token = this.#token(field);
    const count = this.#arrayHeader(token);
    if (count === undefined) throw this.#mismatch(token, field, "an array");
    const outerRemaining = this.#remaining;
    this.#remaining = count;
    return outerRemaining;
  }

  #token(field: string): number {
    if (this.#remaining === 0) throw this.refusal("bad_request", `${field} is missing`);
    this.#remaining--;
    const token = this.#bytes[this.#offset];
    if (token === undefined) throw this.#cutShort();
    this.#offset++;
    return token;
  }

  /**
   * Returns the error for a value of the wrong type. A type that the protocol does not use makes
   * the frame invalid.
   */
  #mismatch(token: number, field: string, expected: string): FrameError {
    return isForeign(token)
      ? this.#foreignType()
      : this.refusal("bad_request", `${field} must be ${expected}`);
  }

  #foreignType(): FrameError {
    return this.broken("Maps and extension types are not supported");
  }

  #cutShort(): FrameError {
    return this.broken("The frame is incomplete");
  }

  #advance(size: number): number {
    const start = this.#offset;
    if (size > this.#bytes.length - start) throw this.#cutShort();
    this.#offset = start + size;
    return start;
  }

  /** Reads a big-endian unsigned integer of `size` bytes, exact up to 2^53. */
  #unsigned(size: number): number {
    const start = this.#advance(size);
    const bytes = this.#bytes;
    let value = 0;
    for (let i = start; i < start + size; i++) value = value * 256 + (bytes[i] ?? 0);
    return value;
  }

  #number(token: number): number | undefined {
    if (token >= 0xcc && token <= 0xcf) return this.#unsigned(1 << (token - 0xcc));
    if (token >= 0xd0 && token <= 0xd3) {
      const size = 1 << (token - 0xd0);
      const value = this.#unsigned(size);
      // every negative number is rejected, so -1 stands for all of them
      return value < 2 ** (size * 8 - 1) ? value : -1;
    }
    if (token !== 0xca && token !== 0xcb) return undefined;
    const size = token === 0xca ? 4 : 8;
    const start = this.#bytes.byteOffset + this.#advance(size);
    const view = new DataView(this.#bytes.buffer, start, size);
    return size === 4 ? view.getFloat32(0) : view.getFloat64(0);
  }

  #textHeader(token: number, field: string): number {
    if (token >= 0xa0 && token <= 0xbf) return token & 31;
    if (token < 0xd9 || token > 0xdb) throw this.#mismatch(token, field, "a string");
    return this.#unsigned(1 << (token - 0xd9));
  }

  #utf8(start: number, field: string): string {
    const end = this.#offset;
    if (end - start <= MAX_LOOP_BYTES) {
      const text = asciiText(this.#bytes, start, end);
      if (text !== undefined) return text;
    }
    try {
      return decodeUtf8(this.#bytes.subarray(start, end));
    } catch {
      throw this.refusal("bad_request", `${field} must be valid UTF-8`);
    }
  }

  /** Returns the number of items in an array, or `undefined` if the value is not an array. */
  #arrayHeader(token: number): number | undefined {
    let count: number;
    if (token >= 0x90 && token <= 0x9f) count = token & 15;
    else if (token === 0xdc) count = this.#unsigned(2);
    else if (token === 0xdd) count = this.#unsigned(4);
    else return undefined;
    if (count > this.#bytes.length - this.#offset) throw this.#cutShort();
    return count;
  }

  #skipRemaining(): void {
    while (this.#remaining > 0) {
      const token = this.#token("field");
      if (token < 0x80) continue; // fast, because a frame may consist of small integers
      const count = this.#arrayHeader(token);
      if (count === undefined) this.#skipScalar(token);
      else this.#remaining += count;
    }
  }

  #skipScalar(token: number): void {
    if (token >= 0xe0 || token === NIL || token === 0xc2 || token === 0xc3) return;
    if (token >= 0xc4 && token <= 0xc6) this.#advance(this.#unsigned(1 << (token - 0xc4)));
    else if (token <= 0xbf || (token >= 0xd9 && token <= 0xdb))
      this.#advance(this.#textHeader(token, "field"));
    else if (this.#number(token) === undefined) throw this.#foreignType();
  }
}

/**
 * Returns true for types that the protocol does not use: a map, an extension type, and
 * MessagePack's unused byte.
 */
function isForeign(token: number): boolean {
  return (
    (token >= 0x80 && token <= 0x8f) ||
    token === 0xc1 ||
    (token >= 0xc7 && token <= 0xc9) ||
    (token >= 0xd4 && token <= 0xd8) ||
    token === 0xde ||
    token === 0xdf
  );
}

/**
 * Returns the text, or `undefined` if it is not ASCII. Reading eight bytes per step is three times
 * as fast as the platform's decoder.
 */
function asciiText(bytes: Uint8Array, start: number, end: number): string | undefined {
  let text = "";
  let offset = start;
  for (; offset + 8 <= end; offset += 8) {
    const a = bytes[offset] ?? 0x80;
    const b = bytes[offset + 1] ?? 0x80;
    const c = bytes[offset + 2] ?? 0x80;
    const d = bytes[offset + 3] ?? 0x80;
    const e = bytes[offset + 4] ?? 0x80;
    const f = bytes[offset + 5] ?? 0x80;
    const g = bytes[offset + 6] ?? 0x80;
    const h = bytes[offset + 7] ?? 0x80;
    if ((a | b | c | d | e | f | g | h) >= 0x80) return undefined;
    text += String.fromCharCode(a, b, c, d, e, f, g, h);
  }
  for (; offset < end; offset++) {
    const byte = bytes[offset] ?? 0x80;
    if (byte >= 0x80) return undefined;
    text += String.fromCharCode(byte);
  }
  return text;
}
