// One step for many callers: who calls while it runs shares the next run with all others who do. State: the run under way and the one to come.

export class CoalescedTask {
  readonly #step: () => Promise<void>;
  #running: Promise<void> | undefined;
  #next: Promise<void> | undefined;

  constructor(step: () => Promise<void>) {
    this.#step = step;
  }

  /** Settles as a run of the step does that begins after this call. */
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
