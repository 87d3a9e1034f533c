// How a move stands, in the words of `/migrate/result` [spec: Migration result]. State: that, the tries of this process and of those before
// it, the move of which no further try can help and why, whether one was under way.

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
  #stuck: MoveStuck | undefined;
  #isAwaited = false;

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

  /** A move was seen that was under way: that Redis holds none any more does not mean that there is nothing to wait for. */
  get isAwaited(): boolean {
    return this.#isAwaited;
  }

  /** What Redis says of the move and of tries, this process' ones among them. */
  counted(record: MoveRecord | undefined): void {
    this.#isAwaited ||= record?.isAlone === true;
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
    if (problem instanceof MoveStuck) this.#stuck = problem;
  }

  /** Why no further try of this process at this move can help; undefined: one may. */
  stuckAt(record: MoveRecord | undefined): string | undefined {
    const stuck = this.#stuck;
    return record?.beganAtMs === stuck?.beganAtMs ? stuck?.message : undefined;
  }

  /** Moved earlier, or nothing to move. */
  migrated(record: MoveRecord | undefined): void {
    const { step = "", tries = 0 } = record ?? {};
    this.#state = stateOf("migrated", { step, tryCount: tries });
  }

  /** While nothing is moved here; `lastErr` of the last try, until the next one begins. */
  told(record: MoveRecord | undefined, lastErr: string | undefined): void {
    const { step = "", tries = this.#count() } = record ?? {};
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
