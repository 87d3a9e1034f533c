// Parses the command line of `jindou`: command, configuration file and flags. Contains only pure
// functions.

import { parseArgs } from "node:util";
import { nearest } from "../lib/nearest.ts";
import { ConfigError } from "./errors.ts";
import { CLIENT_COMMANDS, COMMANDS } from "./help.ts";
import { CONFIG_KEYS } from "./schema.ts";
import { didYouMean, type Flag, unknownFlag } from "./sources.ts";

type Command = keyof typeof COMMANDS | "help" | "version";

export interface CommandLine {
  readonly command: Command;
  readonly configFile: string | undefined;
  readonly flags: readonly Flag[];
  /** True if a new database may replace a lost database. False for every command except `start`. */
  readonly newStore: boolean;
  /** True if the output is a JSON document with the values. False except with `print-config`. */
  readonly json: boolean;
  /**
   * True if the output is a JSON document with the values and their sources. False except with
   * `print-config`.
   */
  readonly sources: boolean;
}

/** Flags that only the command `migrate` accepts, with the configuration keys that they set. */
const MIGRATE_FLAGS: ReadonlyMap<string, string> = new Map([
  ["from", "migrate.from"],
  ["to", "redis.url"],
]);

const NEW_STORE = "new-store";
const JSON_OUTPUT = "json";
const SOURCES_OUTPUT = "sources";
/** Flags without a value, each with the only command that accepts it. */
const COMMAND_SWITCHES: ReadonlyMap<string, Command> = new Map([
  [NEW_STORE, "start"],
  [JSON_OUTPUT, "print-config"],
  [SOURCES_OUTPUT, "print-config"],
]);
const NO_SWITCHES = { newStore: false, json: false, sources: false } as const;
const SWITCHES: ReadonlyMap<string, Command> = new Map([
  ["help", "help"],
  ["version", "version"],
]);

/** Parses the arguments after the program's name. Throws ConfigError if an argument is invalid. */
export function parseCommandLine(argv: readonly string[]): CommandLine {
  const { tokens } = parseArgs({
    args: [...argv],
    options: optionsOf(),
    strict: false,
    tokens: true,
  });
  const words: string[] = [];
  const flags: Flag[] = [];
  const switches = new Set<string>();
  for (const token of tokens) {
    if (token.kind === "positional") words.push(token.value);
    else if (token.kind === "option") {
      const command = SWITCHES.get(token.name);
      if (command !== undefined)
        return { command, configFile: undefined, flags: [], ...NO_SWITCHES };
      if (COMMAND_SWITCHES.has(token.name) && token.value === undefined) switches.add(token.name);
      else flags.push(readFlag(token));
    }
  }
  const command = readCommand(words);
  for (const name of switches) {
    const owner = COMMAND_SWITCHES.get(name);
    if (command !== owner)
      throw new ConfigError([`--${name} can be used only with the command ${owner}.`]);
  }
  return {
    command,
    newStore: switches.has(NEW_STORE),
    json: switches.has(JSON_OUTPUT),
    sources: switches.has(SOURCES_OUTPUT),
    configFile: flags.findLast((flag) => flag.name === "config")?.value,
    flags: flags
      .filter((flag) => flag.name !== "config")
      .map((flag) => withFullName(flag, command)),
  };
}

function withFullName({ name, value }: Flag, command: Command): Flag {
  const fullName = MIGRATE_FLAGS.get(name);
  if (fullName === undefined) return { name, value };
  if (command !== "migrate") throw new ConfigError([unknownFlag(name)]);
  return { name: fullName, value };
}

function optionsOf() {
  const namesWithValue = ["config", ...MIGRATE_FLAGS.keys(), ...CONFIG_KEYS.map((key) => key.name)];
  return {
    ...Object.fromEntries(namesWithValue.map((name) => [name, { type: "string" }])),
    help: { type: "boolean", short: "h" },
    version: { type: "boolean", short: "V" },
    [NEW_STORE]: { type: "boolean" },
    [JSON_OUTPUT]: { type: "boolean" },
    [SOURCES_OUTPUT]: { type: "boolean" },
  } as const;
}

function readFlag(token: {
  readonly name: string;
  readonly rawName: string;
  readonly value: string | undefined;
  readonly inlineValue: boolean | undefined;
}): Flag {
  const { name, rawName, value, inlineValue } = token;
  const isKnown =
    name === "config" || MIGRATE_FLAGS.has(name) || CONFIG_KEYS.some((key) => key.name === name);
  if (!rawName.startsWith("--"))
    throw new ConfigError([`${rawName} is not a known flag; see jindou --help.`]);
  if (!isKnown) throw new ConfigError([unknownFlag(name)]);
  const isNextFlag = inlineValue === false && value?.startsWith("--");
  if (value === undefined || isNextFlag)
    throw new ConfigError([`${rawName} needs a value: ${rawName}=…`]);
  return { name, value };
}

function readCommand(words: readonly string[]): Command {
  const [word = "start", extra] = words;
  if (extra !== undefined)
    throw new ConfigError([
      `Only one command is allowed, but ${JSON.stringify(extra)} follows ${JSON.stringify(word)}.`,
    ]);
  if (word === "help") return word;
  if (Object.hasOwn(COMMANDS, word)) return word as keyof typeof COMMANDS;
  if (Object.hasOwn(CLIENT_COMMANDS, word))
    throw new ConfigError([`Write the command ${word} before its flags: jindou ${word} …`]);
  const suggestion = nearest(word, [...Object.keys(COMMANDS), ...Object.keys(CLIENT_COMMANDS)]);
  throw new ConfigError([
    `${JSON.stringify(word)} is not a jindou command${didYouMean(suggestion)}`,
  ]);
}
