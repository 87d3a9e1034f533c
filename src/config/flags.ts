// Configuration from command-line flags that are named like the keys: `--client.listen=:5200`.

import type { ConfigKey } from "./keys.ts";
import { addText, didYouMean, nearestKey, type Source } from "./source.ts";

/** A flag as written. */
export interface Flag {
  readonly name: string;
  readonly value: string;
}

/** The settings in `flags`; of a flag given twice the last one counts. */
export function fromFlags(
  flags: readonly Flag[],
  keys: readonly ConfigKey[],
): Source {
  const source: Source = { settings: [], problems: [] };
  for (const { name, value } of flags) {
    const key = keys.find((candidate) => candidate.name === name);
    const place = `the flag --${name}`;
    if (key !== undefined) addText(source, key, { text: value, place });
    else source.problems.push(unknownFlag(name, keys));
  }
  return source;
}

/** The sentence about a flag that is none; `others` are names beside the keys'. */
export function unknownFlag(name: string, keys: readonly ConfigKey[]): string {
  const meant = nearestKey(name, keys);
  return `--${name} is no known flag${didYouMean(meant && `--${meant}`)}`;
}
