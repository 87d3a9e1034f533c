// Seeded random values for tests. The same seed produces the same values on every machine. Owns the
// 32-bit state of the generator.

/**
 * Characters of one to four UTF-8 bytes, without control characters or `@ # &`. The first 44 are
 * ASCII.
 */
const ALPHABET = [..."abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_. éßЖ群中€😀"];

export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  /** Returns an integer from 0 to `end` - 1. */
  below(end: number): number {
    return Math.floor(this.#fraction() * end);
  }

  flip(): boolean {
    return this.#fraction() < 0.5;
  }

  pick<const T>(from: readonly T[]): T {
    const item = from[this.below(from.length)];
    if (item === undefined && !from.includes(item as T))
      throw new Error("cannot pick from an empty array");
    return item as T; // the index is in range, so this is a T even if T includes undefined
  }

  maybe<T>(make: () => T): T | undefined {
    return this.flip() ? make() : undefined;
  }

  /**
   * Returns an integer of 0 to `bits` bits (at most 53). Every number of bits is equally likely,
   * and one time in eight the largest integer with that number of bits is returned.
   */
  uint(bits: number): number {
    const size = this.below(bits + 1);
    if (this.below(8) === 0) return 2 ** size - 1;
    return this.below(2 ** size);
  }

  /** Returns a string of at most `maxLength` UTF-16 code units. */
  text(maxLength: number): string {
    const isAscii = this.flip();
    const length = this.below(maxLength + 1);
    let text = "";
    while (text.length < length - 1) text += this.pick(isAscii ? ALPHABET.slice(0, 44) : ALPHABET);
    return text;
  }

  /** Returns a valid uid or channel id. */
  id(): string {
    return `i${this.text(127)}`;
  }

  bytes(length: number): Uint8Array {
    return Uint8Array.from({ length }, () => this.below(256));
  }

  list<T>(maxLength: number, make: () => T): T[] {
    return Array.from({ length: this.below(maxLength + 1) }, make);
  }

  /** Returns the next fraction from 0 to 1 of the generator mulberry32. */
  #fraction(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  }
}
