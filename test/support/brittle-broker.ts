// Starts a node from the environment, as the program does, but with an embedded store whose
// database writes fail after a SIGUSR2. The variable FAULT selects how (see `brittleDatabase`).

import { loadSourcedConfig } from "../../src/config/load.ts";
import { startNode } from "../../src/start.ts";
import { brittleDatabase } from "../store/embedded/brittle-database.ts";

const { fail, databaseWrites } = brittleDatabase();
process.on("SIGUSR2", () => {
  if (process.env.FAULT === "stuck") fail.stuck = true;
  else fail.lost = true;
});
const { config, places } = loadSourcedConfig({ env: process.env });
const store = { ...config.store, databaseWrites };
await startNode({ config: { ...config, store }, places }, "test");
