// Waiting: a timer that is set anew or stopped, and a pause. State: the timer.

export class Timer {
  readonly #over: () => void;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `over` is called when the time is up. */
  constructor(over: () => void) {
    this.#over = over;
  }

  get isRunning(): boolean {
    return this.#timer !== undefined;
  }

  /** From now on, whatever was left. */
  start(ms: number): void {
    this.stop();
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#over();
    }, ms);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }
}

/** Keeps no process alive by itself. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer: { unref?(): unknown } = setTimeout(resolve, ms); // Node's has it
    timer.unref?.();
  });
}
