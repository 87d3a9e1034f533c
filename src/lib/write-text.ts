// Writes short strings into buffers faster than `Buffer.write`, which is a call into C++. No state.

import { charCode } from "./char-code.ts";

/** Maximum length that is written here. `Buffer.write` is faster for longer strings. */
const SHORT = 48;

/**
 * Writes `text` at `at` and returns the number of bytes written. `target` must have room for 3 bytes
 * per UTF-16 unit.
 */
export function writeText(target: Buffer, at: number, text: string): number {
  const size = text.length;
  if (size > SHORT) return target.write(text, at);
  for (let i = 0; i < size; i++) {
    const unit = charCode(text, i);
    if (unit > 0x7f) return target.write(text, at);
    target[at + i] = unit;
  }
  return size;
}
