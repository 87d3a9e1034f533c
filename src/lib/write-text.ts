// Writes short strings into buffers, faster than `Buffer.write`, which calls C++. Keeps no state.

import { charCode } from "./char-code.ts";

/** Maximum length of a short string. `Buffer.write` is faster for longer strings. */
const SHORT = 48;

/**
 * Writes `text` at `at` and returns the number of bytes written. `target` must have room for 3
 * bytes per UTF-16 code unit.
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
