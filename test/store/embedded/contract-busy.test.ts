// Runs the Store contract against the embedded driver, with frequent checkpoints and tiny segments.

import { storeContract } from "../../contract/store.ts";
import { t } from "../../support/suite.ts";
import { embeddedDriver } from "./folder.ts";

storeContract(
  t,
  embeddedDriver("embedded, frequent checkpoints", {
    checkpointMs: 1,
    segmentBytes: 2048,
  }),
);
