// The life of the Redis store: new → starting → running → closing → closed. Owns the status and the count of calls under way, which `close` waits for.
// Must never let an error through that is not a BrokerError, but from `start`: that one is for the operator.

import { BrokerError } from "../../broker/errors.ts";

type Status = "new" | "starting" | "running" | "closing" | "closed";

export interface LifeSteps {
  /** Throws an Error with a sentence for the operator. */
  readonly open: () => Promise<void>;
  /** When no call is under way any more. */
  readonly shut: () => Promise<void>;
}

export class Life {
  readonly #steps: LifeSteps;
  #status: Status = "new";
  #change: Promise<void> = Promise.resolve();
  #underWay = 0;
  #onIdle = () => {};

  constructor(steps: LifeSteps) {
    this.#steps = steps;
  }

  /** Safe to call twice; a store that was closed stays closed. */
  start(): Promise<void> {
    if (this.#status === "closing" || this.#status === "closed")
      return Promise.reject(this.#notRunning());
    if (this.#status === "new") {
      this.#status = "starting";
      this.#change = this.#open();
    }
    return this.#change;
  }

  /** Takes no new calls and finishes those under way. Safe to call twice, and before `start`. */
  async close(): Promise<void> {
    if (this.#status === "starting") await this.#change.catch(() => undefined); // start's caller hears of it
    if (this.#status === "running") {
      this.#status = "closing";
      this.#change = this.#shut();
    }
    if (this.#status === "closing") await this.#change;
    else this.#status = "closed";
  }

  /** Runs a call at once, or refuses it. */
  async use<T>(call: () => T | Promise<T>): Promise<T> {
    if (this.#status !== "running") throw this.#notRunning();
    this.#underWay += 1;
    try {
      return await call();
    } catch (error) {
      throw error instanceof BrokerError
        ? error
        : new BrokerError("internal", { cause: error });
    } finally {
      this.#underWay -= 1;
      if (this.#underWay === 0) this.#onIdle();
    }
  }

  #notRunning(): BrokerError {
    return new BrokerError("unavailable", {
      message: `The store is ${this.#status}`,
    });
  }

  async #open(): Promise<void> {
    try {
      await this.#steps.open();
      this.#status = "running";
    } catch (error) {
      this.#status = "closed";
      throw error;
    }
  }

  async #shut(): Promise<void> {
    try {
      if (this.#underWay > 0)
        await new Promise<void>((resolve) => {
          this.#onIdle = resolve; // every call ends by Redis' time-out at the latest
        });
      await this.#steps.shut();
    } finally {
      this.#status = "closed";
    }
  }
}
