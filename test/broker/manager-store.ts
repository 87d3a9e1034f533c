// Helpers of the manager tests: a ManagerStore in memory, and managers with a clock that the test
// moves.

import { createManagers, type Managers, type ManagersPorts } from "../../src/broker/managers.ts";
import type { ManagerStore, StoredPassword } from "../../src/broker/ports.ts";
import { LocalThrottle } from "../../src/cluster/single.ts";

/** A ManagerStore in memory. */
export class MemoryManagerStore implements ManagerStore {
  readonly passwords = new Map<string, StoredPassword>();
  readonly tokens = new Map<string, { username: string; untilMs: number }>();
  /** Number of calls to `accessTokenOwner`. */
  ownerReads = 0;
  readonly #clock: () => number;

  constructor(clock: () => number) {
    this.#clock = clock;
  }

  async putPasswordOnce(username: string, password: StoredPassword): Promise<StoredPassword> {
    const existing = this.passwords.get(username);
    if (existing !== undefined) return existing;
    this.passwords.set(username, password);
    return password;
  }

  async putAccessToken(tokenHash: Uint8Array, username: string, untilMs: number): Promise<void> {
    this.tokens.set(tokenHash.toString(), { username, untilMs });
  }

  async accessTokenOwner(tokenHash: Uint8Array): Promise<string | undefined> {
    this.ownerReads++;
    const token = this.tokens.get(tokenHash.toString());
    return token !== undefined && token.untilMs > this.#clock() ? token.username : undefined;
  }

  async removeAccessToken(tokenHash: Uint8Array): Promise<void> {
    this.tokens.delete(tokenHash.toString());
  }
}

/** Managers with access to their store and clock. */
export interface TestManagers {
  readonly managers: Managers;
  readonly store: MemoryManagerStore;
  /** Passwords that were shown to the operator. */
  readonly announced: string[];
  /** Moves the clock forward. */
  pass(ms: number): void;
}

/**
 * Creates managers with a store in memory. By default they allow 5 failed attempts in 60 s, and
 * tokens are valid for a day.
 */
export function testManagers(ports: Partial<Omit<ManagersPorts, "clock">> = {}): TestManagers {
  let nowMs = 1_700_000_000_000;
  const clock = () => nowMs;
  const store = new MemoryManagerStore(clock);
  const announced: string[] = [];
  const managers = createManagers({
    store,
    throttle: new LocalThrottle(clock),
    accounts: [],
    limits: { attempts: 5, windowS: 60, tokenTtlS: 86_400 },
    announcePassword: (_username, password) => announced.push(password),
    ...ports,
    clock,
  });
  const pass = (ms: number) => {
    nowMs += ms;
  };
  return { managers, store, announced, pass };
}
