// The behaviour tests about messages on one node on Redis.

import t from "tap";
import { runSuites } from "./suites.ts";

await runSuites(t, "redis", "messages");
