// The lifecycle of a store: new → starting → running → closing → closed. A closed store can be
// started again if the driver supports restarts.

import { BrokerError } from "../broker/errors.ts";
import type { MaybePromise } from "../lib/maybe-promise.ts";

type Status = "new" | "starting" | "running" | "closing" | "closed";
interface LifecycleSteps<Running> {
  readonly open: (signal?: AbortSignal) => Promise<Running>;
  /** `idle` resolves once no call to `use` is in progress. */
  readonly shut: (running: Running, idle: () => Promise<void>) => Promise<void>;
  readonly restarts: boolean;
}

export interface Lifecycle<Running> {
  /** Rejects with `unavailable` if the store is closing, or is closed and cannot be restarted. */
  start(signal?: AbortSignal): Promise<void>;
  close(): Promise<void>;
  running(): Running | undefined;
  notRunning(): BrokerError;
  use<T>(step: (running: Running) => T | Promise<T>): Promise<T>;
  /**
   * Does the same as `use`, but if `step` returns a value instead of a promise, returns that value
   * directly.
   */
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
  let pendingCalls = 0;
  let onIdle = () => {};

  const notRunning = () =>
    new BrokerError("unavailable", {
      message: `The store is not running. Its status is ${status}.`,
    });

  async function use<T>(step: (running: Running) => T | Promise<T>): Promise<T> {
    if (status !== "running" || running === undefined) throw notRunning();
    pendingCalls++;
    try {
      return await step(running);
    } catch (error) {
      throw toBrokerError(error);
    } finally {
      if (--pendingCalls === 0) onIdle();
    }
  }

  function useNow<T>(step: (running: Running) => MaybePromise<T>): MaybePromise<T> {
    if (status !== "running" || running === undefined) return Promise.reject(notRunning());
    let result: MaybePromise<T>;
    try {
      result = step(running);
    } catch (error) {
      return Promise.reject(toBrokerError(error));
    }
    return result instanceof Promise ? use(() => result) : result;
  }

  async function begin(signal?: AbortSignal): Promise<void> {
    try {
      running = await open(signal);
      status = "running";
    } catch (error) {
      status = "closed";
      throw error;
    }
  }

  async function idle(): Promise<void> {
    if (pendingCalls === 0) return;
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
    start(signal) {
      if (status === "closing" || (status === "closed" && !restarts))
        return Promise.reject(notRunning());
      if (status === "new" || status === "closed") {
        status = "starting";
        change = begin(signal);
      }
      return change;
    },
    async close() {
      // The caller of `start` receives the error.
      if (status === "starting") await change.catch(() => undefined);
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

export function toBrokerError(error: unknown): BrokerError {
  return error instanceof BrokerError ? error : new BrokerError("internal", { cause: error });
}
