// One call that changes streams, on its way through the queue. Owns its placements and its answer. Must never answer before it is settled.

import { BrokerError } from "../../broker/errors.ts";
import type { ClusterEvent } from "../../broker/ports.ts";
import type { QueuedStep } from "./call.ts";
import type { MemtableRecord } from "./memtable.ts";
import {
  type StreamPlacementParts,
  StreamPlacements,
} from "./stream-placements.ts";

/** What a call places with. */
export type StreamCallParts = StreamPlacementParts;

/** Decides what to do and returns the answer. Throws BrokerError when it is refused, having placed nothing. */
export type Decision<Answer> = (place: StreamPlacements) => Answer;

export class StreamCall<Answer> implements QueuedStep {
  readonly #parts: StreamCallParts;
  readonly #decide: Decision<Answer>;
  readonly #resolve: (answer: Answer) => void;
  readonly reject: (error: BrokerError) => void;
  #placed: StreamPlacements | undefined;
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
    return this.#placed?.record;
  }

  place(nowMs: number): void {
    this.#placed = new StreamPlacements(this.#parts, nowMs);
    try {
      this.#answer = { value: this.#decide(this.#placed) };
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error;
      this.reject(error);
    }
  }

  written(bytes: Buffer): void {
    this.#placed?.written(bytes);
  }

  settle(tell: (event: ClusterEvent) => void): void {
    this.#placed?.settle(tell);
    if (this.#answer !== undefined) this.#resolve(this.#answer.value);
  }

  takeBack(): void {
    this.#placed?.takeBack();
  }
}
