// Runs the Store contract against the embedded driver, with fsync.

import { storeContract } from "../../contract/store.ts";
import { t } from "../../support/suite.ts";
import { embeddedDriver } from "./folder.ts";

storeContract(t, embeddedDriver("embedded, on disk", { durability: "disk", checkpointMs: 5 }));
