// How control-plane steps write: one transaction, committed, and on the disk where that was asked for. No state.

import type { KeyedLock } from "../../../lib/keyed-lock.ts";
import type { Tables } from "./database.ts";
import { commit, flushed } from "./tables.ts";

/**
 * Makes the puts and removes that `steps` issues (synchronously) one transaction. Resolves when it is as durable as the store promises;
 * reads show it from then on at the latest. Throws `unavailable`.
 */
type Transact = (steps: () => void) => Promise<void>;

/** What every control-plane table works with. A step that reads before it writes runs under the lock of what it is about. */
export interface ControlParts {
  readonly tables: Tables;
  readonly lock: KeyedLock;
  readonly transact: Transact;
}

/** Resolves when everything committed before is as durable as the store promises. Throws `unavailable`. */
export type Secure = () => Promise<void>;

export function createSecure(tables: Tables, synced: boolean): Secure {
  return synced ? () => flushed(tables) : async () => {};
}

export function createTransact(tables: Tables, secure: Secure): Transact {
  return async (steps) => {
    await commit(tables, steps);
    await secure();
  };
}
