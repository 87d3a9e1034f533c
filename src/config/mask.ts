// A configuration as it may be shown: secrets that are set become stars. Pure.

import type { OptionSchema } from "./keys.ts";
import { type Config, plainSchema } from "./schema.ts";

/** What stands where a secret is set; an empty secret stays empty, so that one sees it is missing. */
export const MASK = "******";

/** A copy of `config` without its secrets. */
export function maskSecrets(config: Config): unknown {
  return mask(config, plainSchema);
}

function mask(value: unknown, schema: OptionSchema): unknown {
  if (schema.secret === true) return value === "" ? "" : MASK;
  const { items, properties } = schema;
  if (Array.isArray(value) && items !== undefined)
    return value.map((item) => mask(item, items));
  if (properties === undefined) return value;
  return Object.fromEntries(
    Object.entries(value as Record<string, unknown>).map(([name, child]) => [
      name,
      mask(child, properties[name] ?? {}),
    ]),
  );
}
