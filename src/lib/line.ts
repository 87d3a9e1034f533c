// A line for work that takes a place: so many steps at once, further ones wait in the order they came. State: the places taken and who waits.
// Has no bound of its own: who lets others stand in it bounds them.

export class Line {
  #free: number;
  #waiting: (() => void)[] | undefined;

  constructor(places: number) {
    this.#free = places;
  }

  /** Runs `step` when there is a place for it, at once where there is one now, and gives back what it gives. */
  async run<T>(step: () => Promise<T> | T): Promise<T> {
    if (this.#free > 0) this.#free -= 1;
    else await this.#turn();
    try {
      return await step();
    } finally {
      const next = this.#waiting?.shift();
      if (next === undefined) this.#free += 1;
      else next(); // has this one's place
    }
  }

  #turn(): Promise<void> {
    return new Promise((go) => {
      this.#waiting ??= [];
      this.#waiting.push(go);
    });
  }
}
