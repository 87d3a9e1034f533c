// A count of things whose end may not be reported. Each counts until it is released, and for one to
// two rounds at most.

export class RoundCount {
  #young = 0;
  #old = 0;
  #round = 0;

  get total(): number {
    return this.#young + this.#old;
  }

  /** Counts one more. The returned function stops counting it, and must be called once at most. */
  add(): () => void {
    const round = this.#round;
    this.#young += 1;
    return () => {
      if (round === this.#round) this.#young = decremented(this.#young);
      else if (round === this.#round - 1) this.#old = decremented(this.#old);
    };
  }

  /** Stops counting the oldest one, if any. */
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
