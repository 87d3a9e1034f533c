// Runs tasks at the end of a turn of the event loop. A task that is added in a callback runs after
// the callback. A task that is added in a promise continuation runs after all continuations that
// are due, so the replies to one batch of requests are written together.

import { withItem } from "../lib/short-list.ts";

export interface TurnEndTask {
  turnEnded(): void;
}

type Schedule = (run: () => void) => void;

const NO_TASKS: readonly TurnEndTask[] = [];

export class TurnEnd {
  readonly #schedule: Schedule;
  #tasks = NO_TASKS;

  constructor(schedule: Schedule = process.nextTick) {
    this.#schedule = schedule;
  }

  /** Schedules one call to `task.turnEnded()` per call to `add`. `turnEnded` must not throw. */
  add(task: TurnEndTask): void {
    if (this.#tasks.length === 0) this.#schedule(this.#run);
    this.#tasks = withItem(this.#tasks, task);
  }

  readonly #run = (): void => {
    const tasks = this.#tasks;
    this.#tasks = NO_TASKS;
    for (const task of tasks) task.turnEnded();
  };
}

/**
 * Calls `run` after the tasks of every TurnEnd that runs at the end of this turn. The first
 * `nextTick` waits for the promises of the turn, and the second for the tasks that these promises
 * have added.
 */
export function afterTurnEnds(run: () => void): void {
  queueMicrotask(() => process.nextTick(() => process.nextTick(run)));
}
