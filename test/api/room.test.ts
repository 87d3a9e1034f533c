// Runs the tests of this room that do not need their own process.

import t from "tap";
import { runRoom } from "../support/suite.ts";

await runRoom(t, import.meta.url);
