// Loads the configuration: defaults < file < environment < flags, checked, frozen. Keeps no state between calls and
// reads nothing but the files it is told of; who calls it passes the environment.

import { readFileSync } from "node:fs";
import Value from "typebox/value";
import {
  CONFIG_FILE_ENV,
  type Environment,
  fromEnvironment,
} from "./environment.ts";
import { ConfigError } from "./errors.ts";
import { fromFile } from "./file.ts";
import { type Flag, fromFlags } from "./flags.ts";
import { type ConfigKey, describe } from "./keys.ts";
import { inconsistencies } from "./rules.ts";
import { CONFIG_KEYS, type Config } from "./schema.ts";
import {
  didYouMean,
  nearestKey,
  type ReadFile,
  type Setting,
  type Source,
} from "./source.ts";

/** Where to look for settings. */
export interface Sources {
  /** The file of `--config`; absent: the one `JINDOU_CONFIG` names, if any. */
  readonly file?: string | undefined;
  readonly env?: Environment;
  readonly flags?: readonly Flag[];
  /** Tests pass their own. */
  readonly readFile?: ReadFile;
}

/** The configuration of one node. Throws ConfigError with a sentence for everything that is wrong. */
export function loadConfig(sources: Sources = {}): Config {
  const readFile = sources.readFile ?? ((path) => readFileSync(path, "utf8"));
  const env = sources.env ?? {};
  const file = sources.file ?? (env[CONFIG_FILE_ENV] || undefined);
  const given: Source[] = [
    ...(file === undefined ? [] : [fromFile(file, CONFIG_KEYS, readFile)]),
    fromEnvironment(env, CONFIG_KEYS, readFile),
    fromFlags(sources.flags ?? [], CONFIG_KEYS),
  ];
  const settings = latest(given.flatMap((source) => source.settings));
  refuse([
    ...given.flatMap((source) => source.problems),
    ...[...settings.values()].flatMap(invalid),
  ]);
  const config = assemble(settings);
  refuse(inconsistencies(config));
  return freeze(config);
}

function refuse(problems: readonly string[]): void {
  if (problems.length > 0) throw new ConfigError(problems);
}

/** The last setting of each key, with the defaults of its own parts filled in (a manager's role). */
function latest(settings: readonly Setting[]): ReadonlyMap<string, Setting> {
  return new Map(
    settings.map((setting) => {
      const copy = structuredClone(setting.value);
      const value = Value.Default(setting.key.schema, copy);
      return [setting.key.name, { ...setting, value }];
    }),
  );
}

/** What the schema has against one setting: the first objection only, for it explains the rest. */
function invalid({ key, value, place }: Setting): readonly string[] {
  const errors = Value.Errors(key.schema, value);
  const unknown = errors.find(
    (error) => error.keyword === "additionalProperties",
  );
  if (unknown?.keyword === "additionalProperties") {
    const at = `${key.name}${dotted(unknown.instancePath)}`;
    const name = unknown.params.additionalProperties[0] ?? "";
    const item = Object.keys(key.schema.items?.properties ?? {});
    const meant = nearestKey(name, item.map(asKey));
    return [
      `${at} (from ${place}) has an unknown key ${name}${didYouMean(meant)}`,
    ];
  }
  const error = errors[0];
  if (error === undefined) return [];
  const at = `${key.name}${dotted(error.instancePath)} (from ${place})`;
  if (error.instancePath !== "") return [`${at} ${error.message}.`];
  const found = key.secret ? "" : `, not ${JSON.stringify(value)}`;
  return [`${at} must be ${describe(key.schema)}${found}.`];
}

function asKey(name: string): ConfigKey {
  return { path: [name], name, env: "", secret: false, schema: {} };
}

/** `/0/role` → `[0].role`. */
function dotted(pointer: string): string {
  return pointer.replace(/\/(\d+)/g, "[$1]").replaceAll("/", ".");
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

/** Sets the value at `path`, making the objects on the way. */
export function place(
  target: Record<string, unknown>,
  path: readonly string[],
  value: unknown,
): void {
  const [name = "", ...rest] = path;
  if (rest.length === 0) {
    target[name] = value;
    return;
  }
  target[name] ??= {};
  place(target[name] as Record<string, unknown>, rest, value);
}

function freeze<Value>(value: Value): Value {
  if (typeof value === "object" && value !== null)
    for (const child of Object.values(Object.freeze(value))) freeze(child);
  return value;
}
