// A step that runs inside Redis: one Lua file, with what it needs of what all steps share in front.
// Read once, when its room is loaded.

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

const shared = readFileSync(new URL("./lua/shared.lua", import.meta.url), "utf8");

/**
 * The script of a Lua file, behind what it shares with others of its room: files, or text that was
 * made. Its header says what KEYS, ARGV and the reply are.
 */
export function loadScript(file: URL, ...before: readonly (URL | string)[]): Script {
  const parts = [...before, file].map((part) =>
    typeof part === "string" ? part : readFileSync(part, "utf8"),
  );
  const lines = withoutComments([shared, ...parts].join("\n"));
  const source = withoutUnused(withForwards(withConstants(lines)));
  const sha = createHash("sha1").update(source).digest("hex");
  return { name: file.pathname.split("/").at(-1) ?? "", source, sha };
}

/**
 * From `local function` to an `end` that closes it, as our files are written: both at the beginning
 * of a line, or on one.
 */
const FUNCTION = /^local function (\w+)\((?:.* end|.*(?:\n.*)*?\nend)$/gm;
/** A name for a number or text, as our files are written: on a line of its own, in capitals. */
const CONSTANT = /^local ([A-Z][A-Z_]+) = (-?\d+|'[^'\n]*')\n/gm;
/** A function that only calls another one, as our files are written: on one line. */
const FORWARD = /^local function (\w+)\((.*?)\) return ([\w.]+\(.*\)) end$/gm;
const PLAIN_TEXT = /'[^',(){}[\]\n]*'|"[^",(){}[\]\n]*"/g;
/** A text, which is kept, or a comment with the spaces in front of it, which is not. */
const TEXT_OR_COMMENT = /('[^'\n]*'|"[^"\n]*")|[ \t]*--[^\n]*/g;
const WORD = /\w+/g;

/** Drops comments and empty lines, so that a script keeps its SHA when only they change. */
function withoutComments(source: string): string {
  return source.replace(TEXT_OR_COMMENT, "$1").replace(/^\n+|(?<=\n)\n+/g, "");
}

/**
 * Puts what constants stand for in their place: each one that a function names is made anew at each
 * call.
 */
function withConstants(source: string): string {
  const values = new Map<string, string>();
  const rest = source.replace(CONSTANT, (_line, name: string, value: string) => {
    values.set(name, value.startsWith("-") ? `(${value})` : value);
    return "";
  });
  return rest.replace(WORD, (word) => values.get(word) ?? word);
}

/**
 * Puts in place of a call of a function that only calls another one what it calls, if it names each
 * of its parameters once.
 */
function withForwards(source: string): string {
  const names = [...source.matchAll(FORWARD)].map(([, name = ""]) => name);
  return names.reduce((made, name) => {
    const found = [...made.matchAll(FORWARD)].find((one) => one[1] === name);
    const [, , list = "", body = ""]: readonly string[] = found ?? [];
    const parameters: readonly string[] = list.match(WORD) ?? [];
    const words: readonly string[] = body.match(WORD) ?? [];
    const isOnce = (one: string) => words.filter((w) => w === one).length === 1;
    if (!isOneCall(body) || !parameters.every(isOnce)) return made;
    return withCalls(made, name, (given) =>
      body.replace(WORD, (word) => {
        const at = parameters.indexOf(word);
        return at < 0 ? word : `(${given[at] ?? "nil"})`;
      }),
    );
  }, source);
}

/** The bracket that opens the arguments is closed by the last character. */
function isOneCall(body: string): boolean {
  let depth = 0;
  for (const sign of body.slice(0, -1)) {
    if (sign === "(") depth += 1;
    if (sign === ")" && --depth === 0) return false;
  }
  return true;
}

/**
 * `made` of what each call of the function is given in place of the call. Throws where texts among
 * the arguments look like more of them.
 */
function withCalls(
  source: string,
  name: string,
  made: (given: readonly string[]) => string,
): string {
  const call = new RegExp(`(?<!function |\\w)${name}\\(`, "g");
  let result = "";
  let done = 0;
  for (let found = call.exec(source); found; found = call.exec(source)) {
    const given: string[] = [];
    let from = call.lastIndex;
    let depth = 1;
    for (let at = from; depth > 0; at++) {
      const sign = source[at] ?? ")";
      if ("({[".includes(sign)) depth += 1;
      if (")}]".includes(sign)) depth -= 1;
      if (depth === 0 || (depth === 1 && sign === ",")) {
        given.push(source.slice(from, at).trim());
        from = at + 1;
      }
    }
    const rest = source.slice(call.lastIndex, from).replace(PLAIN_TEXT, "");
    if (/['"]/.test(rest))
      throw new Error(`${name} is called with a text that has signs of a list`);
    result += source.slice(done, found.index) + made(given);
    done = from;
    call.lastIndex = from;
  }
  return result + source.slice(done);
}

/**
 * Leaves out the functions that nothing names, for Redis makes all that a step has anew at each
 * call.
 */
function withoutUnused(source: string): string {
  const words = new Map<string, readonly string[]>();
  const rest = source.replace(FUNCTION, (body, name: string) => {
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
  const kept = source.replace(FUNCTION, (body, name: string) => (used.has(name) ? body : ""));
  return kept.replace(/\n+/g, "\n");
}
