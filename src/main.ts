#!/usr/bin/env node
// The entry point of the `jindou` command. Must import nothing else: signals are lost or end the
// process in the wrong way until the first module has run.

import "./signals.ts";

await import("./commands.ts");
