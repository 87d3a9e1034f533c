// Shows a migration's progress. On a terminal, a bar is redrawn. Elsewhere, at most one new line is
// printed every two seconds within a step. Owns the current step, its start, and the time of the
// last output.

import type { MoveProgress } from "./record.ts";

interface ProgressOutput {
  readonly isTTY: boolean;
  readonly columns: number;
  write(text: string): void;
}

const BAR = 24;
const DRAW_MS = 100;
const LINE_MS = 2000;

export class Progress {
  readonly #output: ProgressOutput;
  readonly #nowMs: () => number;
  #step = "";
  #startedAtMs = 0;
  /** Number of rows of the step that were already processed when the step was first shown. */
  #doneAtStart = 0;
  #shownAtMs = 0;
  #isOpen = false;

  constructor(output: ProgressOutput, nowMs: () => number) {
    this.#output = output;
    this.#nowMs = nowMs;
  }

  /**
   * Shows the progress. Between the beginning and the end of a step, shows it at most once every
   * `DRAW_MS` on a terminal, and at most once every `LINE_MS` elsewhere.
   */
  show(progress: MoveProgress): void {
    const nowMs = this.#nowMs();
    const isNew = progress.step !== this.#step;
    if (isNew) {
      this.end();
      this.#step = progress.step;
      this.#startedAtMs = nowMs;
      this.#doneAtStart = progress.done;
    }
    const { isTTY } = this.#output;
    const isLast = progress.done >= progress.total;
    const waitMs = isTTY ? DRAW_MS : LINE_MS;
    if (!isNew && !isLast && nowMs - this.#shownAtMs < waitMs) return;
    this.#shownAtMs = nowMs;
    const text = this.#text(progress, nowMs);
    if (!isTTY) return this.#output.write(`${text}\n`);
    const line = `${bar(progress)} ${text}`;
    const width = Math.max(20, this.#output.columns - 1);
    this.#output.write(`\r\u001b[K${line.slice(0, width)}`);
    this.#isOpen = true;
  }

  /** Ends the line. Must be called before other output. */
  end(): void {
    if (this.#isOpen) this.#output.write("\n");
    this.#isOpen = false;
  }

  #text({ step, done, total }: MoveProgress, nowMs: number): string {
    const seconds = (nowMs - this.#startedAtMs) / 1000;
    const rate = seconds > 0 ? (done - this.#doneAtStart) / seconds : 0;
    const percent = Math.floor(100 * shareOf({ done, total }));
    const text = `${step} ${done}/${total} (${percent} %)`;
    if (rate <= 0 || done >= total) return text;
    const remainingS = Math.ceil((total - done) / rate);
    return `${text}, ${Math.round(rate)}/s, ${duration(remainingS)} left`;
  }
}

function shareOf({ done, total }: Omit<MoveProgress, "step">): number {
  return total === 0 ? 1 : Math.min(1, done / total);
}

function bar(progress: MoveProgress): string {
  const full = Math.floor(BAR * shareOf(progress));
  return `[${"#".repeat(full)}${".".repeat(BAR - full)}]`;
}

function duration(seconds: number): string {
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  return `${minutes} min ${seconds % 60} s`;
}
