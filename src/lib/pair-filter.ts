// A Bloom filter for pairs of strings, with the split-block layout: a lookup tests one bit in each
// of the eight words of a block. A block fits in a cache line.

import { charCode } from "./char-code.ts";

/**
 * Base-2 logarithm of the number of blocks, which take 8 MiB. With four million pairs, about one
 * lookup in a thousand is a false positive.
 */
const BLOCK_BITS = 18;
const WORDS_PER_BLOCK = 8;

/** Odd factors, one for each word of a block, that derive different bits from one hash. */
const SALTS = new Int32Array([
  0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31,
]);

export class PairFilter {
  #words: Int32Array | undefined;

  add(first: string, second: string): void {
    this.#words ??= new Int32Array(WORDS_PER_BLOCK << BLOCK_BITS);
    const { block, bits } = hashOf(first, second);
    for (let i = 0; i < WORDS_PER_BLOCK; i++)
      this.#words[block + i] = (this.#words[block + i] ?? 0) | mask(bits, i);
  }

  /** Returns false only if the pair was not added since the last `clear`. */
  mayHave(first: string, second: string): boolean {
    const words = this.#words;
    if (words === undefined) return false;
    const { block, bits } = hashOf(first, second);
    for (let i = 0; i < WORDS_PER_BLOCK; i++)
      if (((words[block + i] ?? 0) & mask(bits, i)) === 0) return false;
    return true;
  }

  clear(): void {
    this.#words = undefined;
  }
}

function mask(bits: number, word: number): number {
  return 1 << (Math.imul(bits, SALTS[word] ?? 1) >>> 27);
}

/**
 * A pair and its hash: the index of the first word of its block, and the number that selects the
 * bits.
 */
interface HashedPair {
  first: string | undefined;
  second: string;
  block: number;
  bits: number;
}

/**
 * The last result of `hashOf`. It is cached because a store looks up a pair in two filters and then
 * adds the pair to one of them.
 */
const hashed: HashedPair = { first: undefined, second: "", block: 0, bits: 0 };

/** Returns the hash of a pair, in an object that the next call overwrites. */
function hashOf(first: string, second: string): Readonly<HashedPair> {
  if (first === hashed.first && second === hashed.second) return hashed;
  let a = 0x811c9dc5;
  let b = 0x9e3779b9;
  for (let i = 0; i < first.length; i++) {
    const unit = charCode(first, i);
    a = Math.imul(a ^ unit, 0x01000193);
    b = Math.imul(b ^ unit, 0x85ebca6b);
  }
  a = Math.imul(a ^ 0x10000, 0x01000193); // a separator that is not a UTF-16 code unit
  for (let i = 0; i < second.length; i++) {
    const unit = charCode(second, i);
    a = Math.imul(a ^ unit, 0x01000193);
    b = Math.imul(b ^ unit, 0x85ebca6b);
  }
  a = Math.imul(a ^ (a >>> 15), 0x2c1b3c6d);
  b = Math.imul(b ^ (b >>> 16) ^ a, 0x297a2d39);
  hashed.first = first;
  hashed.second = second;
  hashed.block = (a >>> (32 - BLOCK_BITS)) * WORDS_PER_BLOCK;
  hashed.bits = b ^ (b >>> 15);
  return hashed;
}
