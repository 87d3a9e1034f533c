// The queued step of a call that changes streams or logs. When the call reaches the front of the
// queue, its changes are computed, applied in memory and written to the frame of the batch. The
// call returns once the changes are durable.

import { BrokerError } from "../../../broker/errors.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { toBrokerError } from "../../lifecycle.ts";
import type { Appends, QueuedStep } from "./append.ts";

/** Changes of one call, applied in memory and written to the frame of the batch. */
interface CallChanges {
  /** True if nothing was changed. */
  readonly isEmpty: boolean;
  /** Makes the changes visible and publishes them. */
  commit(publish: (event: ClusterEvent) => void): void;
  rollBack(): void;
}

/**
 * Makes the changes of a call and returns its result, or throws a BrokerError to refuse the call.
 * Must throw before it changes anything.
 */
type Decision<Changes, Result> = (changes: Changes) => Result;

/** Returns a function that adds a call to the message queue. `bytes` is the size of the call. */
export function createCalls<Changes extends CallChanges>(
  appends: Pick<Appends, "enqueue">,
  begin: (nowMs: number) => Changes,
): <Result>(decide: Decision<Changes, Result>, bytes: number) => Promise<Result> {
  return (decide, bytes) =>
    new Promise((resolve, reject) => {
      appends.enqueue(new QueuedCall(begin, decide, resolve, reject), bytes);
    });
}

class QueuedCall<Changes extends CallChanges, Result> implements QueuedStep {
  readonly #begin: (nowMs: number) => Changes;
  readonly #decide: Decision<Changes, Result>;
  readonly #resolve: (result: Result) => void;
  readonly reject: (error: BrokerError) => void;
  #changes: Changes | undefined;
  #isDecided = false;
  #result: Result | undefined;

  constructor(
    begin: (nowMs: number) => Changes,
    decide: Decision<Changes, Result>,
    resolve: (result: Result) => void,
    reject: (error: BrokerError) => void,
  ) {
    this.#begin = begin;
    this.#decide = decide;
    this.#resolve = resolve;
    this.reject = reject;
  }

  assign(nowMs: number): void {
    this.#changes = this.#begin(nowMs);
    try {
      this.#result = this.#decide(this.#changes);
      this.#isDecided = true;
    } catch (error) {
      // An error before the first change, such as an unreadable row, fails only this call. An
      // unexpected error after a change fails the whole batch.
      if (!(error instanceof BrokerError) && !this.#changes.isEmpty) throw error;
      this.reject(toBrokerError(error));
    }
  }

  commit(publish: (event: ClusterEvent) => void): void {
    this.#changes?.commit(publish);
    // `Result` may include `undefined`, so `#isDecided` records whether there is a result.
    if (this.#isDecided) this.#resolve(this.#result as Result);
  }

  rollBack(): void {
    this.#changes?.rollBack();
  }
}
