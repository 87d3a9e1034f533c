// Shows what the bench does and how long it will take. Each step has an estimated duration. The
// estimate for the remaining steps is corrected by the time that the completed steps have taken.

const BAR_WIDTH = 24;

export class Progress {
  readonly #total: number;
  readonly #output: NodeJS.WriteStream;
  readonly #startedMs = performance.now();
  #done = 0;

  /** `totalSeconds` is the sum of the estimates of all steps. */
  constructor(totalSeconds: number, output: NodeJS.WriteStream) {
    this.#total = totalSeconds;
    this.#output = output;
  }

  /** Runs a step, and shows its name while it runs. */
  async step<T>(name: string, seconds: number, run: () => Promise<T>): Promise<T> {
    this.#show(name);
    const result = await run();
    this.#done += seconds;
    return result;
  }

  /** Removes the bar. */
  end(): void {
    if (this.#output.isTTY) this.#output.write("\r\u001b[K");
  }

  #show(name: string): void {
    const share = Math.min(1, this.#done / this.#total);
    const passedS = (performance.now() - this.#startedMs) / 1000;
    const pace = this.#done > 0 ? passedS / this.#done : 1;
    const left = clockText((this.#total - this.#done) * pace);
    const full = Math.round(share * BAR_WIDTH);
    const bar = "█".repeat(full) + "░".repeat(BAR_WIDTH - full);
    const text = `${bar} ${String(Math.round(share * 100)).padStart(3)} %  ${left} left  ${name}`;
    this.#output.write(this.#output.isTTY ? `\r\u001b[K${text}` : `${text}\n`);
  }
}

/** Returns a time as minutes and seconds, such as `2:05`. */
export function clockText(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
