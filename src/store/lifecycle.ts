// The lifecycle of a store: new → starting → running → closing → closed, and again where the driver
// can. Owns the status, what the store runs on from start to close, and the count of calls that use
// it: it is shut when none does any more. Must never let an error of a call through that is not a
// BrokerError.

import { BrokerError } from "../broker/errors.ts";
import type { MaybePromise } from "../lib/maybe-promise.ts";

type Status = "new" | "starting" | "running" | "closing" | "closed";

interface LifecycleSteps<Running> {
  /** What it throws is what `start` throws. */
  readonly open: () => Promise<Running>;
  /** Ends what runs; it takes no new calls. `idle` resolves when none is under way any more. */
  readonly shut: (running: Running, idle: () => Promise<void>) => Promise<void>;
  /** Whether a store that was closed can be started again. */
  readonly restarts: boolean;
}

export interface Lifecycle<Running> {
  /** The port's `start` and `close`: safe to call twice, and `close` before `start`. */
  start(): Promise<void>;
  close(): Promise<void>;
  /** Undefined when the store takes no calls. */
  running(): Running | undefined;
  /** What a call in vain is refused with. */
  notRunning(): BrokerError;
  /** Runs a step of a call at once, or refuses it. */
  use<T>(step: (running: Running) => T | Promise<T>): Promise<T>;
  /** For what is asked with every message: no promise where the answer is at hand. */
  useNow<T>(step: (running: Running) => MaybePromise<T>): MaybePromise<T>;
}

export function createLifecycle<Running extends object>({
  open,
  shut,
  restarts,
}: LifecycleSteps<Running>): Lifecycle<Running> {
  let status: Status = "new";
  let running: Running | undefined;
  let change: Promise<void> = Promise.resolve();
  let underWay = 0;
  let onIdle = () => {};

  const notRunning = () => new BrokerError("unavailable", { message: `The store is ${status}` });

  async function use<T>(step: (running: Running) => T | Promise<T>): Promise<T> {
    if (status !== "running" || running === undefined) throw notRunning();
    underWay++;
    try {
      return await step(running);
    } catch (error) {
      throw toBrokerError(error);
    } finally {
      if (--underWay === 0) onIdle();
    }
  }

  function useNow<T>(step: (running: Running) => MaybePromise<T>): MaybePromise<T> {
    if (status !== "running" || running === undefined) return Promise.reject(notRunning());
    try {
      return step(running);
    } catch (error) {
      return Promise.reject(toBrokerError(error));
    }
  }

  async function begin(): Promise<void> {
    try {
      running = await open();
      status = "running";
    } catch (error) {
      status = "closed";
      throw error;
    }
  }

  async function idle(): Promise<void> {
    if (underWay === 0) return;
    await new Promise<void>((resolve) => {
      onIdle = resolve;
    });
    onIdle = () => {};
  }

  async function end(): Promise<void> {
    const closing = running;
    running = undefined;
    try {
      if (closing !== undefined) await shut(closing, idle);
    } finally {
      status = "closed";
    }
  }

  return {
    start() {
      if (status === "closing" || (status === "closed" && !restarts))
        return Promise.reject(notRunning());
      if (status === "new" || status === "closed") {
        status = "starting";
        change = begin();
      }
      return change;
    },
    async close() {
      if (status === "starting") await change.catch(() => undefined); // start's caller hears of it
      if (status === "running") {
        status = "closing";
        change = end();
      }
      if (status === "closing") await change;
      else status = "closed";
    },
    running: () => (status === "running" ? running : undefined),
    ...{ notRunning, use, useNow },
  };
}

/** What is no BrokerError is `internal`. */
export function toBrokerError(error: unknown): BrokerError {
  return error instanceof BrokerError ? error : new BrokerError("internal", { cause: error });
}
