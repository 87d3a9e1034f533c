// Runs the tests of this folder in one process.

import t from "tap";
import { runRoom } from "../support/suite.ts";

await runRoom(t, import.meta.url);
