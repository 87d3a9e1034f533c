// The embedded driver against the Store contract, with fsync.

import t from "tap";
import { storeContract } from "../../contract/store.ts";
import { embeddedDriver } from "./folder.ts";

storeContract(
  t,
  embeddedDriver("embedded, on disk", { durability: "disk", checkpointMs: 5 }),
);
