// Runs things once at the end of the current loop turn. State: what is due, and whether the turn's end is already awaited.
// uWebSockets.js writes out published frames before Node's immediates run, so at the turn's end the buffers show them.

/** Something with work left for the end of the turn. */
export interface TurnTask {
  turnEnded(): void;
}

export class TurnEnd {
  #due: TurnTask[] = [];

  /** `task.turnEnded()` runs after this turn's callbacks; once for each call of this method. It must not throw. */
  add(task: TurnTask): void {
    if (this.#due.length === 0) setImmediate(() => this.#run());
    this.#due.push(task);
  }

  #run(): void {
    const due = this.#due;
    this.#due = [];
    for (const task of due) task.turnEnded();
  }
}
