// The embedded driver against the Store contract: as it runs by default.

import t, { type Test } from "tap";
import { storeContract } from "../../contract/store.ts";
import { sweptStoreIn, testFolder } from "./folder.ts";

storeContract(t, {
  name: "embedded",
  supportsClock: true,
  async place(t: Test) {
    const folder = testFolder(t);
    return { create: (parts) => sweptStoreIn(folder, parts) };
  },
});
