// Generates the reference page and the default configuration file from the option schemas. `npm run
// config:docs` writes them, and a test fails if they are out of date. Contains only pure functions.

import { type ConfigKey, describe, type OptionSchema, place, unitOf } from "./keys.ts";

import { CONFIG_KEYS } from "./schema.ts";

export function defaultFile(): string {
  const defaults: Record<string, unknown> = {};
  for (const key of CONFIG_KEYS) place(defaults, key.path, key.schema.default);
  return `${JSON.stringify(defaults, undefined, 2)}\n`;
}

export function referencePage(): string {
  const sections = [...new Set(CONFIG_KEYS.map((key) => key.path[0] ?? ""))];
  return `${[INTRODUCTION, ...sections.map(sectionText)].join("\n\n")}\n`;
}

const INTRODUCTION = `# Configuration

<!-- Generated from the schemas by \`npm run config:docs\`. Edit the schemas instead. -->

Nothing needs to be configured: without any setting, one node runs on the embedded store in
\`./data\`, and only this machine can reach its HTTP API. Settings come from four sources; each
source overrides the sources listed above it:

1. the defaults, listed below and in \`config/default.json\`;
2. a JSON file, named by \`--config <file>\` or \`JINDOU_CONFIG\`; its objects are nested like the keys;
3. environment variables;
4. flags named like the keys: \`--client.listen=0.0.0.0:5200\`.

In environment variables and flags, the entries of a list are separated by commas
(\`https://a.example,*.b.example\`), and a list of objects is written as JSON. An empty variable counts
as not set. A **secret** can also be read from a file: append \`_FILE\` to the name of the variable and
set it to the path of the file (\`JINDOU_ADMIN_PASSWORD_FILE=/run/secrets/admin\`). Prefer a file to
a flag, because every user of a machine can read command lines.

The same rules apply to values from all sources. A byte order mark at the beginning and newlines and
carriage returns at the end are removed. A value is rejected if it has quotes around it
(\`docker --env-file\` passes them as part of the value), if it begins or ends with a space or an
invisible character, if it contains a control character, or if it is not UTF-8. A path is also
rejected if it is a URL or a Windows path, or if it contains \`~\`, \`$\`, \`%\` or \`{{\`, because
nothing replaces them. The configuration file is also rejected if it contains a key more than once.

If a key, variable or flag is unknown, or a value is outside its range or is rejected for another
reason, the node does not start. The process prints an error message, which shows the value unless
it is secret, and exits with code 2.
\`jindou check-config\` checks the configuration without starting a node. It also checks the Node.js
version, the files that the configuration names and the addresses to listen on.
\`jindou print-config\` prints each value and where it comes from, with secrets masked. With
\`--json\` it prints the values as a configuration file, and with \`--sources\` a JSON document with
the value and the source of each key.`;

function sectionText(section: string): string {
  const keys = CONFIG_KEYS.filter((key) => key.path[0] === section);
  const rows = keys.map(
    (key) =>
      `| ${code(key.name)} <br> ${code(key.env)} | ${typeOf(key)} | ${defaultOf(key)} | ${unitOf(key) ?? ""} | ${meaningOf(key)} |`,
  );
  return [
    `## ${section}`,
    "",
    "| key <br> environment | type | default | unit | meaning |",
    "|---|---|---|---|---|",
    ...rows,
    ...keys.flatMap(({ name, schema }) => itemRows(name, schema.items)),
  ].join("\n");
}

function itemRows(key: string, items: OptionSchema | undefined): readonly string[] {
  if (items?.properties === undefined) return [];
  const rows = Object.entries(items.properties).map(
    ([name, schema]) =>
      `| ${code(name)} | ${typeName(schema)} | ${schema.default === undefined ? "required" : code(JSON.stringify(schema.default))} | ${schema.description ?? ""}${schema.secret ? " **Secret.**" : ""} |`,
  );
  return [
    "",
    `Each entry of ${code(key)} is an object:`,
    "",
    "| field | type | default | meaning |",
    "|---|---|---|---|",
    ...rows,
  ];
}

function typeOf({ schema }: ConfigKey): string {
  return typeName(schema);
}

/** Returns the type without an article (`integer from 1 to 5`), or the allowed values. */
function typeName(schema: OptionSchema): string {
  if (schema.enum !== undefined)
    return schema.enum.map((choice) => code(String(choice))).join(", ");
  return describe(schema)
    .replace(/^an? /, "")
    .replace(/matching (.+)$/, "matching `$1`");
}

function defaultOf({ schema }: ConfigKey): string {
  return code(JSON.stringify(schema.default));
}

function meaningOf(key: ConfigKey): string {
  const secret = key.schema.secret ? " **Secret.**" : "";
  return `${key.schema.description ?? ""}${secret}`;
}

function code(text: string): string {
  return `\`${text}\``;
}
