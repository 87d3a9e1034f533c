// A 32-bit hash of strings (FNV-1a) with a random seed for each process, so that a client cannot
// choose strings that collide in a hash table.

import { charCode } from "./char-code.ts";

const SEED = Math.trunc(Math.random() * 2 ** 32);
const PRIME = 0x01000193;
/** Marks the end of a string. Not a UTF-16 code unit, so it differs from all characters. */
const END = 0x10000;

/** Returns the hash of a string. To hash several strings, pass the previous result as `hash`. */
export function hashText(text: string, hash = SEED): number {
  let mixed = hash;
  for (let i = 0; i < text.length; i++) mixed = Math.imul(mixed ^ charCode(text, i), PRIME);
  return Math.imul(mixed ^ END, PRIME);
}
