// The behaviour tests about people on one node on Redis.

import t from "tap";
import { runSuites } from "./suites.ts";

await runSuites(t, "redis", "people");
