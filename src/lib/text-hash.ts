// A 32-bit hash of strings (FNV-1a) that another process does not have: its seed is random, so that
// nobody can choose strings that meet in one place of a hash table. Pure except for the seed.

import { charCode } from "./char-code.ts";

const SEED = Math.trunc(Math.random() * 2 ** 32);
const PRIME = 0x01000193;
/** No unit of a string: where one ends. */
const END = 0x10000;

/** Hash of a string, or of several: each but the first takes the hash of those before it. */
export function hashText(text: string, hash = SEED): number {
  let mixed = hash;
  for (let i = 0; i < text.length; i++) mixed = Math.imul(mixed ^ charCode(text, i), PRIME);
  return Math.imul(mixed ^ END, PRIME);
}
