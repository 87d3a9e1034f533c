// Tasks that run at the end of the current iteration of the event loop, like the callbacks of
// `setImmediate`, or earlier in a long iteration (see `runOverdueTasks`). libuv may report the ends
// of thousands of sockets in one iteration, which takes 10 µs per socket. State: the scheduled
// tasks of the process.

/** Time after which `runOverdueTasks` runs a task. */
const MAX_WAIT_MS = 5;

const scheduled = new Set<TurnTask>();

/** A task that can be scheduled again and again. */
export class TurnTask {
  readonly #step: () => void;
  #immediate: NodeJS.Immediate | undefined;
  #sinceMs = 0;

  /** `step` must not throw. */
  constructor(step: () => void) {
    this.#step = step;
  }

  /** Schedules the step, unless it is already scheduled. */
  schedule(): void {
    if (this.#immediate !== undefined) return;
    this.#immediate = setImmediate(this.#run);
    this.#sinceMs = performance.now();
    scheduled.add(this);
  }

  cancel(): void {
    if (this.#immediate === undefined) return;
    clearImmediate(this.#immediate);
    this.#immediate = undefined;
    scheduled.delete(this);
  }

  /** Runs the step now if it has been scheduled for at least `MAX_WAIT_MS`. */
  runIfOverdue(nowMs: number): void {
    if (this.#immediate === undefined || nowMs - this.#sinceMs < MAX_WAIT_MS) return;
    clearImmediate(this.#immediate);
    this.#run();
  }

  readonly #run = (): void => {
    this.#immediate = undefined;
    scheduled.delete(this);
    this.#step();
  };
}

/**
 * Runs the tasks that have waited too long for the end of the iteration. Must be called after each
 * event of a kind that libuv may report thousands of times in one iteration.
 */
export function runOverdueTasks(): void {
  if (scheduled.size === 0) return;
  const nowMs = performance.now();
  for (const task of scheduled) task.runIfOverdue(nowMs);
}
