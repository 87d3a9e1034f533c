// Builds the recording rules and alerts in config/observability/rules.yaml from the table in
// src/observe/alerts.ts. `npm run config:docs` writes the file.

import { stringify } from "yaml";
import { ALERTS, exprOf, RECORDING_RULES } from "../src/observe/alerts.ts";

const HEAD = `# Rules for Prometheus. Generated from src/observe/alerts.ts by \`npm run config:docs\`.
# The name of the scrape job must be "jindou". docs/operations.md has a section for each alert.

`;

/** Path of the page that has a section for each alert. */
const RUNBOOK = "docs/operations.md";

/** Returns the text of the file. */
export function rulesFile(): string {
  const alerts = ALERTS.map(({ name, severity, when, forMinutes, summary }) => ({
    alert: name,
    expr: exprOf({ when }),
    ...(forMinutes > 0 && { for: `${forMinutes}m` }),
    labels: { severity },
    annotations: { summary, runbook_url: `${RUNBOOK}#${name.toLowerCase()}` },
  }));
  const records = RECORDING_RULES.map(({ name, expr }) => ({ record: name, expr }));
  const groups = [
    { name: "jindou.rules", rules: records },
    { name: "jindou.alerts", rules: alerts },
  ];
  return HEAD + stringify({ groups }, { lineWidth: 0 });
}
