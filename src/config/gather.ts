// Reads every source of configuration in the order in which they win: file, environment, flags. Judges no values.

import { readFileSync } from "node:fs";
import {
  CONFIG_FILE_ENV,
  type Environment,
  fromEnvironment,
} from "./environment.ts";
import { fromFile } from "./file.ts";
import { type Flag, fromFlags } from "./flags.ts";
import { CONFIG_KEYS } from "./schema.ts";
import type { ReadFile, Source } from "./source.ts";

/** Where to look for settings. */
export interface Sources {
  /** The file of `--config`; absent: the one `JINDOU_CONFIG` names, if any. */
  readonly file?: string | undefined;
  readonly env?: Environment;
  readonly flags?: readonly Flag[];
  /** Tests pass their own. */
  readonly readFile?: ReadFile;
}

/** All settings, the winning ones last, and all problems. */
export function gather(sources: Sources): Source {
  const readFile = sources.readFile ?? ((path) => readFileSync(path, "utf8"));
  const env = sources.env ?? {};
  const file = sources.file ?? (env[CONFIG_FILE_ENV] || undefined);
  const all = [
    ...(file === undefined ? [] : [fromFile(file, CONFIG_KEYS, readFile)]),
    fromEnvironment(env, CONFIG_KEYS, readFile),
    fromFlags(sources.flags ?? [], CONFIG_KEYS),
  ];
  return {
    settings: all.flatMap((source) => source.settings),
    problems: all.flatMap((source) => source.problems),
  };
}
