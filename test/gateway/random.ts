// Random choices that a seed repeats exactly, for tests that try many interleavings.

export interface Random {
  /** Uniform in [0, 1). */
  next(): number;
  /** Uniform integer in [0, below). */
  below(below: number): number;
  chance(probability: number): boolean;
  /** Throws on an empty list. */
  pick<T>(from: readonly T[]): T;
}

/** A Weyl sequence through a 32-bit mixer: plenty for choosing interleavings. */
export function seeded(seed: number): Random {
  let state = Math.imul(seed, 0x9e37_79b1) >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b_79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 0x1_0000_0000;
  };
  const below = (limit: number): number => Math.floor(next() * limit);
  return {
    next,
    below,
    chance: (probability) => next() < probability,
    pick<T>(from: readonly T[]): T {
      const found = from[below(from.length)];
      if (found === undefined) throw new Error("Nothing to pick from");
      return found;
    },
  };
}
