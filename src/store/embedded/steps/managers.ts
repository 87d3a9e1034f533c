// Stores the password hashes of managers, and access tokens by their hash. Keeps no state.

import type { Clock, ManagerStore } from "../../../broker/ports.ts";
import { fieldsOf, persist, type Stored, transact } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";

const VERSION = 1;

export function createEmbeddedManagers({
  tables,
  clock,
}: {
  readonly tables: Tables;
  readonly clock: Clock;
}): ManagerStore {
  return {
    async putPasswordOnce(username, password) {
      return transact(tables, () => {
        const stored = tables.managers.get(username);
        if (stored !== undefined) return { passwordHash: String(fieldsOf(stored, VERSION)[0]) };
        const value = [VERSION, password.passwordHash];
        void tables.managers.put(username, value);
        return password;
      });
    },

    async putAccessToken(tokenHash, owner, expiresAtMs) {
      const value = [VERSION, owner, expiresAtMs];
      await persist(tables, () => void tables.tokens.put(hex(tokenHash), value));
    },

    async accessTokenOwner(tokenHash) {
      const stored = tables.tokens.get(hex(tokenHash));
      if (stored === undefined || !isTokenValid(stored, clock())) return undefined;
      return ownerOf(stored).owner;
    },

    async removeAccessToken(tokenHash) {
      await persist(tables, () => void tables.tokens.remove(hex(tokenHash)), "reclaim");
    },
  };
}

export function ownerOf(stored: Stored): {
  readonly owner: string;
  readonly expiresAtMs: number;
} {
  const [owner, expiresAtMs] = fieldsOf(stored, VERSION);
  return { owner: String(owner), expiresAtMs: Number(expiresAtMs) };
}

export function isTokenValid(stored: Stored, nowMs: number): boolean {
  return nowMs < ownerOf(stored).expiresAtMs;
}

function hex(hash: Uint8Array): string {
  return Buffer.from(hash).toString("hex");
}
