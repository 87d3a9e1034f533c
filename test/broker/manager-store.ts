// Test parts of managers: a ManagerStore in memory, and managers over it with a clock that stands
// still until moved.

import { createManagers, type Managers, type ManagersPorts } from "../../src/broker/managers.ts";
import type { ManagerStore, StoredPassword } from "../../src/broker/ports.ts";
import { LocalThrottle } from "../../src/cluster/single.ts";

export class MemoryManagerStore implements ManagerStore {
  readonly passwords = new Map<string, StoredPassword>();
  readonly tokens = new Map<string, { username: string; untilMs: number }>();
  /** Reads so far of whose token it is. */
  ownerReads = 0;
  readonly #clock: () => number;

  constructor(clock: () => number) {
    this.#clock = clock;
  }

  async putPasswordOnce(username: string, password: StoredPassword): Promise<StoredPassword> {
    const there = this.passwords.get(username);
    if (there !== undefined) return there;
    this.passwords.set(username, password);
    return password;
  }

  async putAccessToken(tokenHash: Uint8Array, username: string, untilMs: number): Promise<void> {
    this.tokens.set(tokenHash.toString(), { username, untilMs });
  }

  async accessTokenOwner(tokenHash: Uint8Array): Promise<string | undefined> {
    this.ownerReads++;
    const found = this.tokens.get(tokenHash.toString());
    return found !== undefined && found.untilMs > this.#clock() ? found.username : undefined;
  }

  async removeAccessToken(tokenHash: Uint8Array): Promise<void> {
    this.tokens.delete(tokenHash.toString());
  }
}

export interface TestManagers {
  readonly managers: Managers;
  readonly store: MemoryManagerStore;
  readonly announced: string[];
  /** Moves the clock. */
  pass(ms: number): void;
}

/**
 * Managers over a store in memory; 5 attempts in 60 s and tokens for a day unless `parts` says
 * otherwise.
 */
export function testManagers(parts: Partial<Omit<ManagersPorts, "clock">> = {}): TestManagers {
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
    ...parts,
    clock,
  });
  const pass = (ms: number) => {
    nowMs += ms;
  };
  return { managers, store, announced, pass };
}
