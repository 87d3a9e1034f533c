// Reads settings from the configuration file, from environment variables (`JINDOU_<PATH>`, or
// `JINDOU_<PATH>_FILE` for the path of a file that contains a secret), and from flags named like
// the keys. `load.ts` checks the ranges of the values from all sources.

import { readFileSync } from "node:fs";
import { nearest } from "../lib/nearest.ts";
import { encodingFault, trimFile } from "../lib/text-faults.ts";
import { JsonTextError, parseJsonText } from "./json-text.ts";
import { type ConfigKey, describe } from "./keys.ts";
import { CONFIG_KEYS } from "./schema.ts";
import { cleanJson, cleanText, cleanValue, sentence, shown } from "./setting-text.ts";

export interface Sources {
  /** Path of the file. `undefined` means the file that `JINDOU_CONFIG` names, if any. */
  readonly file?: string | undefined;
  readonly env?: Environment;
  readonly flags?: readonly Flag[];
  readonly readFile?: ReadFile;
}

type Environment = Readonly<Record<string, string | undefined>>;

export interface Flag {
  readonly name: string;
  readonly value: string;
}

type ReadFile = (path: string) => string;

export interface Setting {
  readonly key: ConfigKey;
  readonly value: unknown;
  /** Name of the source in messages, for example `the environment variable JINDOU_API_LISTEN`. */
  readonly place: string;
}

interface ReadResult {
  readonly settings: Setting[];
  readonly problems: string[];
}

/** Environment variable with the configuration file's path. Not a configuration key. */
const CONFIG_FILE_ENV = "JINDOU_CONFIG";
/** Environment variable with the user's token for `jindou watch`. Not a configuration key. */
export const USER_TOKEN_ENV = "JINDOU_USER_TOKEN";
/**
 * Environment variable with the source server's token for `jindou import`. Not a configuration key.
 */
export const IMPORT_TOKEN_ENV = "JINDOU_IMPORT_TOKEN";
/**
 * Environment variable with the credential for `--to` of `jindou import`. Not a configuration key.
 */
export const TARGET_TOKEN_ENV = "JINDOU_TOKEN";
const OTHER_ENV: ReadonlySet<string> = new Set([
  CONFIG_FILE_ENV,
  USER_TOKEN_ENV,
  `${USER_TOKEN_ENV}_FILE`,
  IMPORT_TOKEN_ENV,
  `${IMPORT_TOKEN_ENV}_FILE`,
  TARGET_TOKEN_ENV,
  `${TARGET_TOKEN_ENV}_FILE`,
]);

/** Reads all sources. A later setting of a key overrides an earlier setting of that key. */
export function gather(sources: Sources): ReadResult {
  const readFile = sources.readFile ?? ((path) => readFileSync(path, "utf8"));
  const env = sources.env ?? {};
  const result: ReadResult = { settings: [], problems: [] };
  const named = trimFile(env[CONFIG_FILE_ENV] ?? "");
  const file =
    sources.file === undefined && named !== ""
      ? readPath(result, named, `The environment variable ${CONFIG_FILE_ENV}`)
      : sources.file && readPath(result, sources.file, "The flag --config");
  if (file !== undefined) addFile(result, file, readFile);
  addEnvironment(result, env, readFile);
  for (const flag of sources.flags ?? []) addFlag(result, flag);
  return result;
}

function addFile(result: ReadResult, path: string, readFile: ReadFile): void {
  const { problems } = result;
  const subject = `The configuration file ${path}`;
  let text: string;
  try {
    text = readFile(path);
  } catch (error) {
    problems.push(`${subject} cannot be read: ${reasonOf(error)}.`);
    return;
  }
  const document = parseJson(result, trimFile(text), subject);
  if (document !== undefined) addObject(result, path, document.value, []);
}

function readPath(result: ReadResult, original: string, subject: string): string | undefined {
  const { text, fault } = cleanText(original, true);
  if (fault !== undefined) result.problems.push(sentence(subject, fault, text));
  return fault === undefined ? text : undefined;
}

function parseJson(
  result: ReadResult,
  text: string,
  subject: string,
): { readonly value: unknown } | undefined {
  try {
    const { value, repeatedKeys } = parseJsonText(text);
    for (const { path, lines } of repeatedKeys)
      result.problems.push(
        `${subject} has the key ${path} more than once (${linesText(lines)}). Keep one of them.`,
      );
    return { value };
  } catch (error) {
    if (!(error instanceof JsonTextError)) throw error;
    result.problems.push(
      sentence(subject, encodingFault(text) ?? `is ${error.message}`, undefined),
    );
    return undefined;
  }
}

function linesText(lines: readonly number[]): string {
  const places = [...new Set(lines)];
  return `${places.length === 1 ? "line" : "lines"} ${places.join(", ")}`;
}

