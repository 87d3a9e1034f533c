// Waiting for conditions instead of sleeping, for tests. State: the conditions waited for, tried
// whenever their owner says something changed.

interface Waiter {
  readonly holds: () => boolean;
  settle(error?: unknown): void;
}

export class Waiters {
  readonly #timeoutMs: number;
  readonly #waiting = new Set<Waiter>();

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  /**
   * Resolves once `holds()` is true, at once if it is already; rejects with what it throws, or
   * after the time-out, naming `what`.
   */
  until(what: string, holds: () => boolean): Promise<void> {
    const asked = new Error(`timed out waiting for ${what}`); // here, for a stack that shows who waits
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => waiter.settle(asked), this.#timeoutMs);
      const waiter: Waiter = {
        holds,
        settle: (error) => {
          clearTimeout(timer);
          this.#waiting.delete(waiter);
          if (error === undefined) resolve();
          else reject(error);
        },
      };
      this.#waiting.add(waiter);
      tryOne(waiter);
    });
  }

  /** Tries every condition again. */
  check(): void {
    for (const waiter of [...this.#waiting]) tryOne(waiter);
  }
}

function tryOne(waiter: Waiter): void {
  try {
    if (waiter.holds()) waiter.settle();
  } catch (error) {
    waiter.settle(error);
  }
}
