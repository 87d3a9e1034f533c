// Loads the configuration from the defaults, the file, the environment and the flags. A later
// source in this list overrides an earlier source. The result is validated and frozen.

import Value from "typebox/value";
import { nearest } from "../lib/nearest.ts";
import { ConfigError } from "./errors.ts";
import { describe, place } from "./keys.ts";
import { inconsistencies } from "./rules.ts";
import { CONFIG_KEYS, type Config } from "./schema.ts";
import { shown } from "./setting-text.ts";
import { didYouMean, gather, type Setting, type Sources } from "./sources.ts";

/** A configuration and the sources of its values. */
export interface SourcedConfig {
  readonly config: Config;
  /** The sources of each key that is set, by name. The first source determines the value. */
  readonly places: ReadonlyMap<string, readonly string[]>;
}

/** Returns the configuration of one node. Throws a ConfigError that lists the problems. */
export function loadConfig(sources: Sources = {}): Config {
  return loadSourcedConfig(sources).config;
}

/** Works like `loadConfig`, and also returns the source of each value. */
export function loadSourcedConfig(sources: Sources): SourcedConfig {
  const gathered = gather(sources);
  const settings = lastSettings(gathered.settings);
  throwIfAny([...gathered.problems, ...[...settings.values()].flatMap(schemaProblems)]);
  const config = assemble(settings);
  throwIfAny(inconsistencies(config));
  return { config: freeze(config), places: placesOf(gathered.settings) };
}

function placesOf(settings: readonly Setting[]): ReadonlyMap<string, readonly string[]> {
  const places = new Map<string, string[]>();
  for (const { key, place } of settings)
    places.set(key.name, [place, ...(places.get(key.name) ?? [])]);
  return places;
}

function throwIfAny(problems: readonly string[]): void {
  if (problems.length > 0) throw new ConfigError(problems);
}

function assemble(settings: ReadonlyMap<string, Setting>): Config {
  const config: Record<string, unknown> = {};
  for (const key of CONFIG_KEYS) {
    const setting = settings.get(key.name);
    const fallback = structuredClone(key.schema.default);
    place(config, key.path, setting === undefined ? fallback : setting.value);
  }
  // Every key now has a valid value, so the object has the type Config.
  return config as Config;
}

/** Returns the last setting of each key, and fills in the defaults of fields inside its value. */
function lastSettings(settings: readonly Setting[]): ReadonlyMap<string, Setting> {
  return new Map(
    settings.map((setting) => {
      const copy = structuredClone(setting.value);
      const value = Value.Default(setting.key.schema, copy);
      return [setting.key.name, { ...setting, value }];
    }),
  );
}

/** Returns the schema violations of a setting as sentences, which never contain a secret value. */
function schemaProblems({ key, value, place }: Setting): readonly string[] {
  const errors = Value.Errors(key.schema, value);
  const unknown = errors.find((error) => error.keyword === "additionalProperties");
  if (unknown?.keyword === "additionalProperties") {
    const path = `${key.name}${dotted(unknown.instancePath)}`;
    const name = unknown.params.additionalProperties[0] ?? "";
    const names = Object.keys(key.schema.items?.properties ?? {});
    return [
      `${path} (from ${place}) has an unknown key ${name}${didYouMean(nearest(name, names))}`,
    ];
  }
  const error = errors[0];
  if (error === undefined) return [];
  const subject = `${key.name}${dotted(error.instancePath)} (from ${place})`;
  if (error.instancePath !== "") return [`${subject} ${error.message}.`];
  const actual = key.secret ? "" : `, not ${shown(value)}`;
  return [`${subject} must be ${describe(key.schema)}${actual}.`];
}

/** Converts a JSON pointer to key notation: `/0/role` becomes `[0].role`. */
function dotted(pointer: string): string {
  return pointer.replace(/\/(\d+)/g, "[$1]").replaceAll("/", ".");
}

function freeze<Value>(value: Value): Value {
  if (typeof value === "object" && value !== null)
    for (const child of Object.values(Object.freeze(value))) freeze(child);
  return value;
}
