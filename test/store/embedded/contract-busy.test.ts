// The embedded driver against the Store contract, with a fast checkpoint and tiny segments.

import t, { type Test } from "tap";
import { storeContract } from "../../contract/store.ts";
import { sweptStoreIn, testFolder } from "./folder.ts";

storeContract(t, {
  name: "embedded, busy checkpoint",
  supportsClock: true,
  async place(t: Test) {
    const folder = testFolder(t);
    return {
      create: (parts) =>
        sweptStoreIn(folder, { checkpointMs: 1, segmentBytes: 2048, ...parts }),
    };
  },
});
