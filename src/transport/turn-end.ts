// Runs things once when the callback under way and all promises it settles are done. State: what is due. process.nextTick does just that:
// asked for inside a promise's continuation it waits for all the others, so that the answers to one batch leave together and at once.

/** Something with work left for the end of the turn. */
export interface TurnTask {
  turnEnded(): void;
}

export class TurnEnd {
  #due: TurnTask[] = [];

  /** `task.turnEnded()` runs after this turn's callbacks; once for each call of this method. It must not throw. */
  add(task: TurnTask): void {
    if (this.#due.length === 0) process.nextTick(() => this.#run());
    this.#due.push(task);
  }

  #run(): void {
    const due = this.#due;
    this.#due = [];
    for (const task of due) task.turnEnded();
  }
}
