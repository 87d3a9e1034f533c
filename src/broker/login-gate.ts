// Decides whether a login may be tried: never more failures of one username or one client network than the window allows, even when
// attempts run at once. State: the attempts under way per key, and who waits for them. The counts themselves are the Throttle's.

import { BrokerError } from "./errors.ts";
import type { Throttle } from "./ports.ts";

export interface LoginLimits {
  /** Failures within the window after which further attempts are refused. */
  readonly attempts: number;
  readonly windowS: number;
}

/** Attempts this node has under way, running or waiting, before further ones are refused as overloaded. */
const MAX_UNDER_WAY = 256;

export class LoginGate {
  readonly #throttle: Throttle;
  readonly #limits: LoginLimits;
  readonly #pending = new Map<string, number>();
  #underWay = 0;
  #admission: Promise<void> = Promise.resolve();
  #settlement = deferred();

  constructor(throttle: Throttle, limits: LoginLimits) {
    this.#throttle = throttle;
    this.#limits = limits;
  }

  /**
   * Runs `verify` when both counts allow it and counts its answer: a failure against username and address, a success clears the
   * username's. Throws `too_many_attempts` with the seconds left, `overloaded`. What `verify` throws counts as nothing.
   */
  async attempt(
    who: { readonly username: string; readonly address: string },
    verify: () => Promise<boolean>,
  ): Promise<boolean> {
    if (this.#underWay >= MAX_UNDER_WAY) throw new BrokerError("overloaded");
    this.#underWay++;
    const user = `login:u:${who.username}`;
    const keys = [user, `login:a:${networkOf(who.address)}`];
    try {
      await this.#admit(keys);
      try {
        const isRight = await verify();
        await (isRight ? this.#throttle.clear(user) : this.#count(keys));
        return isRight;
      } finally {
        this.#release(keys);
      }
    } finally {
      this.#underWay--;
    }
  }

  async #count(keys: readonly string[]): Promise<void> {
    const windowMs = this.#limits.windowS * 1000;
    await Promise.all(
      keys.map((key) => this.#throttle.addFailure(key, windowMs)),
    );
  }

  /** Waits while attempts under way, should they all fail, would use up what is left. */
  async #admit(keys: readonly string[]): Promise<void> {
    for (;;) {
      // Before the counts are read, so that an attempt settling meanwhile wakes this one.
      const settled = this.#settlement.promise;
      const before = this.#admission;
      const decided = before.then(() => this.#decide(keys));
      this.#admission = decided.then(ignore, ignore);
      if (await decided) return;
      await settled;
    }
  }

  /** One at a time. Pending is read before the counts: one that fails in between is counted twice for a moment, never missed. */
  async #decide(keys: readonly string[]): Promise<boolean> {
    const pending = keys.map((key) => this.#pending.get(key) ?? 0);
    const failures = await Promise.all(
      keys.map((key) => this.#throttle.failures(key)),
    );
    const over = failures.filter(({ count }) => count >= this.#limits.attempts);
    if (over.length > 0)
      throw new BrokerError("too_many_attempts", {
        retryAfterS: Math.max(1, ...over.map((one) => one.retryAfterS)),
      });
    const isFree = failures.every(
      ({ count }, i) => count + (pending[i] ?? 0) < this.#limits.attempts,
    );
    if (isFree)
      for (const key of keys)
        this.#pending.set(key, (this.#pending.get(key) ?? 0) + 1);
    return isFree;
  }

  #release(keys: readonly string[]): void {
    for (const key of keys) {
      const left = (this.#pending.get(key) ?? 1) - 1;
      if (left === 0) this.#pending.delete(key);
      else this.#pending.set(key, left);
    }
    this.#settlement.resolve();
    this.#settlement = deferred();
  }
}

function ignore(): void {}

interface Deferred {
  readonly promise: Promise<void>;
  readonly resolve: () => void;
}

function deferred(): Deferred {
  let resolve = ignore;
  const promise = new Promise<void>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

/**
 * What one client can hardly change about its address: an IPv4 address, or the /64 of an IPv6 one, where every host has 2^64 to choose from.
 */
export function networkOf(address: string): string {
  if (!address.includes(":")) return address;
  const groups = expand(address.split("%")[0] ?? "");
  const isMappedIpv4 = groups.slice(0, 5).every((one) => one === "0");
  if (isMappedIpv4 && groups[5] === "ffff") return groups.slice(6).join(":");
  return groups.slice(0, 4).join(":");
}

function expand(address: string): readonly string[] {
  const [head = "", tail] = address.toLowerCase().split("::");
  const split = (part: string): string[] =>
    part === ""
      ? []
      : part.split(":").map((one) => one.replace(/^0+(?=.)/, ""));
  if (tail === undefined) return split(head);
  const [left, right] = [split(head), split(tail)];
  const missing = 8 - left.length - right.length;
  const filled = tail.includes(".") ? missing - 1 : missing;
  return [...left, ...Array<string>(Math.max(0, filled)).fill("0"), ...right];
}
