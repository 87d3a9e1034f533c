// Runs the behaviour tests on one node with the embedded store and the portable transport: those
// that depend most on the transport, and all of them with JINDOU_TEST_VOLUME=full.

import t from "tap";
import { volume } from "../support/volume.ts";
import { PORTABLE, runFilesOf, SUITES } from "./suites.ts";

process.env.JINDOU_TEST_TRANSPORT = "portable"; // read when the test files are loaded

const all = Object.values(SUITES).flat();
const names = volume(all.length, undefined, 0) === all.length ? all : PORTABLE;
await runFilesOf(t, "embedded", names);
