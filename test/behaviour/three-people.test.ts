// Runs the behaviour tests about people on three nodes on one Redis.

import t from "tap";
import { runSuites } from "./suites.ts";

await runSuites(t, "three", "people");
