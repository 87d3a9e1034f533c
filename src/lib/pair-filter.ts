// A Bloom filter of pairs of strings: says "never put in" for sure, or "perhaps". One cache line is
// touched per question (split-block layout: a block of eight words, one bit in each). State: the
// bits; they only ever grow more.

import { charCode } from "./char-code.ts";

/**
 * 2^18 blocks of 32 bytes: 8 MiB, resident as it is written to. Below a million pairs one answer
 * in a thousand is a needless "perhaps".
 */
const BLOCK_BITS = 18;
const WORDS_PER_BLOCK = 8;

/** Odd factors that take a different bit of the same hash for each word. */
const SALTS = new Int32Array([
  0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31,
]);

export class PairFilter {
  #words: Int32Array | undefined;
  /** The last pair's hashes: fields, because two numbers are not returned for free. */
  #block = 0;
  #bits = 0;

  add(first: string, second: string): void {
    this.#words ??= new Int32Array(WORDS_PER_BLOCK << BLOCK_BITS);
    this.#hash(first, second);
    for (let i = 0; i < WORDS_PER_BLOCK; i++) {
      const at = this.#block + i;
      this.#words[at] = (this.#words[at] ?? 0) | this.#mask(i);
    }
  }

  /** False: the pair was not added since the last `clear`. */
  mayHave(first: string, second: string): boolean {
    const words = this.#words;
    if (words === undefined) return false;
    this.#hash(first, second);
    for (let i = 0; i < WORDS_PER_BLOCK; i++)
      if (((words[this.#block + i] ?? 0) & this.#mask(i)) === 0) return false;
    return true;
  }

  clear(): void {
    this.#words = undefined;
  }

  #mask(word: number): number {
    return 1 << (Math.imul(this.#bits, SALTS[word] ?? 1) >>> 27);
  }

  #hash(first: string, second: string): void {
    let a = 0x811c9dc5;
    let b = 0x9e3779b9;
    for (let i = 0; i < first.length; i++) {
      const unit = charCode(first, i);
      a = Math.imul(a ^ unit, 0x01000193);
      b = Math.imul(b ^ unit, 0x85ebca6b);
    }
    a = Math.imul(a ^ 0x10000, 0x01000193); // no unit of a string: where the first ends
    for (let i = 0; i < second.length; i++) {
      const unit = charCode(second, i);
      a = Math.imul(a ^ unit, 0x01000193);
      b = Math.imul(b ^ unit, 0x85ebca6b);
    }
    a = Math.imul(a ^ (a >>> 15), 0x2c1b3c6d);
    this.#block = (a >>> (32 - BLOCK_BITS)) * WORDS_PER_BLOCK;
    b = Math.imul(b ^ (b >>> 16) ^ a, 0x297a2d39);
    this.#bits = b ^ (b >>> 15);
  }
}
