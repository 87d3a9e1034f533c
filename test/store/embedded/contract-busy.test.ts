// The embedded driver against the Store contract, with a fast checkpoint and tiny segments.

import { storeContract } from "../../contract/store.ts";
import { t } from "../../support/suite.ts";
import { embeddedDriver } from "./folder.ts";

storeContract(
  t,
  embeddedDriver("embedded, busy checkpoint", {
    checkpointMs: 1,
    segmentBytes: 2048,
  }),
);
