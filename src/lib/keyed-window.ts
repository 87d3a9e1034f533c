// Limits the total size of the tasks that run concurrently for each key. The tasks of a key start
// in order, and keys do not wait for each other. The size of a task is known only after it has
// started.

export interface Pass {
  readonly turn: Promise<void>;
  /** Sets the size of the task. Must be called at most once, after `turn` has resolved. */
  setSize(size: number): void;
  /** Ends the task. Must be called exactly once. If the task has not started, it is cancelled. */
  leave(): void;
}

interface TaskWindow {
  size: number;
  count: number;
  readonly waiting: Set<() => void>;
}

export class KeyedWindow {
  readonly #max: number;
  readonly #maxWaiting: number;
  /**
   * Assumed size of a task until its size is known. At most two such tasks of a key run at the same
   * time.
   */
  readonly #assumedSize: number;
  readonly #windows = new Map<string, TaskWindow>();

  /**
   * A task larger than `max` runs alone, but tasks that started before its size was known continue.
   */
  constructor(max: number, maxWaiting: number) {
    this.#max = max;
    this.#maxWaiting = maxWaiting;
    this.#assumedSize = max / 2;
  }

  /** Adds a task. Returns `undefined` if `maxWaiting` tasks for the key are waiting. */
  enter(key: string): Pass | undefined {
    const window = this.#windows.get(key) ?? newWindow();
    if (window.waiting.size >= this.#maxWaiting) return undefined;
    this.#windows.set(key, window);
    window.count += 1;
    let size = 0;
    const resize = (to: number) => {
      window.size += to - size;
      size = to;
    };
    let begin = () => {};
    const turn = new Promise<void>((resolve) => {
      begin = () => {
        resize(this.#assumedSize);
        resolve();
      };
    });
    window.waiting.add(begin);
    this.#begin(window);
    return {
      turn,
      setSize: (finalSize) => {
        resize(finalSize);
        this.#begin(window);
      },
      leave: () => {
        window.waiting.delete(begin);
        resize(0);
        window.count -= 1;
        this.#begin(window);
        if (window.count === 0) this.#windows.delete(key);
      },
    };
  }

  #begin(window: TaskWindow): void {
    for (const begin of window.waiting) {
      if (window.size >= this.#max) return;
      window.waiting.delete(begin);
      begin();
    }
  }
}

function newWindow(): TaskWindow {
  return { size: 0, count: 0, waiting: new Set() };
}
