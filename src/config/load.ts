// Loads the configuration: defaults < file < environment < flags, checked, frozen. Keeps no state
// and reads only the files it is given; the caller passes the environment.

import Value from "typebox/value";
import { nearest } from "../lib/nearest.ts";
import { ConfigError } from "./errors.ts";
import { describe, place } from "./keys.ts";
import { inconsistencies } from "./rules.ts";
import { CONFIG_KEYS, type Config } from "./schema.ts";
import { didYouMean, gather, type Setting, type Sources } from "./sources.ts";

/** The configuration of one node. Throws ConfigError with a message for each problem. */
export function loadConfig(sources: Sources = {}): Config {
  const given = gather(sources);
  const settings = latest(given.settings);
  refuse([...given.problems, ...[...settings.values()].flatMap(objections)]);
  const config = assemble(settings);
  refuse(inconsistencies(config));
  return freeze(config);
}

function refuse(problems: readonly string[]): void {
  if (problems.length > 0) throw new ConfigError(problems);
}

function assemble(settings: ReadonlyMap<string, Setting>): Config {
  const config: Record<string, unknown> = {};
  for (const key of CONFIG_KEYS) {
    const setting = settings.get(key.name);
    const fallback = structuredClone(key.schema.default);
    place(config, key.path, setting === undefined ? fallback : setting.value);
  }
  // Every key is present with a value its schema accepts, which is what Config says.
  return config as Config;
}

/** The last setting of each key, with the defaults of its parts (a manager's role). */
function latest(settings: readonly Setting[]): ReadonlyMap<string, Setting> {
  return new Map(
    settings.map((setting) => {
      const copy = structuredClone(setting.value);
      const value = Value.Default(setting.key.schema, copy);
      return [setting.key.name, { ...setting, value }];
    }),
  );
}

/** The first schema error of a setting: the others follow from it. Holds no secret value. */
function objections({ key, value, place }: Setting): readonly string[] {
  const errors = Value.Errors(key.schema, value);
  const unknown = errors.find((error) => error.keyword === "additionalProperties");
  if (unknown?.keyword === "additionalProperties") {
    const at = `${key.name}${dotted(unknown.instancePath)}`;
    const name = unknown.params.additionalProperties[0] ?? "";
    const known = Object.keys(key.schema.items?.properties ?? {});
    return [`${at} (from ${place}) has an unknown key ${name}${didYouMean(nearest(name, known))}`];
  }
  const error = errors[0];
  if (error === undefined) return [];
  const at = `${key.name}${dotted(error.instancePath)} (from ${place})`;
  if (error.instancePath !== "") return [`${at} ${error.message}.`];
  const found = key.secret ? "" : `, not ${JSON.stringify(value)}`;
  return [`${at} must be ${describe(key.schema)}${found}.`];
}

/** `/0/role` → `[0].role`. */
function dotted(pointer: string): string {
  return pointer.replace(/\/(\d+)/g, "[$1]").replaceAll("/", ".");
}

function freeze<Value>(value: Value): Value {
  if (typeof value === "object" && value !== null)
    for (const child of Object.values(Object.freeze(value))) freeze(child);
  return value;
}
