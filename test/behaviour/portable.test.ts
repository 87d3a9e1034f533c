// Runs behaviour tests on one node with the embedded store and the portable transport: the suites
// that depend most on the transport, or all suites with JINDOU_TEST_VOLUME=full.

import t from "tap";
import { IS_FULL } from "../support/volume.ts";
import { PORTABLE, runFilesOf, SUITES } from "./suites.ts";

process.env.JINDOU_TEST_TRANSPORT = "portable"; // read when the test files are loaded

await runFilesOf(t, "embedded", IS_FULL ? Object.values(SUITES).flat() : PORTABLE);
