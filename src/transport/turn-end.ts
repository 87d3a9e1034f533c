// Runs tasks after the current callback and all promises that it settles. A process.nextTick that
// is scheduled in the continuation of a promise runs after all other continuations, so the replies
// to one batch are written together.

export interface TurnTask {
  turnEnded(): void;
}

export class TurnEnd {
  #tasks: TurnTask[] = [];

  /** Schedules `task.turnEnded()`, once per call of `add`. `turnEnded` must not throw. */
  add(task: TurnTask): void {
    if (this.#tasks.length === 0) process.nextTick(() => this.#run());
    this.#tasks.push(task);
  }

  #run(): void {
    const tasks = this.#tasks;
    this.#tasks = [];
    for (const task of tasks) task.turnEnded();
  }
}
