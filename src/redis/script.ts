// Builds scripts. A script is one Lua file, preceded by the shared functions that it uses. Redis
// recreates every function, table and local variable of a script on each call, so the source is
// reduced: constants, and functions that only call another function, are inlined, and unused
// functions are removed. Line numbers are kept until the end of the reduction, so that error
// messages can refer to lines in the files.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { topicEnd } from "./keys.ts";

export type Arg = string | number | Buffer;

/** Lua code that a server runs for a node: a script, or a function of a library. */
export interface ServerCode {
  /** Command that loads the code, and its arguments. Functions of one library share this array. */
  readonly loading: readonly [command: string, ...args: string[]];
  /** True if the code may change data. Such code is called with a deadline. */
  readonly isWriting: boolean;
  /** Replaces the positions in a Redis error message with files and line numbers. */
  withFileLines(message: string): string;
}

export interface Script extends ServerCode {
  readonly name: string;
  readonly source: string;
  readonly sha: string;
  inDatabase(database: number): Script;
}

const DATABASE = /@DATABASE\b/g;

const SOURCES = new URL("..", import.meta.url);
/** File with the functions that all scripts and libraries can use. */
export const SHARED = new URL("./lua/shared.lua", import.meta.url);

/** Builds a script from a Lua file, with `before` (files, or generated code) in front of it. */
export function loadScript(file: URL, ...before: readonly (URL | string)[]): Script {
  const sections = [SHARED, ...before, file].map(sectionOf);
  const lines = reduced(sections.map(({ text }) => text).join("\n"));
  const body = `${lines.filter((line) => line !== "").join("\n")}\n`;
  const isWriting = writes(body);
  const template = isWriting ? FENCE + body : body;
  const name = file.pathname.split("/").at(-1) ?? "";
  const variants = new Map<number, Script>();
  const withFileLines = (message: string) =>
    message.replaceAll(SCRIPT_LINE, (shown, line) => {
      const fileLine = isWriting ? Number(line) - FENCE_LINES : Number(line);
      return placeOf(fileLine, lines, sections) ?? shown;
    });
  const inDatabase = (database: number): Script => {
    const existing = variants.get(database);
    if (existing !== undefined) return existing;
    const source = template.replace(DATABASE, topicEnd(database));
    const sha = createHash("sha1").update(source).digest("hex");
    const loading = ["script", "LOAD", source] as const;
    const variant = { name, source, sha, loading, isWriting, inDatabase, withFileLines };
    variants.set(database, variant);
    return variant;
  };
  return inDatabase(0);
}

/** A file of a script or library, or generated code. The sections are joined with \n. */
interface Section {
  readonly path: string;
  readonly text: string;
}

export function sectionOf(source: URL | string): Section {
  if (typeof source === "string") return { path: "(generated)", text: source };
  const path = `src/${source.href.slice(SOURCES.href.length)}`;
  return { path, text: readFileSync(source, "utf8") };
}

/** Matches a script's line number in a Redis error message. */
const SCRIPT_LINE = /@?\buser_script:(\d+)/g;

/** Returns the file and line for a line number of the reduced script, counted from 1. */
function placeOf(
  scriptLine: number,
  lines: readonly string[],
  sections: readonly Section[],
): string | undefined {
  let kept = 0;
  const line = lines.findIndex((text) => text !== "" && ++kept === scriptLine) + 1;
  return placeIn(sections, line);
}

/** Returns the file and line for a line number of the joined sections, counted from 1. */
export function placeIn(sections: readonly Section[], line: number): string | undefined {
  if (line < 1) return undefined;
  let fileLine = line;
  for (const { path, text } of sections) {
    const count = text.split("\n").length;
    if (fileLine <= count) return `${path}:${fileLine}`;
    fileLine -= count;
  }
  return undefined;
}

/** Matches a function that is on one line, or whose first and last lines are not indented. */
const FUNCTION = /^local function (\w+)\((?:.* end|.*(?:\n.*)*?\nend)$/gm;
/** Matches a constant: a line that assigns a number or a string to a name in capitals. */
const CONSTANT = /^local ([A-Z][A-Z_]+) = (-?\d+|'[^'\n]*')\n/gm;
/** Matches a one-line function that only calls another function. */
const FORWARD = /^local function (\w+)\((.*?)\) return ([\w.]+\(.*\)) end$/gm;
const PLAIN_TEXT = /'[^',(){}[\]\n]*'|"[^",(){}[\]\n]*"/g;
/** Matches a string literal, which is kept, or a comment, which is removed. */
const TEXT_OR_COMMENT = /('[^'\n]*'|"[^"\n]*")|[ \t]*--[^\n]*/g;
const WORD = /\w+/g;

/**
 * Precedes every script that writes. The link adds a deadline as the last element of ARGV, in Unix
 * milliseconds on the server's clock. Without a deadline, a late call could undo later changes of
 * other nodes. The script can read the clock as `server_now`. LATE is followed by a sentence,
 * because Redis puts ERR in front of an error of one word.
 */
