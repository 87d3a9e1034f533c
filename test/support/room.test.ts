// Runs the tests of this folder that do not need their own process.

import t from "tap";
import { runRoom } from "./suite.ts";

await runRoom(t, import.meta.url);
