// A step that runs inside Redis: one Lua file, with what it needs of what all steps share in front. Read once, when its room is loaded.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

/** What commands and steps are given. */
export type Arg = string | number | Buffer;

export interface Script {
  readonly name: string;
  readonly source: string;
  /** SHA-1 of the source, which is what Redis calls it. */
  readonly sha: string;
}

const shared = readFileSync(
  new URL("./lua/shared.lua", import.meta.url),
  "utf8",
);

/**
 * The script of a Lua file, behind what it shares with others of its room: files, or text that was made. Its header says what KEYS, ARGV and the
 * reply are.
 */
export function loadScript(
  file: URL,
  ...before: readonly (URL | string)[]
): Script {
  const parts = [...before, file].map((part) =>
    typeof part === "string" ? part : readFileSync(part, "utf8"),
  );
  const source = withoutUnused(withConstants([shared, ...parts].join("\n")));
  const sha = createHash("sha1").update(source).digest("hex");
  return { name: file.pathname.split("/").at(-1) ?? "", source, sha };
}

/** From `local function` to an `end` that closes it, as our files are written: both at the beginning of a line, or on one. */
const FUNCTION = /^local function (\w+)\((?:.* end|.*(?:\n.*)*?\nend)$/gm;
/** A name for a number or text, as our files are written: on a line of its own, in capitals. */
const CONSTANT = /^local ([A-Z][A-Z_]+) = (-?\d+|'[^'\n]*')(?: +--.*)?\n/gm;
const COMMENT = /^ *--.*\n/gm;
const WORD = /\w+/g;

/** Puts what constants stand for in their place: each one that a function names is made anew at each call. */
function withConstants(source: string): string {
  const values = new Map<string, string>();
  const rest = source.replace(
    CONSTANT,
    (_line, name: string, value: string) => {
      values.set(name, value.startsWith("-") ? `(${value})` : value);
      return "";
    },
  );
  return rest.replace(WORD, (word) => values.get(word) ?? word);
}

/** Leaves out the functions that nothing names, for Redis makes all that a step has anew at each call. */
function withoutUnused(source: string): string {
  const lines = source.replace(COMMENT, "");
  const words = new Map<string, readonly string[]>();
  const rest = lines.replace(FUNCTION, (body, name: string) => {
    words.set(name, [...(words.get(name) ?? []), ...(body.match(WORD) ?? [])]);
    return "";
  });
  const used = new Set<string>();
  const named = [...(rest.match(WORD) ?? [])];
  for (let name = named.pop(); name !== undefined; name = named.pop()) {
    if (used.has(name)) continue;
    used.add(name);
    named.push(...(words.get(name) ?? []));
  }
  const kept = lines.replace(FUNCTION, (body, name: string) =>
    used.has(name) ? body : "",
  );
  return kept.replace(/\n+/g, "\n");
}
