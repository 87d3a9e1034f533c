// Runs the behaviour tests about streams on three nodes on one Redis.

import t from "tap";
import { runSuites } from "./suites.ts";

await runSuites(t, "three", "streams");
