// The embedded driver against the Store contract: as it runs by default, with a fast checkpoint and tiny segments, and with fsync.

import t, { type Test } from "tap";
import { storeContract } from "../../contract/store.ts";
import { storeIn, testFolder } from "./folder.ts";

const variants = {
  embedded: {},
  "embedded, busy checkpoint": { checkpointMs: 1, segmentBytes: 2048 },
  "embedded, on disk": { durability: "disk", checkpointMs: 5 },
} as const;

for (const [name, over] of Object.entries(variants))
  storeContract(t, {
    name,
    supportsClock: true,
    async place(t: Test) {
      const folder = testFolder(t);
      return { create: (parts) => storeIn(folder, { ...over, ...parts }) };
    },
  });
