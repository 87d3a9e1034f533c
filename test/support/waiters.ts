// Lets tests wait for conditions instead of sleeping. Owns the conditions that are being waited for
// and evaluates them when the owner calls `check` after a change.

interface Waiter {
  readonly condition: () => boolean;
  settle(error?: unknown): void;
}

export class Waiters {
  readonly #timeoutMs: number;
  readonly #waiters = new Set<Waiter>();

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  /**
   * Resolves when `condition` returns true, which may be at once. Rejects with the error that
   * `condition` throws, or after the timeout with an error that contains the description.
   */
  async until(description: string, condition: () => boolean): Promise<void> {
    if (condition()) return;
    const timeout = new Error(`timed out waiting for ${description}`); // created here so that its stack shows the caller
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => waiter.settle(timeout), this.#timeoutMs);
      const waiter: Waiter = {
        condition: condition,
        settle: (error) => {
          clearTimeout(timer);
          this.#waiters.delete(waiter);
          if (error === undefined) resolve();
          else reject(error);
        },
      };
      this.#waiters.add(waiter);
    });
  }

  /** Evaluates every condition again. */
  check(): void {
    for (const waiter of [...this.#waiters]) evaluate(waiter);
  }
}

function evaluate(waiter: Waiter): void {
  try {
    if (waiter.condition()) waiter.settle();
  } catch (error) {
    waiter.settle(error);
  }
}
