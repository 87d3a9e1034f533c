// Parses the command line of `jindou` (command, configuration file and flags) and generates the
// help text. Only pure functions.

import { parseArgs } from "node:util";
import { nearest } from "../lib/nearest.ts";
import { ConfigError } from "./errors.ts";

import { CONFIG_KEYS } from "./schema.ts";
import { didYouMean, type Flag, unknownFlag } from "./sources.ts";

export const COMMANDS = {
  start: "start a node (the default command)",
  "check-config": "check the configuration and exit",
  "print-config": "print the configuration as JSON, with secrets masked",
  migrate: "move the data of an embedded store (--from) into Redis (--to)",
  "hash-password": "read a password from standard input and print its hash",
} as const;

type Command = keyof typeof COMMANDS | "help" | "version";

export interface CommandLine {
  readonly command: Command;
  readonly configFile: string | undefined;
  readonly flags: readonly Flag[];
  /** True if a lost database is to be replaced by a new one. Only with the command `start`. */
  readonly newStore: boolean;
}

/** Short names of configuration keys that only the command `migrate` accepts as flags. */
const MIGRATE_FLAGS: ReadonlyMap<string, string> = new Map([
  ["from", "migrate.from"],
  ["to", "redis.url"],
]);

const NEW_STORE = "new-store";
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
  let newStore = false;
  for (const token of tokens) {
    if (token.kind === "positional") words.push(token.value);
    else if (token.kind === "option") {
      const command = SWITCHES.get(token.name);
      if (command !== undefined) return { command, configFile: undefined, flags: [], newStore };
      if (token.name === NEW_STORE && token.value === undefined) newStore = true;
      else flags.push(readFlag(token));
    }
  }
  const command = readCommand(words);
  if (newStore && command !== "start")
    throw new ConfigError([`--${NEW_STORE} is a flag of the command start only.`]);
  return {
    command,
    newStore,
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
  const suggestion = nearest(word, Object.keys(COMMANDS));
  throw new ConfigError([
    `${JSON.stringify(word)} is not a command of jindou${didYouMean(suggestion)}`,
  ]);
}

export function helpText(): string {
  const commands = Object.entries(COMMANDS).map(([name, text]) => `  ${name.padEnd(15)} ${text}`);
  return `Usage: jindou [command] [--config <file>] [--<key>=<value> …]

Commands:
${commands.join("\n")}

Options:
  --config <file> JSON configuration file (or JINDOU_CONFIG)
  --<key>=<value> set a configuration key, for example --client.listen=0.0.0.0:5200
  --new-store     begin a new store if the database of the data folder is lost
  -h, --help      print this text
  -V, --version   print the version

Every key can also be set in the environment, for example JINDOU_CLIENT_LISTEN.
docs/configuration.md lists all keys with their defaults.
Exit codes: 0 success, 1 failure, 2 invalid command line or configuration.
`;
}
