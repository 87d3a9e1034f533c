#!/usr/bin/env node
// The entry point of the `jindou` command. Must import nothing before the signals, which are lost
// or end the process in the wrong way until the first module has run, and nothing large.

import "./signals.ts";
import { informationFor } from "./config/help.ts";

const information = informationFor(process.argv.slice(2));
if (information === undefined) await import("./commands.ts");
else process.stdout.write(information);
