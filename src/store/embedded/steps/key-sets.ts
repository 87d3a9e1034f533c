// Stores the public keys that were last read from an identity provider. A node uses these keys if
// it starts while the provider is unreachable.

import type { KeySetStore } from "../../../broker/ports.ts";
import { fieldsOf, persist } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";

const ROW = "keySet";
const VERSION = 1;

export function createKeySets(tables: Tables): KeySetStore {
  return {
    async keySet() {
      const stored = tables.meta.get(ROW);
      if (stored === undefined) return undefined;
      const [url, text, readAtMs] = fieldsOf(stored, VERSION);
      return { url: String(url), text: String(text), readAtMs: Number(readAtMs) };
    },

    async putKeySet({ url, text, readAtMs }) {
      await persist(tables, () => void tables.meta.put(ROW, [VERSION, url, text, readAtMs]));
    },
  };
}
