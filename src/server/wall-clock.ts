// The system clock, for the store's times and message ids. State: the last valid time. Never
// returns a time after LATEST_TIME_MS [decisions: A time is only a time].

import { LATEST_TIME_MS } from "../broker/model.ts";
import { StartError } from "./start-error.ts";

interface WallClockPorts {
  /** Called when the system clock begins to show a time after `LATEST_TIME_MS`. */
  readonly onInvalid: (timeMs: number) => void;
  readonly onValid: () => void;
}

export class WallClock {
  readonly #ports: WallClockPorts;
  #lastMs = 0;
  #lastAt = 0;
  #isInvalid = false;

  constructor(ports: WallClockPorts) {
    this.#ports = ports;
  }

  get isInvalid(): boolean {
    this.now();
    return this.#isInvalid;
  }

  /**
   * Returns the time in Unix milliseconds. While the system clock shows a time after
   * `LATEST_TIME_MS`, continues from the last valid time with the monotonic clock.
   */
  readonly now = (): number => {
    const timeMs = Date.now();
    if (timeMs > LATEST_TIME_MS) return this.#instead(timeMs);
    if (this.#isInvalid) {
      this.#isInvalid = false;
      this.#ports.onValid();
    }
    this.#lastMs = timeMs;
    this.#lastAt = performance.now();
    return timeMs;
  };

  #instead(timeMs: number): number {
    if (!this.#isInvalid) {
      this.#isInvalid = true;
      this.#ports.onInvalid(timeMs);
    }
    return Math.floor(this.#lastMs + performance.now() - this.#lastAt);
  }
}

export function assertClock(): void {
  const timeMs = Date.now();
  if (timeMs <= LATEST_TIME_MS) return;
  throw new StartError(
    `The clock of this machine shows ${new Date(timeMs).toISOString()}. A time after ${new Date(LATEST_TIME_MS).toISOString()} is not used for message ids. Set the clock, for example with NTP.`,
  );
}
