// Loads the configuration: defaults < file < environment < flags, checked, frozen. Keeps no state between calls and
// reads nothing but the files it is told of; who calls it passes the environment.

import { ConfigError } from "./errors.ts";
import { gather, type Sources } from "./gather.ts";
import { inconsistencies } from "./rules.ts";
import { CONFIG_KEYS, type Config } from "./schema.ts";
import type { Setting } from "./source.ts";
import { latest, objections } from "./validate.ts";

/** The configuration of one node. Throws ConfigError with a sentence for everything that is wrong. */
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
