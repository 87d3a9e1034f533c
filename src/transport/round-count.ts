// Counts items whose end is not always reported. An item counts until it is released, or until one
// to two rounds have passed.

export class RoundCount {
  #young = 0;
  #old = 0;
  #round = 0;

  get total(): number {
    return this.#young + this.#old;
  }

  /** Counts an item. The returned function releases the item and must be called at most once. */
  add(): () => void {
    const round = this.#round;
    this.#young += 1;
    return () => {
      if (round === this.#round) this.#young = decremented(this.#young);
      else if (round === this.#round - 1) this.#old = decremented(this.#old);
    };
  }

  /** Releases the oldest item, if there is any. */
  releaseOldest(): void {
    if (this.#old > 0) this.#old -= 1;
    else this.#young = decremented(this.#young);
  }

  nextRound(): void {
    this.#round += 1;
    this.#old = this.#young;
    this.#young = 0;
  }
}

function decremented(count: number): number {
  return count > 0 ? count - 1 : 0;
}