const FENCE = `local server_now = redis.call('TIME')
server_now = server_now[1] * 1000 + server_now[2] / 1000
if server_now > tonumber(table.remove(ARGV)) then return redis.error_reply('LATE The call arrived after its deadline') end
server_now = math.floor(server_now)
`;
const FENCE_LINES = FENCE.split("\n").length - 1;

/** Commands that change nothing. A script that calls only these commands needs no deadline. */
export const READ_COMMANDS: ReadonlySet<string> = new Set(
  (
    "EXISTS GET GETRANGE HEXISTS HGET HGETALL HKEYS HLEN HMGET HSCAN LLEN LRANGE PING PTTL SCARD " +
    "SINTERCARD SISMEMBER SMEMBERS SMISMEMBER SRANDMEMBER SSCAN STRLEN SUNION TIME TYPE XLEN XRANGE XREVRANGE " +
    "ZCARD ZCOUNT ZRANGE ZRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZSCORE"
  ).split(" "),
);
const COMMAND_CALL = /redis\.p?call\((?:'(\w+)')?/g;

/**
 * Returns true if the script may write. A command name that is not a literal may be any command.
 */
function writes(source: string): boolean {
  return [...source.matchAll(COMMAND_CALL)].some(
    ([, command]) => !READ_COMMANDS.has(command ?? ""),
  );
}

/** Returns the lines of the reduced source. Lines that are removed are empty. */
function reduced(source: string): readonly string[] {
  // Comments are removed so that changing only comments does not change a script's SHA.
  const code = source.replace(TEXT_OR_COMMENT, "$1");
  return withoutUnused(withForwards(withConstants(code))).split("\n");
}

function lineBreaks(text: string): string {
  return "\n".repeat(text.split("\n").length - 1);
}

function withConstants(source: string): string {
  const values = new Map<string, string>();
  const code = source.replace(CONSTANT, (_line, name: string, value: string) => {
    values.set(name, value.startsWith("-") ? `(${value})` : value);
    return "\n";
  });
  return code.replace(WORD, (word) => values.get(word) ?? word);
}

function withForwards(source: string): string {
  const names = [...source.matchAll(FORWARD)].map(([, name = ""]) => name);
  return names.reduce((text, name) => {
    const forward = [...text.matchAll(FORWARD)].find((match) => match[1] === name);
    const [, , list = "", body = ""]: readonly string[] = forward ?? [];
    const parameters: readonly string[] = list.match(WORD) ?? [];
    const words: readonly string[] = body.match(WORD) ?? [];
    const isUsedOnce = (parameter: string) =>
      words.filter((word) => word === parameter).length === 1;
    if (!isOneCall(body) || !parameters.every(isUsedOnce)) return text;
    return withCalls(text, name, (args) =>
      body.replace(WORD, (word) => {
        const at = parameters.indexOf(word);
        return at < 0 ? word : `(${args[at] ?? "nil"})`;
      }),
    );
  }, source);
}

/**
 * Returns true if `body` is a single call, that is, if its last character closes its first bracket.
 */
function isOneCall(body: string): boolean {
  let depth = 0;
  for (const sign of body.slice(0, -1)) {
    if (sign === "(") depth += 1;
    if (sign === ")" && --depth === 0) return false;
  }
  return true;
}

function withCalls(
  source: string,
  name: string,
  replacement: (args: readonly string[]) => string,
): string {
  const call = new RegExp(`(?<!function |\\w)${name}\\(`, "g");
  let result = "";
  let done = 0;
  for (let match = call.exec(source); match; match = call.exec(source)) {
    const args: string[] = [];
    let from = call.lastIndex;
    let depth = 1;
    for (let at = from; depth > 0; at++) {
      const sign = source[at] ?? ")";
      if ("({[".includes(sign)) depth += 1;
      if (")}]".includes(sign)) depth -= 1;
      if (depth === 0 || (depth === 1 && sign === ",")) {
        args.push(source.slice(from, at).trim());
        from = at + 1;
      }
    }
    const unread = source.slice(call.lastIndex, from).replace(PLAIN_TEXT, "");
    if (/['"]/.test(unread))
      throw new Error(
        `A string literal in a call to ${name} contains a bracket or a comma. Move the literal into a local variable`,
      );
    const inlined = replacement(args);
    const missing = lineBreaks(source.slice(match.index, from)).slice(lineBreaks(inlined).length);
    result += source.slice(done, match.index) + inlined + missing;
    done = from;
    call.lastIndex = from;
  }
  return result + source.slice(done);
}

function withoutUnused(source: string): string {
  const words = new Map<string, readonly string[]>();
  const code = source.replace(FUNCTION, (body, name: string) => {
    words.set(name, [...(words.get(name) ?? []), ...(body.match(WORD) ?? [])]);
    return "";
  });
  const used = new Set<string>();
  const pending = [...(code.match(WORD) ?? [])];
  for (let name = pending.pop(); name !== undefined; name = pending.pop()) {
    if (used.has(name)) continue;
    used.add(name);
    pending.push(...(words.get(name) ?? []));
  }
  return source.replace(FUNCTION, (body, name: string) =>
    used.has(name) ? body : lineBreaks(body),
  );
}
