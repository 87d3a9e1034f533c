// The embedded driver against the Store contract, with fsync.

import t, { type Test } from "tap";
import { storeContract } from "../../contract/store.ts";
import { sweptStoreIn, testFolder } from "./folder.ts";

storeContract(t, {
  name: "embedded, on disk",
  supportsClock: true,
  async place(t: Test) {
    const folder = testFolder(t);
    return {
      create: (parts) =>
        sweptStoreIn(folder, { durability: "disk", checkpointMs: 5, ...parts }),
    };
  },
});
