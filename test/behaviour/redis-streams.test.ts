// The behaviour tests about streams on one node on Redis.

import t from "tap";
import { runSuites } from "./suites.ts";

await runSuites(t, "redis", "streams");