function addObject(
  result: ReadResult,
  place: string,
  value: unknown,
  path: readonly string[],
): void {
  const { problems } = result;
  const name = path.join(".");
  const key = keyNamed(name);
  if (key !== undefined) {
    addValue(result, key, value, place);
    return;
  }
  const isSection =
    name === "" || CONFIG_KEYS.some((section) => section.name.startsWith(`${name}.`));
  if (!isSection) {
    problems.push(`${place} has an unknown key ${name}${didYouMean(nearestKey(name))}`);
  } else if (!isObject(value)) {
    problems.push(`${name || "The whole document"} in ${place} must be an object.`);
  } else {
    for (const [childName, child] of Object.entries(value))
      addObject(result, place, child, [...path, childName]);
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * Adds the environment variables. An empty variable (`${NAME:-}` in a compose file) is treated as
 * not set.
 */
function addEnvironment(result: ReadResult, env: Environment, readFile: ReadFile): void {
  const byEnv = new Map(CONFIG_KEYS.map((key) => [key.env, key]));
  for (const [name, text] of Object.entries(env)) {
    if (!name.startsWith("JINDOU_") || text === undefined || trimFile(text) === "") continue;
    if (OTHER_ENV.has(name)) continue;
    const key = byEnv.get(name);
    const owner = byEnv.get(name.replace(/_FILE$/, ""));
    if (key !== undefined)
      addText(result, key, { text, place: `the environment variable ${name}` });
    else if (owner?.secret && trimFile(env[owner.env] ?? "") !== "")
      result.problems.push(`Both ${owner.env} and ${name} are set. Set only one of them.`);
    else if (owner?.secret) addSecretFile(result, owner, { path: text, name, readFile });
    else if (!isServiceLink(name, text))
      result.problems.push(
        `The environment variable ${name} is not a known setting${didYouMean(nearest(name, byEnv.keys()))}`,
      );
  }
}

/** Returns true if Kubernetes sets this variable because a Service is named `jindou…`. */
function isServiceLink(name: string, text: string): boolean {
  return (
    /_SERVICE_(HOST|PORT(_\w+)?)$/.test(name) ||
    /_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$/.test(name) ||
    (name.endsWith("_PORT") && /^(tcp|udp|sctp):\/\//.test(text))
  );
}

function addSecretFile(
  result: ReadResult,
  key: ConfigKey,
  from: {
    readonly path: string;
    readonly name: string;
    readonly readFile: ReadFile;
  },
): void {
  const path = readPath(result, from.path, `The environment variable ${from.name}`);
  if (path === undefined) return;
  const place = `the file ${path} that ${from.name} names`;
  let text: string;
  try {
    text = trimFile(from.readFile(path));
  } catch (error) {
    result.problems.push(`${key.name}: ${place} cannot be read: ${reasonOf(error)}.`);
    return;
  }
  if (text === "") result.problems.push(`${key.name}: ${place} is empty.`);
  else addText(result, key, { text, place });
}

function addFlag(result: ReadResult, { name, value }: Flag): void {
  const key = keyNamed(name);
  if (key === undefined) result.problems.push(unknownFlag(name));
  else addText(result, key, { text: value, place: `the flag --${name}` });
}

export function unknownFlag(name: string): string {
  const suggestion = nearestKey(name);
  return `--${name} is not a known flag${didYouMean(suggestion && `--${suggestion}`)}`;
}

function addText(
  result: ReadResult,
  key: ConfigKey,
  input: { readonly text: string; readonly place: string },
): void {
  const { place } = input;
  const subject = `${key.name} (from ${place})`;
  const isJson = isObjectList(key);
  const { text, fault } = isJson ? cleanJson(input.text) : cleanText(input.text, isPath(key));
  const visible = key.secret ? undefined : text;
  if (fault !== undefined) {
    result.problems.push(sentence(subject, fault, visible));
    return;
  }
  if (isJson) {
    const document = parseJson(result, text, subject);
    if (document !== undefined) addValue(result, key, document.value, place);
    return;
  }
  const value = parseText(text, key);
  if (value !== undefined) {
    addValue(result, key, value, place);
    return;
  }
  const actual = visible === undefined ? "" : `, not ${shown(visible)}`;
  result.problems.push(`${subject} must be ${describe(key.schema)}${actual}.`);
}

function addValue(result: ReadResult, key: ConfigKey, original: unknown, place: string): void {
  const { name, schema } = key;
  const { value, problems } = cleanValue(original, { schema, name, place });
  result.problems.push(...problems);
  if (problems.length === 0) result.settings.push({ key, value, place });
}

const BOOLEANS: ReadonlyMap<string, boolean> = new Map([
  ["true", true],
  ["1", true],
  ["false", false],
  ["0", false],
]);

function parseText(text: string, key: ConfigKey): unknown {
  if (key.schema.enum !== undefined) return text;
  switch (key.schema.type) {
    case "integer":
    case "number":
      return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : undefined;
    case "boolean":
      return BOOLEANS.get(text);
    case "array":
      return parseList(text);
    default:
      return text;
  }
}

function isObjectList({ schema }: ConfigKey): boolean {
  return schema.items?.properties !== undefined;
}

function isPath({ schema }: ConfigKey): boolean {
  return schema.unit === "path";
}

function parseList(text: string): readonly string[] {
  const entries = text.split(",").map((entry) => entry.trim());
  return entries.filter((entry) => entry !== "");
}

function keyNamed(name: string): ConfigKey | undefined {
  return CONFIG_KEYS.find((key) => key.name === name);
}

/**
 * Returns the key that ends with `.` and `name` (`api.listen` for `listen`), or else a key or a
 * section with a similar name. Returns `undefined` if there is no such key or section.
 */
function nearestKey(name: string): string | undefined {
  const names = CONFIG_KEYS.map((key) => key.name);
  const sections = CONFIG_KEYS.flatMap(({ path }) =>
    path.slice(0, -1).map((_, last) => path.slice(0, last + 1).join(".")),
  );
  return names.find((key) => key.endsWith(`.${name}`)) ?? nearest(name, [...sections, ...names]);
}

export function didYouMean(name: string | undefined): string {
  return name === undefined ? "; see jindou --help." : `; did you mean ${name}?`;
}

function reasonOf(error: unknown): string {
  const text = (error instanceof Error ? error.message : String(error)).replace(/\.$/, "");
  const { code } = Object(error) as { readonly code?: unknown };
  const uid = process.getuid?.();
  return code === "EACCES" && uid !== undefined
    ? `${text}. This process runs as user ${uid}, who must be allowed to read it`
    : text;
}
