// Runs a task for many callers. All callers that arrive during a run share the next run.

export class CoalescedTask {
  readonly #step: () => Promise<void>;
  #running: Promise<void> | undefined;
  #next: Promise<void> | undefined;

  constructor(step: () => Promise<void>) {
    this.#step = step;
  }

  /** Runs the task. Settles like the first run that starts during or after this call. */
  run(): Promise<void> {
    if (this.#running === undefined) return this.#start();
    this.#next ??= this.#running.then(ignore, ignore).then(() => {
      this.#next = undefined;
      return this.#start();
    });
    return this.#next;
  }

  #start(): Promise<void> {
    const running = this.#step().finally(() => {
      if (this.#running === running) this.#running = undefined;
    });
    this.#running = running;
    return running;
  }
}

function ignore(): void {}
