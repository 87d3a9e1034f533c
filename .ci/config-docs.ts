// Writes the files that are made from the option schemas and from the metrics table: config/default.json,
// docs/configuration.md, docs/metrics.md. Run by `npm run config:docs`; a test fails when they are stale.

import { writeFileSync } from "node:fs";
import { defaultFile, referencePage } from "../src/config/reference.ts";
import { metricsPage } from "../src/observe/table.ts";

const root = new URL("../", import.meta.url);
writeFileSync(new URL("config/default.json", root), defaultFile());
writeFileSync(new URL("docs/configuration.md", root), referencePage());
writeFileSync(new URL("docs/metrics.md", root), metricsPage());
