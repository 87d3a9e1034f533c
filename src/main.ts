#!/usr/bin/env node
// The entry point of the `jindou` command. Must import signals.ts first, because a signal that
// arrives before that file is loaded is lost or has its default effect. Must not import anything
// large.

import "./signals.ts";
import { informationFor } from "./config/help.ts";

const information = informationFor(process.argv.slice(2));
if (information === undefined) await import("./commands.ts");
else process.stdout.write(information);
