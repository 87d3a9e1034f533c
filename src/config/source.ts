// What all sources of configuration share: settings, problems, text that becomes a typed value, and "did you mean".
// Pure; decides nothing about ranges, which `load` checks once for every source.

import { nearest } from "../lib/nearest.ts";
import { type ConfigKey, choicesOf, describe } from "./keys.ts";

/** One value somebody gave, and where, for messages. */
export interface Setting {
  readonly key: ConfigKey;
  readonly value: unknown;
  /** E.g. `the environment variable JINDOU_API_LISTEN`. */
  readonly place: string;
}

/** What reading a source gave; filled while it is read. */
export interface Source {
  readonly settings: Setting[];
  /** Sentences; none holds a secret value. */
  readonly problems: string[];
}

/** Returns a file's text or throws. */
export type ReadFile = (path: string) => string;

/** Adds the value that `text` stands for, or the problem that it stands for none. */
export function addText(
  source: Source,
  key: ConfigKey,
  given: { readonly text: string; readonly place: string },
): void {
  const value = parseText(given.text, key);
  if (value !== undefined) {
    source.settings.push({ key, value, place: given.place });
    return;
  }
  const found = key.secret ? "" : `, not ${JSON.stringify(given.text)}`;
  source.problems.push(
    `${key.name} (from ${given.place}) must be ${describe(key.schema)}${isObjectList(key) ? " in JSON" : ""}${found}.`,
  );
}

const BOOLEANS: ReadonlyMap<string, boolean> = new Map([
  ["true", true],
  ["1", true],
  ["false", false],
  ["0", false],
]);

/** The value that `text` stands for; undefined when it cannot be one of the key's type. */
function parseText(text: string, key: ConfigKey): unknown {
  if (choicesOf(key.schema) !== undefined) return text;
  switch (key.schema.type) {
    case "integer":
    case "number":
      return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : undefined;
    case "boolean":
      return BOOLEANS.get(text);
    case "array":
      return isObjectList(key) ? parseJson(text) : parseList(text);
    default:
      return text;
  }
}

function isObjectList({ schema }: ConfigKey): boolean {
  return schema.items?.properties !== undefined;
}

function parseList(text: string): readonly string[] {
  const parts = text.split(",").map((part) => part.trim());
  return parts.filter((part) => part !== "");
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // The caller names the place; the parser's own words would quote the secret.
    return undefined;
  }
}

/** The key or section that `name` was probably meant to be; a bare last part (`listen`) finds the first key that ends so. */
export function nearestKey(
  name: string,
  keys: readonly ConfigKey[],
): string | undefined {
  const names = keys.map((key) => key.name);
  const sections = keys.flatMap(({ path }) =>
    path.slice(0, -1).map((_, last) => path.slice(0, last + 1).join(".")),
  );
  return (
    names.find((known) => known.endsWith(`.${name}`)) ??
    nearest(name, [...sections, ...names])
  );
}

/** Ends a sentence about an unknown name, offering `name` if there is one, else the help. */
export function didYouMean(name: string | undefined): string {
  return name === undefined
    ? "; see jindou --help."
    : `; did you mean ${name}?`;
}

/** What the system said, as the end of a sentence without its full stop. */
export function reasonOf(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  return text.replace(/\.$/, "");
}
