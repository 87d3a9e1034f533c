// Runs the Store contract against the embedded driver, with frequent checkpoints and tiny segments.
// These settings change which data is in the WAL, in the memtable and in the database, so only the
// parts run whose records go through the WAL. The other parts store rows directly in the database,
// where the settings have no effect.

import { storeContract } from "../../contract/store.ts";
import { t } from "../../support/suite.ts";
import { embeddedDriver } from "./folder.ts";

storeContract(
  t,
  embeddedDriver("embedded, frequent checkpoints", {
    checkpointMs: 1,
    segmentBytes: 2048,
  }),
  {
    only: [
      "appending",
      "retries",
      "history",
      "events",
      "imports",
      "limits",
      "streamStates",
      "streamReads",
      "streamRetries",
      "streamEnds",
      "channelLogs",
      "channelLogTimes",
      "conversations",
      "unread",
      "positions",
      "time",
      "importTimes",
      "limitsOfStreams",
    ],
  },
);
