// Runs the behaviour tests about messages on one node with the embedded store.

import t from "tap";
import { runSuites } from "./suites.ts";

await runSuites(t, "embedded", "messages");
