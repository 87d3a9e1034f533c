// Runs the tests of this room on the portable driver.

import { readdirSync } from "node:fs";
import t from "tap";
import { runFiles } from "../support/suite.ts";

process.env.JINDOU_TEST_TRANSPORT = "portable"; // read when the test files are loaded

/** Test files that start listeners. */
const FILES = readdirSync(new URL(".", import.meta.url))
  .filter((name) => name.endsWith(".test.ts"))
  .filter((name) => !["library", "portable", "room"].includes(name.replace(".test.ts", "")))
  .sort();

await runFiles(
  t,
  FILES.map((name) => new URL(name, import.meta.url)),
  ({ pathname }) => `${pathname.slice(pathname.lastIndexOf("/") + 1)} on the portable driver`,
);
