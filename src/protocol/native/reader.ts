// Reads the MessagePack subset of the native protocol, one value at a time, checking type, range
// and bounds before use. State: one cursor per frame. Throws FrameError only: `fatal` when the
// bytes are not a MessagePack array, else `bad_request` or the code of the violated rule. Never
// recurses, never allocates for a length without its bytes. Browser-safe.

import type { ErrorCode } from "../../broker/errors.ts";
import { FrameError, type Ref } from "../protocol.ts";

/** For longer strings the platform's decoder (about 100 ns for any length) is faster. */
const SHORT_TEXT = 32;
const NIL = 0xc0;

/** Invalid UTF-8 is an error, not U+FFFD; a leading U+FEFF is an ordinary character. */
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class FrameReader {
  readonly #bytes: Uint8Array;
  #at: number;
  /** Unread values of the current array. */
  #left: number;
  /** Part of every error once it is known. */
  #ref: Ref;

  /** Opens `bytes` as one array. */
  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#at = 0;
    this.#left = 1;
    this.#ref = 0;
    const count = this.#arrayHeader(this.#token("frame"));
    if (count === undefined) throw this.broken("The frame is not an array");
    this.#left = count;
  }

  set ref(ref: Ref) {
    this.#ref = ref;
  }

  /** The error of a readable field that is not accepted: the connection continues. */
  refusal(code: ErrorCode, message: string): FrameError {
    return new FrameError(code, this.#ref, message);
  }

  /** The error of bytes that are not this protocol: the connection must end. */
  broken(message: string): FrameError {
    return new FrameError("malformed_frame", this.#ref, message, true);
  }

  /** Skips the fields of a newer version; the frame must end after them. */
  finish(): void {
    this.#skipRest();
    if (this.#at !== this.#bytes.length) throw this.broken("Bytes follow the frame");
  }

  /** Whether the next field is missing or nil; a nil is consumed. */
  absent(): boolean {
    if (this.#left === 0) return true;
    if (this.#bytes[this.#at] !== NIL) return false;
    this.#at++;
    this.#left--;
    return true;
  }

  /** An integer from 0 to `max` in any encoding: some libraries write large ones as floats. */
  uint(what: string, max = Number.MAX_SAFE_INTEGER): number {
    const token = this.#token(what);
    const value = token < 0x80 ? token : this.#number(token);
    if (value === undefined || !Number.isSafeInteger(value) || value < 0 || value > max)
      throw this.#mismatch(token, what, `an integer from 0 to ${max}`);
    return value;
  }

  bool(what: string): boolean {
    const token = this.#token(what);
    if (token !== 0xc2 && token !== 0xc3) throw this.#mismatch(token, what, "true or false");
    return token === 0xc3;
  }

  /** A string of at most `maxLength` UTF-16 units; `code` is thrown when it is longer. */
  text(what: string, maxLength: number, code: ErrorCode = "bad_request"): string {
    const length = this.#textHeader(this.#token(what), what);
    const start = this.#advance(length);
    // At most 3 bytes per UTF-16 unit: a longer text is refused before it is decoded.
    const text = length <= maxLength * 3 ? this.#utf8(start, what) : undefined;
    if (text === undefined || text.length > maxLength)
      throw this.refusal(code, `${what} exceeds ${maxLength} characters`);
    return text;
  }

  /** At most `maxBytes` bytes, as a view into the frame. Throws `too_large` for more. */
  bin(what: string, maxBytes: number): Uint8Array {
    const token = this.#token(what);
    if (token < 0xc4 || token > 0xc6) throw this.#mismatch(token, what, "binary");
    const length = this.#unsigned(1 << (token - 0xc4));
    const start = this.#advance(length);
    if (length > maxBytes) throw this.refusal("too_large", `${what} exceeds ${maxBytes} bytes`);
    const { buffer, byteOffset } = this.#bytes;
    return new Uint8Array(buffer, byteOffset + start, length);
  }

  /**
   * An array of at most `max` values; `readItem` must read exactly one. Throws `too_large` for
   * more.
   */
  list<T>(what: string, max: number, readItem: () => T): T[] {
    const outer = this.#enter(what);
    if (this.#left > max) throw this.refusal("too_large", `${what} exceeds ${max} entries`);
    const items: T[] = [];
    while (this.#left > 0) items.push(readItem());
    this.#left = outer;
    return items;
  }

  /** A nested array of fields; those that `read` does not read are skipped. */
  tuple<T>(what: string, read: () => T): T {
    const outer = this.#enter(what);
    const value = read();
    this.#skipRest();
    this.#left = outer;
    return value;
  }

  #enter(what: string): number {
    const token = this.#token(what);
    const count = this.#arrayHeader(token);
    if (count === undefined) throw this.#mismatch(token, what, "an array");
    const outer = this.#left;
    this.#left = count;
    return outer;
  }

  /** First byte of the next value of the current array. */
  #token(what: string): number {
    if (this.#left === 0) throw this.refusal("bad_request", `${what} is missing`);
    this.#left--;
    const token = this.#bytes[this.#at];
    if (token === undefined) throw this.#cutShort();
    this.#at++;
    return token;
  }

  /** The field has another type; a type outside the protocol makes the whole frame invalid. */
  #mismatch(token: number, what: string, expected: string): FrameError {
    return isForeign(token)
      ? this.#foreign()
      : this.refusal("bad_request", `${what} must be ${expected}`);
  }

  #foreign(): FrameError {
    return this.broken("Maps and extension types are not in the protocol");
  }

  #cutShort(): FrameError {
    return this.broken("The frame is cut short");
  }

  /** Moves over `size` bytes and returns where they start. */
  #advance(size: number): number {
    const start = this.#at;
    if (size > this.#bytes.length - start) throw this.#cutShort();
    this.#at = start + size;
    return start;
  }

  /** A big-endian unsigned integer of `size` bytes, exact up to 2^53. */
  #unsigned(size: number): number {
    const start = this.#advance(size);
    const bytes = this.#bytes;
    let value = 0;
    for (let i = start; i < start + size; i++) value = value * 256 + (bytes[i] ?? 0);
    return value;
  }

  /** The number that `token` starts; undefined for another type. */
  #number(token: number): number | undefined {
    if (token >= 0xcc && token <= 0xcf) return this.#unsigned(1 << (token - 0xcc));
    if (token >= 0xd0 && token <= 0xd3) {
      const size = 1 << (token - 0xd0);
      const value = this.#unsigned(size);
      return value < 2 ** (size * 8 - 1) ? value : -1; // no negative number is accepted
    }
    if (token !== 0xca && token !== 0xcb) return undefined;
    const size = token === 0xca ? 4 : 8;
    const start = this.#bytes.byteOffset + this.#advance(size);
    const view = new DataView(this.#bytes.buffer, start, size);
    return size === 4 ? view.getFloat32(0) : view.getFloat64(0);
  }

  #textHeader(token: number, what: string): number {
    if (token >= 0xa0 && token <= 0xbf) return token & 31;
    if (token < 0xd9 || token > 0xdb) throw this.#mismatch(token, what, "a string");
    return this.#unsigned(1 << (token - 0xd9));
  }

  /** The text from `start` to the cursor. */
  #utf8(start: number, what: string): string {
    const end = this.#at;
    if (end - start <= SHORT_TEXT) {
      const text = asciiText(this.#bytes, start, end);
      if (text !== undefined) return text;
    }
    try {
      return utf8.decode(this.#bytes.subarray(start, end));
    } catch {
      throw this.refusal("bad_request", `${what} is not UTF-8`);
    }
  }

  /**
   * Number of values; undefined when `token` does not start an array. Each takes at least a byte,
   * so a number above the remaining bytes is invalid.
   */
  #arrayHeader(token: number): number | undefined {
    let count: number;
    if (token >= 0x90 && token <= 0x9f) count = token & 15;
    else if (token === 0xdc) count = this.#unsigned(2);
    else if (token === 0xdd) count = this.#unsigned(4);
    else return undefined;
    if (count > this.#bytes.length - this.#at) throw this.#cutShort();
    return count;
  }

  #skipRest(): void {
    while (this.#left > 0) {
      const token = this.#token("field");
      const count = this.#arrayHeader(token);
      if (count === undefined) this.#skipScalar(token);
      else this.#left += count;
    }
  }

  #skipScalar(token: number): void {
    if (token < 0x80 || token >= 0xe0) return;
    if (token === NIL || token === 0xc2 || token === 0xc3) return;
    if (token >= 0xa0 && token <= 0xbf) this.#advance(token & 31);
    else if (token >= 0xc4 && token <= 0xc6) this.#advance(this.#unsigned(1 << (token - 0xc4)));
    else if (token >= 0xd9 && token <= 0xdb) this.#advance(this.#unsigned(1 << (token - 0xd9)));
    else if (this.#number(token) === undefined) throw this.#foreign();
  }
}

/** Maps, extension types and the byte MessagePack never uses. */
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
 * The ASCII text from `start` to `end`, both within `bytes`; undefined when a byte is not ASCII.
 * Eight bytes at a step take a third of the platform decoder's time for ids.
 */
function asciiText(bytes: Uint8Array, start: number, end: number): string | undefined {
  let text = "";
  let at = start;
  for (; at + 8 <= end; at += 8) {
    const a = bytes[at] ?? 0x80;
    const b = bytes[at + 1] ?? 0x80;
    const c = bytes[at + 2] ?? 0x80;
    const d = bytes[at + 3] ?? 0x80;
    const e = bytes[at + 4] ?? 0x80;
    const f = bytes[at + 5] ?? 0x80;
    const g = bytes[at + 6] ?? 0x80;
    const h = bytes[at + 7] ?? 0x80;
    if ((a | b | c | d | e | f | g | h) >= 0x80) return undefined;
    text += String.fromCharCode(a, b, c, d, e, f, g, h);
  }
  for (; at < end; at++) {
    const byte = bytes[at] ?? 0x80;
    if (byte >= 0x80) return undefined;
    text += String.fromCharCode(byte);
  }
  return text;
}
