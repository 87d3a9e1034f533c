// Runs the tests of streams of channels on three nodes on one Redis, over which calls and sessions
// are spread.

import t from "tap";
import { runFiles } from "../support/suite.ts";

process.env.JINDOU_TEST_DRIVER = "three"; // read when the test file is loaded
await runFiles(t, [new URL("./channels.test.ts", import.meta.url)]);
