// The configuration file: JSON whose objects nest as the keys' paths do. Reads through the caller's function.

import type { ConfigKey } from "./keys.ts";
import {
  didYouMean,
  nearestKey,
  type ReadFile,
  reasonOf,
  type Source,
} from "./source.ts";

interface Walk {
  readonly source: Source;
  readonly keys: readonly ConfigKey[];
  readonly place: string;
}

/** The settings in the file at `path`, and what is wrong with it. */
export function fromFile(
  path: string,
  keys: readonly ConfigKey[],
  readFile: ReadFile,
): Source {
  const source: Source = { settings: [], problems: [] };
  let text: string;
  try {
    text = readFile(path);
  } catch (error) {
    source.problems.push(
      `The configuration file ${path} cannot be read: ${reasonOf(error)}.`,
    );
    return source;
  }
  try {
    collect({ source, keys, place: path }, JSON.parse(text), []);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    source.problems.push(
      `The configuration file ${path} is not valid JSON${lineOf(error, text)}.`,
    );
  }
  return source;
}

function collect(walk: Walk, value: unknown, path: readonly string[]): void {
  const { source, keys, place } = walk;
  const name = path.join(".");
  const key = keys.find((candidate) => candidate.name === name);
  if (key !== undefined) {
    source.settings.push({ key, value, place });
    return;
  }
  const isSection =
    name === "" || keys.some((other) => other.name.startsWith(`${name}.`));
  if (!isSection) {
    source.problems.push(
      `${place} has an unknown key ${name}${didYouMean(nearestKey(name, keys))}`,
    );
  } else if (!isObject(value)) {
    source.problems.push(
      `${name || "The whole document"} in ${place} must be an object.`,
    );
  } else {
    for (const [part, child] of Object.entries(value))
      collect(walk, child, [...path, part]);
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Where the parser stopped. Its own words are not repeated: they quote the file, which may hold secrets. */
function lineOf(error: SyntaxError, text: string): string {
  const position = /position (\d+)/.exec(error.message)?.[1];
  if (position === undefined) return "";
  return ` (line ${text.slice(0, Number(position)).split("\n").length})`;
}
