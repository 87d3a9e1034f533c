// The connections of a move to its Redis, one at a time, and what goes wrong with them in words for the operator. State: the one under way.

import { BrokerError } from "../broker/errors.ts";
import { UnusableRedis } from "../redis/format.ts";
import type { RedisLink } from "../redis/link.ts";

export class Links {
  readonly #connect: () => RedisLink;
  #current: RedisLink | undefined;

  /** `connect` makes a link that is not started. */
  constructor(connect: () => RedisLink) {
    this.#connect = connect;
  }

  /** Undefined: there is none at the moment. */
  get current(): RedisLink | undefined {
    return this.#current;
  }

  /** Gives back what `use` does with a connection that is ended with it. Throws BrokerError where there is none to be had. */
  async use<T>(use: (link: RedisLink) => Promise<T>): Promise<T> {
    const link = this.#connect();
    await link.start().catch(redisTrouble);
    this.#current = link;
    try {
      return await use(link);
    } finally {
      this.#current = undefined;
      await link.close();
    }
  }
}

function redisTrouble(cause: unknown): never {
  const words = cause instanceof Error ? cause.message : String(cause);
  const message = `Redis cannot be used: ${words}`;
  const isUnusable = cause instanceof UnusableRedis;
  throw new BrokerError(isUnusable ? "internal" : "unavailable", {
    ...{ message, cause },
  });
}

/** Redis holds what this build cannot use: no retry helps. */
export function isUnusable({ cause }: BrokerError): boolean {
  return cause instanceof UnusableRedis;
}

/** Anything but a BrokerError of ours is told in its own words: it is for the operator. */
export function asProblem(error: unknown): BrokerError {
  if (error instanceof BrokerError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new BrokerError("unavailable", { message, cause: error });
}
