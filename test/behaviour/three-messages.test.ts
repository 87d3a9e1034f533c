// Runs the behaviour tests about messages on three nodes on one Redis.

import t from "tap";
import { runSuites } from "./suites.ts";

await runSuites(t, "three", "messages");
