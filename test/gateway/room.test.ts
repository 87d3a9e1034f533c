// Runs the tests of this room that need no process of their own.

import t from "tap";
import { runRoom } from "../support/suite.ts";

await runRoom(t, import.meta.url);
