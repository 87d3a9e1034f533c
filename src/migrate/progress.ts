// The progress bar of a move: one line that is redrawn at a terminal, a line every two seconds
// elsewhere. State: the step and its start, the time of the last output.

import type { MoveProgress } from "./record.ts";

interface ProgressOutput {
  readonly isTTY: boolean;
  /** Columns of a terminal. */
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
  /** Rows that an earlier attempt had copied. */
  #startedAt = 0;
  #saidAtMs = 0;
  #isOpen = false;

  /** `nowMs` of any monotonic clock. */
  constructor(output: ProgressOutput, nowMs: () => number) {
    this.#output = output;
    this.#nowMs = nowMs;
  }

  show(progress: MoveProgress): void {
    const nowMs = this.#nowMs();
    const isNew = progress.step !== this.#step;
    if (isNew) {
      this.end();
      this.#step = progress.step;
      this.#startedAtMs = nowMs;
      this.#startedAt = progress.done;
    }
    const { isTTY } = this.#output;
    const isLast = progress.done >= progress.total;
    const waitMs = isTTY ? DRAW_MS : LINE_MS;
    if (!isNew && !isLast && nowMs - this.#saidAtMs < waitMs) return;
    this.#saidAtMs = nowMs;
    const words = this.#words(progress, nowMs);
    if (!isTTY) return this.#output.write(`${words}\n`);
    const line = `${bar(progress)} ${words}`;
    const width = Math.max(20, this.#output.columns - 1);
    this.#output.write(`\r\u001b[K${line.slice(0, width)}`);
    this.#isOpen = true;
  }

  /** Ends the line, before other output. */
  end(): void {
    if (this.#isOpen) this.#output.write("\n");
    this.#isOpen = false;
  }

  #words({ step, done, total }: MoveProgress, nowMs: number): string {
    const seconds = (nowMs - this.#startedAtMs) / 1000;
    const rate = seconds > 0 ? (done - this.#startedAt) / seconds : 0;
    const percent = Math.floor(100 * shareOf({ done, total }));
    const words = `${step} ${done}/${total} (${percent} %)`;
    if (rate <= 0 || done >= total) return words;
    const left = Math.ceil((total - done) / rate);
    return `${words}, ${Math.round(rate)}/s, ${duration(left)} left`;
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
