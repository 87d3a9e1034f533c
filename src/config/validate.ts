// Judges single settings by their key's schema. Pure; its sentences hold no secret value.

import Value from "typebox/value";
import { nearest } from "../lib/nearest.ts";
import { describe } from "./keys.ts";
import { didYouMean, type Setting } from "./source.ts";

/** The last setting of each key, with the defaults of its own parts filled in (a manager's role). */
export function latest(
  settings: readonly Setting[],
): ReadonlyMap<string, Setting> {
  return new Map(
    settings.map((setting) => {
      const copy = structuredClone(setting.value);
      const value = Value.Default(setting.key.schema, copy);
      return [setting.key.name, { ...setting, value }];
    }),
  );
}

/** What the schema has against one setting: the first objection only, for it explains the rest. */
export function objections({ key, value, place }: Setting): readonly string[] {
  const errors = Value.Errors(key.schema, value);
  const unknown = errors.find(
    (error) => error.keyword === "additionalProperties",
  );
  if (unknown?.keyword === "additionalProperties") {
    const at = `${key.name}${dotted(unknown.instancePath)}`;
    const name = unknown.params.additionalProperties[0] ?? "";
    const known = Object.keys(key.schema.items?.properties ?? {});
    return [
      `${at} (from ${place}) has an unknown key ${name}${didYouMean(nearest(name, known))}`,
    ];
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
