// Runs tasks after the current callback and all promises it settles. State: the tasks. A
// process.nextTick scheduled in a promise's continuation runs after all other continuations, so the
// answers to one batch leave together.

export interface TurnTask {
  turnEnded(): void;
}

export class TurnEnd {
  #due: TurnTask[] = [];

  /** Schedules `task.turnEnded()`, once per call. It must not throw. */
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
