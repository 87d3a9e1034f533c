// Stores the system accounts, one row per uid. Keeps no state.

import type { SystemAccountStore } from "../../../broker/ports.ts";
import { transact } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";

const VERSION = 1;

export function createSystemAccounts(tables: Tables): SystemAccountStore {
  const { systemUids } = tables;
  return {
    async systemUids() {
      return [...systemUids.getKeys()];
    },

    async changeSystemUids(kind, uids) {
      await transact(tables, () => {
        for (const uid of uids)
          if (kind === "add") void systemUids.put(uid, [VERSION]);
          else void systemUids.remove(uid);
      });
    },
  };
}
