// The texts of the Lua files: the first lines of code bind the keys and arguments to names, and the
// rest uses the names. No interface shows this, because a script also works with numbers.

import { readdirSync, readFileSync } from "node:fs";
import t from "tap";

const SOURCES = new URL("../../src/", import.meta.url);
const LUA_FILES = readdirSync(SOURCES, { recursive: true, encoding: "utf8" }).filter((name) =>
  name.endsWith(".lua"),
);

const COMMENT = /\s*--.*$/;
/** Matches a function of a library. Redis passes it the arguments of a call in a table. */
const LIBRARY_FUNCTION = /^local function \w+\(\w+, arguments\)$/;
/** The statement that must precede all others in a function of a library, except plain reads. */
const TAKE_GLOBALS = "if not call then take_globals() end";
/** Matches a statement that assigns values to names. A Redis call ends the first lines. */
const ASSIGNMENT = /^\s*(?:local )?\w+(?:, \w+)* = (?!.*\bredis\.)/;
const PLAIN_VALUE = /tonumber\(\w+\[[^\]]*\]\)|unpack\((?:KEYS|ARGV|arguments)\b[^()]*\)/g;
/** Matches a call with a key or an argument that has no name. */
const UNNAMED_PARAMETER = /\([^()]*\b(?:KEYS|ARGV|arguments)\[/;
/** Matches a key or argument with a literal index, and a list that begins at such an index. */
const NUMBERED = [
  /\b(?:KEYS|ARGV|arguments)\[[\d#]/,
  /\bunpack\((?:KEYS|ARGV|arguments), \d/,
  /= (?:[2-9]|\d{2,}), #(?:KEYS|ARGV|arguments)\b/,
];

function isBinding(code: string): boolean {
  const values = code.replace(PLAIN_VALUE, "value");
  return ASSIGNMENT.test(code) && !UNNAMED_PARAMETER.test(values);
}

/** Returns the lines after the first bindings that use a key or an argument by its number. */
function numberedUses(text: string): readonly string[] {
  const uses: string[] = [];
  let areFirstLines = true;
  for (const [at, line] of text.split("\n").entries()) {
    const code = line.replace(COMMENT, "");
    if (LIBRARY_FUNCTION.test(code)) areFirstLines = true;
    else if (code !== "" && code.trim() !== TAKE_GLOBALS) {
      areFirstLines &&= isBinding(code);
      if (!areFirstLines && NUMBERED.some((pattern) => pattern.test(code)))
        uses.push(`${at + 1}: ${code.trim()}`);
    }
  }
  return uses;
}

t.test("Lua scripts use keys and arguments by name, except in their first lines", async (t) => {
  t.ok(LUA_FILES.length > 90, "the Lua files are found");
  for (const name of LUA_FILES) {
    const uses = numberedUses(readFileSync(new URL(name, SOURCES), "utf8"));
    t.strictSame(uses, [], name);
  }
});

t.test("a numbered key or argument below the first lines of a script is reported", async (t) => {
  const first = [
    "-- KEYS[1] and ARGV[1] in a comment",
    "local head, log = KEYS[1], KEYS[2]",
    "local uid, now, is_new = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1' -- a comment",
    "local copy = copy_of(unpack(ARGV, 4, 9))",
    "local FIRST_UID = 10",
    "",
  ];
  const textOf = (...lines: readonly string[]) => [...first, ...lines].join("\n");
  const named = ["if is_new then return uid end", "for at = FIRST_UID, #ARGV do use(ARGV[at]) end"];
  t.strictSame(numberedUses(textOf(...named, "for at = 1, #KEYS, 2 do end")), []);
  for (const line of [
    "local user = user_of(KEYS[1], ARGV[1])",
    "redis.call('GET', KEYS[1])",
    "local ttl = redis.call('PTTL', KEYS[2])",
    "for at = 10, #ARGV do use(ARGV[at]) end",
    "use(unpack(ARGV, 10))",
    "use(ARGV[#ARGV])",
  ])
    t.strictSame(numberedUses(textOf(line)), [`7: ${line}`]);
  const late = "local kept_ms = tonumber(ARGV[4])";
  t.strictSame(numberedUses(textOf(...named, late)), [`9: ${late}`]);
  const library = ["local function run(_, arguments)", `  ${TAKE_GLOBALS}`];
  t.strictSame(numberedUses(textOf(...named, ...library, "  local name = arguments[1]")), []);
  t.strictSame(numberedUses(textOf(...library, "  use(arguments[1])")), ["9: use(arguments[1])"]);
});
