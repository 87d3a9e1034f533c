// Where settings come from: the configuration file, environment variables `JINDOU_<PATH>` (or
// `JINDOU_<PATH>_FILE`, the path of a file with a secret), and flags named like the keys. Reads
// files through the caller's function; checks no ranges, which `load.ts` does for all sources.

import { readFileSync } from "node:fs";
import { nearest } from "../lib/nearest.ts";
import { type ConfigKey, describe } from "./keys.ts";
import { CONFIG_KEYS } from "./schema.ts";

export interface Sources {
  /** The file of `--config`; absent: the one `JINDOU_CONFIG` names, if any. */
  readonly file?: string | undefined;
  readonly env?: Environment;
  readonly flags?: readonly Flag[];
  /** Tests pass their own. */
  readonly readFile?: ReadFile;
}

type Environment = Readonly<Record<string, string | undefined>>;

/** A flag as written. */
export interface Flag {
  readonly name: string;
  readonly value: string;
}

/** Returns a file's text or throws. */
type ReadFile = (path: string) => string;

/** A given value and its place, for messages. */
export interface Setting {
  readonly key: ConfigKey;
  readonly value: unknown;
  /** E.g. `the environment variable JINDOU_API_LISTEN`. */
  readonly place: string;
}

/** The result of reading sources; filled while they are read. */
interface Source {
  readonly settings: Setting[];
  /** Sentences; none holds a secret value. */
  readonly problems: string[];
}

/** Names the configuration file; not itself a key. */
const CONFIG_FILE_ENV = "JINDOU_CONFIG";

/** All settings, the winning ones last, and all problems. */
export function gather(sources: Sources): Source {
  const readFile = sources.readFile ?? ((path) => readFileSync(path, "utf8"));
  const env = sources.env ?? {};
  const file = sources.file ?? (env[CONFIG_FILE_ENV] || undefined);
  const source: Source = { settings: [], problems: [] };
  if (file !== undefined) addFile(source, file, readFile);
  addEnvironment(source, env, readFile);
  for (const flag of sources.flags ?? []) addFlag(source, flag);
  return source;
}

/** Its objects nest as the keys' paths do. */
function addFile(source: Source, path: string, readFile: ReadFile): void {
  const { problems } = source;
  let text: string;
  try {
    text = readFile(path);
  } catch (error) {
    problems.push(`The configuration file ${path} cannot be read: ${reasonOf(error)}.`);
    return;
  }
  try {
    addObject(source, path, JSON.parse(text), []);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    problems.push(`The configuration file ${path} is not valid JSON${lineOf(error, text)}.`);
  }
}

function addObject(source: Source, place: string, value: unknown, path: readonly string[]): void {
  const { settings, problems } = source;
  const name = path.join(".");
  const key = keyNamed(name);
  if (key !== undefined) {
    settings.push({ key, value, place });
    return;
  }
  const isSection = name === "" || CONFIG_KEYS.some((other) => other.name.startsWith(`${name}.`));
  if (!isSection) {
    problems.push(`${place} has an unknown key ${name}${didYouMean(nearestKey(name))}`);
  } else if (!isObject(value)) {
    problems.push(`${name || "The whole document"} in ${place} must be an object.`);
  } else {
    for (const [part, child] of Object.entries(value))
      addObject(source, place, child, [...path, part]);
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The parser's message is not repeated: it quotes the file, which may hold secrets. */
function lineOf(error: SyntaxError, text: string): string {
  const position = /position (\d+)/.exec(error.message)?.[1];
  if (position === undefined) return "";
  return ` (line ${text.slice(0, Number(position)).split("\n").length})`;
}

/** An empty variable counts as absent: `${NAME:-}` in a compose file makes one. */
function addEnvironment(source: Source, env: Environment, readFile: ReadFile): void {
  const byEnv = new Map(CONFIG_KEYS.map((key) => [key.env, key]));
  for (const [name, text] of Object.entries(env)) {
    if (!name.startsWith("JINDOU_") || text === undefined || text === "") continue;
    if (name === CONFIG_FILE_ENV) continue;
    const key = byEnv.get(name);
    const owner = byEnv.get(name.replace(/_FILE$/, ""));
    if (key !== undefined)
      addText(source, key, { text, place: `the environment variable ${name}` });
    else if (owner?.secret && env[owner.env])
      source.problems.push(`${owner.env} and ${name} are both set; set one of them.`);
    else if (owner?.secret) addSecretFile(source, owner, { path: text, name, readFile });
    else if (!isServiceLink(name, text))
      source.problems.push(
        `The environment variable ${name} is not a known setting${didYouMean(nearest(name, byEnv.keys()))}`,
      );
  }
}

/** Kubernetes sets these in every pod beside a Service called `jindou…`. */
function isServiceLink(name: string, text: string): boolean {
  return (
    /_SERVICE_(HOST|PORT(_\w+)?)$/.test(name) ||
    /_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$/.test(name) ||
    (name.endsWith("_PORT") && /^(tcp|udp|sctp):\/\//.test(text))
  );
}

function addSecretFile(
  source: Source,
  key: ConfigKey,
  from: {
    readonly path: string;
    readonly name: string;
    readonly readFile: ReadFile;
  },
): void {
  const place = `the file ${from.path} that ${from.name} names`;
  let text: string;
  try {
    text = from.readFile(from.path).replace(/\r?\n$/, "");
  } catch (error) {
    source.problems.push(`${key.name}: ${place} cannot be read: ${reasonOf(error)}.`);
    return;
  }
  if (text === "") source.problems.push(`${key.name}: ${place} is empty.`);
  else addText(source, key, { text, place });
}

function addFlag(source: Source, { name, value }: Flag): void {
  const key = keyNamed(name);
  if (key === undefined) source.problems.push(unknownFlag(name));
  else addText(source, key, { text: value, place: `the flag --${name}` });
}

export function unknownFlag(name: string): string {
  const meant = nearestKey(name);
  return `--${name} is not a known flag${didYouMean(meant && `--${meant}`)}`;
}

/** Adds the value of `text`, or the problem that it has none. */
function addText(
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

/** The value of `text`; undefined if it is not of the key's type. */
function parseText(text: string, key: ConfigKey): unknown {
  if (key.schema.enum !== undefined) return text;
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
    return undefined; // without the parser's message, which would quote a secret
  }
}

function keyNamed(name: string): ConfigKey | undefined {
  return CONFIG_KEYS.find((key) => key.name === name);
}

/** The closest key or section; a bare last part (`listen`) finds the first key that ends so. */
function nearestKey(name: string): string | undefined {
  const names = CONFIG_KEYS.map((key) => key.name);
  const sections = CONFIG_KEYS.flatMap(({ path }) =>
    path.slice(0, -1).map((_, last) => path.slice(0, last + 1).join(".")),
  );
  return (
    names.find((known) => known.endsWith(`.${name}`)) ?? nearest(name, [...sections, ...names])
  );
}

/** Ends a sentence about an unknown name with a suggestion, or with a pointer to the help. */
export function didYouMean(name: string | undefined): string {
  return name === undefined ? "; see jindou --help." : `; did you mean ${name}?`;
}

/** The system's message, as the end of a sentence without its full stop. */
function reasonOf(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  return text.replace(/\.$/, "");
}
