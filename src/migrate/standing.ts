// How a move stands, in the words of `/migrate/result` [spec: Migration result]. State: that, the tries of this process and of those before
// it, and the move of which no further try can help.

import type { BrokerError } from "../broker/errors.ts";
import { MOVE_STEPS } from "../store/moved.ts";
import { MoveStuck } from "./attempt.ts";
import type { MoveRecord } from "./record.ts";

export interface MigrationState {
  readonly status: "running" | "completed" | "migrated" | "failed";
  readonly step: string;
  readonly lastErr: string | null;
  readonly tryCount: number;
}

const [FIRST_STEP] = MOVE_STEPS;

export class Standing {
  #state = stateOf("migrated");
  #tries = 0;
  #triesBefore = 0;
  /** When it began. */
  #stuckSinceMs: number | undefined;

  get state(): MigrationState {
    return this.#state;
  }

  /** Of this process. */
  get tries(): number {
    return this.#tries;
  }

  /** The first step is over in Redis: users, managers and tokens are there. */
  get hasPeople(): boolean {
    const { step } = this.#state;
    return step !== "" && step !== FIRST_STEP;
  }

  /** What Redis says of tries, this process' ones among them. */
  counted(record: MoveRecord | undefined): void {
    const before = (record?.tries ?? 0) - this.#tries;
    this.#triesBefore = Math.max(this.#triesBefore, before);
  }

  /** Another try; answers how many there were with it. */
  tried(): number {
    this.#tries += 1;
    return this.#count();
  }

  running(step = "", lastErr: string | null = null): void {
    this.#turn("running", { step, lastErr });
  }

  at(step: string): void {
    this.#state = { ...this.#state, step };
  }

  completed(): void {
    this.#turn("completed", { step: this.#state.step });
  }

  failed(problem: BrokerError): void {
    const { step } = this.#state;
    this.#turn("failed", { step, lastErr: problem.message });
    if (problem instanceof MoveStuck) this.#stuckSinceMs = problem.beganAtMs;
  }

  /** This process found that no further try at this move can help. */
  isStuckAt(record: MoveRecord | undefined): boolean {
    return record !== undefined && record.beganAtMs === this.#stuckSinceMs;
  }

  /** Moved earlier, or nothing to move. */
  migrated(record: MoveRecord | undefined): void {
    const { step = "", tries = 0 } = record ?? {};
    this.#state = stateOf("migrated", { step, tryCount: tries });
  }

  /** By another process; `lastErr` of its last try, until the next one begins. */
  told({ step, tries }: MoveRecord, lastErr: string | undefined): void {
    const status = lastErr === undefined ? "running" : "failed";
    const over = { step, lastErr: lastErr ?? null, tryCount: tries };
    this.#state = stateOf(status, over);
  }

  #turn(status: MigrationState["status"], over: Partial<MigrationState>): void {
    this.#state = stateOf(status, { ...over, tryCount: this.#count() });
  }

  #count(): number {
    return this.#triesBefore + this.#tries;
  }
}

function stateOf(
  status: MigrationState["status"],
  over: Partial<MigrationState> = {},
): MigrationState {
  return { status, step: "", lastErr: null, tryCount: 0, ...over };
}
