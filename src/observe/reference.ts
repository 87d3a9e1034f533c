// The page about the metrics, made from the table. Pure: `npm run config:docs` writes what this returns.

import { METRICS } from "./table.ts";

/** `docs/metrics.md`. */
export function metricsPage(): string {
  const rows = Object.values(METRICS).map(
    ({ name, kind, labels, help }) =>
      `| \`${name}\` | ${kind} | ${labels.map((label) => `\`${label}\``).join(", ")} | ${help} |`,
  );
  return `${[INTRODUCTION, "", "| name | kind | labels | meaning |", "|---|---|---|---|", ...rows].join("\n")}\n`;
}

const INTRODUCTION = `# Metrics

<!-- Made from \`src/observe/table.ts\` by \`npm run config:docs\`; edit that. -->

\`GET /metrics\` on the API's address answers in the Prometheus text format. Beside the metrics below it has those of the process
(\`process_*\`) and of Node.js (\`nodejs_*\`: event-loop lag, heap, garbage collection). A metric without a sample is not measured by this
node's parts.`;
