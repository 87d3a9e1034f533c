// Runs the Store contract against the embedded driver, with fsync. The fsync delays the return of a
// call and its event, so only parts that cover each way to store data run: the WAL, the database,
// and both. The fsync does not change what a call stores and what later reads return.

import { tmpdir } from "node:os";
import { storeContract } from "../../contract/store.ts";
import { t } from "../../support/suite.ts";
import { embeddedDriver } from "./folder.ts";

storeContract(
  t,
  embeddedDriver("embedded, on disk", { durability: "disk", checkpointMs: 5 }, tmpdir()),
  {
    only: [
      "users",
      "appending",
      "retries",
      "inbox",
      "streamEnds",
      "channelLogs",
      "imports",
      "systemAccounts",
      "managers",
      "inboxTime",
    ],
  },
);
