// Random choices that a seed repeats exactly, for tests that try many interleavings.

export interface Random {
  /** Returns a number in [0, 1), uniformly distributed. */
  next(): number;
  /** Returns an integer in [0, below), uniformly distributed. */
  below(below: number): number;
  chance(probability: number): boolean;
  /** Returns a random item. Throws if the list is empty. */
  pick<T>(from: readonly T[]): T;
}

/**
 * Creates a generator: a Weyl sequence through a 32-bit mixer, which is good enough to choose
 * interleavings.
 */
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
    pick<T>(items: readonly T[]): T {
      const item = items[below(items.length)];
      if (item === undefined) throw new Error("Nothing to pick from");
      return item;
    },
  };
}
