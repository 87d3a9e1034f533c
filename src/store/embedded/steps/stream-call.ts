// One call that changes streams, on its way through the queue. Owns its assignments and its answer. Must never answer before it is settled.

import { BrokerError } from "../../../broker/errors.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import type { MemtableRecord } from "../engine/memtable.ts";
import type { QueuedStep } from "./append-call.ts";
import {
  type StreamAssignmentParts,
  StreamAssignments,
} from "./stream-assignments.ts";

/** What a call places with. */
export type StreamCallParts = StreamAssignmentParts;

/** Decides what to do and returns the answer. Throws BrokerError when it is refused, having assigned nothing. */
export type Decision<Answer> = (assignments: StreamAssignments) => Answer;

export class StreamCall<Answer> implements QueuedStep {
  readonly #parts: StreamCallParts;
  readonly #decide: Decision<Answer>;
  readonly #resolve: (answer: Answer) => void;
  readonly reject: (error: BrokerError) => void;
  #assigned: StreamAssignments | undefined;
  #answer: { readonly value: Answer } | undefined;

  constructor(
    parts: StreamCallParts,
    decide: Decision<Answer>,
    done: {
      readonly resolve: (answer: Answer) => void;
      readonly reject: (error: BrokerError) => void;
    },
  ) {
    this.#parts = parts;
    this.#decide = decide;
    this.#resolve = done.resolve;
    this.reject = done.reject;
  }

  get record(): MemtableRecord | undefined {
    return this.#assigned?.record;
  }

  assign(nowMs: number): void {
    this.#assigned = new StreamAssignments(this.#parts, nowMs);
    try {
      this.#answer = { value: this.#decide(this.#assigned) };
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error;
      this.reject(error);
    }
  }

  settle(tell: (event: ClusterEvent) => void): void {
    this.#assigned?.settle(tell);
    if (this.#answer !== undefined) this.#resolve(this.#answer.value);
  }

  rollBack(): void {
    this.#assigned?.rollBack();
  }
}
