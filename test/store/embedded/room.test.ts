// Runs the tests in this folder that do not need a process of their own.

import t from "tap";
import { runRoom } from "../../support/suite.ts";

await runRoom(t, import.meta.url);
