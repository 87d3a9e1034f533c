// Cleans and checks the text of settings, from all sources [decisions: Text from the environment].
// Also rejects paths that are URLs, that are Windows paths on another system, or that contain `~`,
// `$`, `%` or `{{`, because these are not expanded. Contains only pure functions.

import { sep } from "node:path";
import { encodingFault, quotesFault, textFault, trimFile } from "../lib/text-faults.ts";
import type { OptionSchema } from "./keys.ts";

const URL_SCHEME = /^[A-Za-z][A-Za-z0-9+.-]+:\/\//;
/**
 * Matches Windows paths, such as `C:/Program Files/Git/data`, which Git Bash passes instead of
 * `/data`.
 */
const WINDOWS_PATH = /^[A-Za-z]:|^[^/]*\\[^/]*$/;

interface CleanText {
  readonly text: string;
  /**
   * Reason for rejecting the text, as the end of a sentence that begins with the name of the
   * setting. Never quotes the value. `undefined` if the text is accepted.
   */
  readonly fault: string | undefined;
}

export function cleanText(original: string, isPath = false): CleanText {
  const text = trimFile(original);
  return {
    text,
    fault: textFault(text) ?? (isPath ? pathFault(text) : undefined),
  };
}

/** Cleans and checks a JSON value, in which surrounding white space has no meaning. */
export function cleanJson(original: string): CleanText {
  const text = trimFile(original);
  return { text, fault: encodingFault(text) ?? quotesFault(text) };
}

function pathFault(text: string): string | undefined {
  if (text.includes("~"))
    return "contains ~, which is not replaced by a home directory. Write the whole path";
  if (text.includes("$"))
    return "contains $, but variables in paths are not replaced. Write the whole path";
  if (text.includes("%"))
    return "contains %, but systemd specifiers and Windows variables are not replaced in paths. Write the whole path";
  if (text.includes("{{"))
    return "contains {{, but templates in paths are not replaced. Write the whole path";
  if (URL_SCHEME.test(text)) return "is a URL. Write it as a path";
  if (sep === "/" && WINDOWS_PATH.test(text))
    return "is a Windows path. Write the path as it is on this system";
  return undefined;
}

interface CleanValue {
  readonly value: unknown;
  readonly problems: readonly string[];
}

/**
 * Cleans the strings in a value and reports the rejected strings. The report quotes a string unless
 * the setting is secret.
 */
export function cleanValue(
  value: unknown,
  setting: { readonly schema: OptionSchema; readonly name: string; readonly place: string },
): CleanValue {
  const { schema, name, place } = setting;
  if (typeof value === "string") {
    const { text, fault } = cleanText(value, schema.unit === "path");
    const problem =
      fault && sentence(`${name} (from ${place})`, fault, schema.secret ? undefined : text);
    return { value: text, problems: problem === undefined ? [] : [problem] };
  }
  if (typeof value !== "object" || value === null) return { value, problems: [] };
  const problems: string[] = [];
  const clean = (child: unknown, childSchema: OptionSchema = {}, childName: string): unknown => {
    const cleaned = cleanValue(child, { schema: childSchema, name: childName, place });
    problems.push(...cleaned.problems);
    return cleaned.value;
  };
  const copy = Array.isArray(value)
    ? value.map((item, index) => clean(item, schema.items, `${name}[${index}]`))
    : Object.fromEntries(
        Object.entries(value).map(([field, child]) => [
          field,
          clean(child, schema.properties?.[field] ?? { secret: true }, `${name}.${field}`),
        ]),
      );
  return { value: copy, problems };
}

/** Returns the message about a rejected text. `text` is `undefined` if it is secret. */
export function sentence(subject: string, fault: string, text: string | undefined): string {
  const value = text === undefined ? "" : ` The value is ${shown(text)}.`;
  return `${subject} ${fault}.${value}`;
}

/** Matches the user name and the password in a URL inside JSON. */
const USER = /(:\/\/)(?:[^"\\]|\\.)*@/g;

/** Returns a value as JSON. User names and passwords in URLs are masked. */
export function shown(value: unknown): string {
  return JSON.stringify(value).replace(USER, "$1******@");
}
