// Seeded random values for tests: the same seed gives the same values on every machine. State: the
// generator's 32 bits.

/** From one to four UTF-8 bytes each, none of them a control character or `@ # &`. */
const ALPHABET = [..."abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_. éßЖ群中€😀"];

export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  /** An integer from 0 below `end`. */
  below(end: number): number {
    return Math.floor(this.#fraction() * end);
  }

  flip(): boolean {
    return this.#fraction() < 0.5;
  }

  pick<const T>(from: readonly T[]): T {
    const found = from[this.below(from.length)];
    if (found === undefined && !from.includes(found as T)) throw new Error("nothing to pick from");
    return found as T; // in range, so it is a T even when T includes undefined
  }

  maybe<T>(make: () => T): T | undefined {
    return this.flip() ? make() : undefined;
  }

  /**
   * An integer of up to `bits` bits (at most 53), every size of it as likely, the largest included.
   */
  uint(bits: number): number {
    const size = this.below(bits + 1);
    if (this.below(8) === 0) return 2 ** size - 1;
    return this.below(2 ** size);
  }

  /** Up to `maxLength` UTF-16 units. */
  text(maxLength: number): string {
    const isAscii = this.flip();
    const wanted = this.below(maxLength + 1);
    let text = "";
    while (text.length < wanted - 1) text += this.pick(isAscii ? ALPHABET.slice(0, 44) : ALPHABET);
    return text;
  }

  /** A valid id. */
  id(): string {
    return `i${this.text(127)}`;
  }

  bytes(length: number): Uint8Array {
    return Uint8Array.from({ length }, () => this.below(256));
  }

  list<T>(maxLength: number, make: () => T): T[] {
    return Array.from({ length: this.below(maxLength + 1) }, make);
  }

  /** mulberry32: small, and good enough to spread test values. */
  #fraction(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  }
}
