// Writes the files that are generated from the option schemas, the metrics table, the alerts and
// the route table: config/default.json, dashboard.json and rules.yaml in config/observability,
// docs/configuration.md, docs/metrics.md, the list of events in docs/events.md and
// src/backend/operations.ts. Run by `npm run config:docs`. A test fails if a file is out of date.

import { readFileSync, writeFileSync } from "node:fs";
import { withEventList } from "../src/api/event-schemas.ts";
import { defaultFile, referencePage } from "../src/config/reference.ts";
import { metricsPage } from "../src/observe/table.ts";
import { operationsFile } from "./backend-client.ts";
import { dashboardFile } from "./dashboard.ts";
import { rulesFile } from "./rules-file.ts";

const root = new URL("../", import.meta.url);
writeFileSync(new URL("config/default.json", root), defaultFile());
writeFileSync(new URL("docs/configuration.md", root), referencePage());
writeFileSync(new URL("docs/metrics.md", root), metricsPage());
writeFileSync(new URL("src/backend/operations.ts", root), operationsFile());
const events = new URL("docs/events.md", root);
writeFileSync(events, withEventList(readFileSync(events, "utf8")));
writeFileSync(new URL("config/observability/dashboard.json", root), dashboardFile());
writeFileSync(new URL("config/observability/rules.yaml", root), rulesFile());
