// Runs behaviour tests on one node with the embedded store and the portable transport: the suites
// that depend most on the transport and those about the formats of sockets, or all suites with
// JINDOU_TEST_VOLUME=full. Every other session speaks JSON-RPC.

import t from "tap";
import { IS_FULL } from "../support/volume.ts";
import { PORTABLE, runFilesOf, SUITES } from "./suites.ts";

// read when the test files are loaded
process.env.JINDOU_TEST_TRANSPORT = "portable";
process.env.JINDOU_TEST_FORMAT ??= "mixed";

await runFilesOf(t, "embedded", IS_FULL ? Object.values(SUITES).flat() : PORTABLE);
