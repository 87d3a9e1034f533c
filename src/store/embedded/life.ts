// The life of the embedded store: new → starting → running → closing → closed, and again. Owns the status, the engine, which exists from
// start to close, and the count of calls that use it: it is closed when none does any more. Must never let an error through that is not a
// BrokerError.

import { BrokerError } from "../../broker/errors.ts";
import type { MaybePromise } from "../../lib/maybe-promise.ts";
import type { EmbeddedOptions } from "./embedded-options.ts";
import { type Engine, openEngine } from "./engine.ts";

/** Closing finishes the commands that wait, for so long; the rest is refused. */
const COMMANDS_MS = 1500;

type Status = "new" | "starting" | "running" | "closing" | "closed";

export interface Life {
  /** The port's `start` and `close`. */
  start(): Promise<void>;
  close(): Promise<void>;
  /** Undefined when the store takes no calls. */
  running(): Engine | undefined;
  /** What a call in vain is refused with. */
  notRunning(): BrokerError;
  /** Runs a step of a call, or refuses it. */
  use<T>(step: (engine: Engine) => T | Promise<T>): Promise<T>;
  /** For what is asked with every message: no promise where the answer is at hand. */
  useNow<T>(step: (engine: Engine) => MaybePromise<T>): MaybePromise<T>;
}

export function createLife(options: EmbeddedOptions): Life {
  let status: Status = "new";
  let engine: Engine | undefined;
  let change: Promise<void> = Promise.resolve();
  let underWay = 0;
  let onIdle = () => {};

  const notRunning = () =>
    new BrokerError("unavailable", { message: `The store is ${status}` });

  async function use<T>(step: (engine: Engine) => T | Promise<T>): Promise<T> {
    if (status !== "running" || engine === undefined) throw notRunning();
    underWay++;
    try {
      return await step(engine);
    } catch (error) {
      throw toBrokerError(error);
    } finally {
      if (--underWay === 0) onIdle();
    }
  }

  function useNow<T>(
    step: (engine: Engine) => MaybePromise<T>,
  ): MaybePromise<T> {
    if (status !== "running" || engine === undefined)
      return Promise.reject(notRunning());
    try {
      return step(engine);
    } catch (error) {
      return Promise.reject(toBrokerError(error));
    }
  }

  async function open(): Promise<void> {
    try {
      engine = await openEngine(options);
      status = "running";
    } catch (error) {
      status = "closed";
      throw toBrokerError(error);
    }
  }

  async function idle(): Promise<void> {
    if (underWay === 0) return;
    await new Promise<void>((resolve) => {
      onIdle = resolve;
    });
    onIdle = () => {};
  }

  async function shut(): Promise<void> {
    const closing = engine;
    engine = undefined;
    try {
      closing?.sweep.stop();
      const refusing = setTimeout(() => closing?.inbox.refuse(), COMMANDS_MS);
      await idle();
      clearTimeout(refusing);
      await closing?.close();
    } finally {
      status = "closed";
    }
  }

  return {
    start() {
      if (status === "closing") return Promise.reject(notRunning());
      if (status === "new" || status === "closed") {
        status = "starting";
        change = open();
      }
      return change;
    },
    async close() {
      if (status === "starting") await change.catch(() => undefined); // start's caller hears of it
      if (status === "running") {
        status = "closing";
        change = shut();
      }
      if (status === "closing") await change;
      else status = "closed";
    },
    running: () => (status === "running" ? engine : undefined),
    ...{ notRunning, use, useNow },
  };
}

function toBrokerError(error: unknown): BrokerError {
  return error instanceof BrokerError
    ? error
    : new BrokerError("internal", { cause: error });
}
