// Tests that the option schemas are complete and that the files generated from them are up to date.

import { readFileSync } from "node:fs";
import { type OptionSchema, unitOf } from "../../src/config/keys.ts";
import { loadConfig } from "../../src/config/load.ts";
import { defaultFile, referencePage } from "../../src/config/reference.ts";
import { CONFIG_KEYS } from "../../src/config/schema.ts";
import { metricsPage } from "../../src/observe/table.ts";
import { t } from "../support/suite.ts";

const read = (path: string) => readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");

t.test("every configuration key has a default and a description", async (t) => {
  t.ok(CONFIG_KEYS.length > 40);
  for (const { name, schema } of CONFIG_KEYS) {
    t.not(schema.default, undefined, name);
    t.match(schema.description, /^.{12,}\.$/s, name);
  }
});

t.test("every field of an object in a configuration list has a description", async (t) => {
  const fields = CONFIG_KEYS.flatMap(({ schema }) =>
    Object.entries(schema.items?.properties ?? {}),
  );
  t.ok(fields.length > 0);
  for (const [name, field] of fields) t.match(field.description, /^.{12,}\.$/s, name);
});

t.test("every numeric key has a unit and a minimum", async (t) => {
  const numbers = CONFIG_KEYS.filter(({ schema }) =>
    ["integer", "number"].includes(schema.type ?? ""),
  );
  t.ok(numbers.length > 20);
  for (const key of numbers) {
    t.ok(unitOf(key), `${key.name} has a unit`);
    t.type(key.schema.minimum, "number", key.name);
  }
});

t.test("every section of the configuration rejects unknown keys", async (t) => {
  for (const section of [...new Set(CONFIG_KEYS.map((key) => key.path[0]))]) {
    const file = "c.json";
    const readFile = () => JSON.stringify({ [section ?? ""]: { zzzzzzzz: 1 } });
    t.throws(() => loadConfig({ file, readFile }), { name: "ConfigError" }, section ?? "");
  }
});

t.test("every key and every secret file has its own environment variable", async (t) => {
  const names = CONFIG_KEYS.flatMap(({ env, secret }) => (secret ? [env, `${env}_FILE`] : [env]));
  t.equal(new Set(names).size, names.length);
  t.ok(names.includes("JINDOU_API_TLS_PASSPHRASE_FILE"));
  t.notOk(names.includes("JINDOU_CONFIG"));
});

t.test(
  "passwords, tokens, passphrases and addresses that contain a password are secret",
  async (t) => {
    const checkSecret = (name: string, schema: OptionSchema) =>
      t.equal(
        schema.secret === true,
        /(token|[pP]assword|passwordHash|passphrase|[sS]ecret|staticHeaders\.value|^redis\.url)$/.test(
          name,
        ),
        name,
      );
    for (const { name, schema } of CONFIG_KEYS) {
      if (schema.items === undefined) checkSecret(name, schema);
      for (const [field, item] of Object.entries(schema.items?.properties ?? {}))
        checkSecret(`${name}.${field}`, item);
    }
  },
);

t.test("config/default.json is up to date and is a valid configuration", async (t) => {
  const text = read("config/default.json");
  t.equal(
    text,
    defaultFile(),
    "config/default.json is up to date (if not, run `npm run config:docs`)",
  );
  const file = "config/default.json";
  t.same(loadConfig({ file, readFile: () => text }), loadConfig());
});

t.test("docs/configuration.md and docs/metrics.md are up to date", async (t) => {
  t.equal(read("docs/configuration.md"), referencePage());
  t.equal(read("docs/metrics.md"), metricsPage());
});
