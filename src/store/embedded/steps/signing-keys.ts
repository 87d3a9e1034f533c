// Stores the keys that sign stream URLs, one row per key. Keeps no state.

import type { SigningKey, SigningKeyStore } from "../../../broker/ports.ts";
import { fieldsOf, persist, type Stored, transact } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";

const VERSION = 1;

export function createSigningKeys(tables: Tables): SigningKeyStore {
  return {
    async signingKeys() {
      const rows = [...tables.signingKeys.getRange({})];
      return rows.map(({ key, value }) => signingKeyOf(key, value));
    },

    async putSigningKeyOnce(key) {
      return transact(tables, () => {
        const stored = tables.signingKeys.get(key.number);
        if (stored !== undefined) return signingKeyOf(key.number, stored);
        void tables.signingKeys.put(key.number, [VERSION, key.secret, key.createdAtMs]);
        return key;
      });
    },

    async removeSigningKey(number) {
      await persist(tables, () => void tables.signingKeys.remove(number), "reclaim");
    },
  };
}

export function signingKeyOf(number: number, stored: Stored): SigningKey {
  const [secret, createdAtMs] = fieldsOf(stored, VERSION) as [Uint8Array, number];
  return { number, secret, createdAtMs };
}
