// The output of `jindou --help` and `jindou --version`. This file must not import the configuration
// schema, because loading the schema would delay this output.

import { readFileSync } from "node:fs";

export const COMMANDS = {
  start: "start a node (the default command)",
  "check-config": "check the configuration and exit",
  "print-config":
    "print each value and where it comes from (--json: the values, --sources: both as JSON)",
  migrate: "move the data of an embedded store (--from) into Redis (--to)",
  "hash-password": "read a password from standard input and print its hash",
} as const;

/**
 * Commands that call a running node. `import` also calls another product's server. Each command has
 * its own flags.
 */
export const CLIENT_COMMANDS = {
  health: "check whether a node accepts work",
  token: "register a new token for a user and print it",
  send: "send a message",
  history: "print the messages of a channel",
  watch: "print what a user receives, as it arrives",
  events: "turn the event feed on or off",
  import: "copy the data of a WuKongIM server, or only report on it (--dry-run)",
} as const;

export type ClientCommand = keyof typeof CLIENT_COMMANDS;

const INFORMATION: ReadonlyMap<string, () => string> = new Map([
  ["--help", helpText],
  ["-h", helpText],
  ["--version", versionText],
  ["-V", versionText],
]);

/** Returns the help or the version if the command line requests it, otherwise `undefined`. */
export function informationFor(argv: readonly string[]): string | undefined {
  if (clientCommandOf(argv) !== undefined) return undefined; // such a command has its own help
  if (argv.length === 1 && argv[0] === "help") return helpText();
  const flag = argv.find((argument) => argument.startsWith("-"));
  return flag === undefined ? undefined : INFORMATION.get(flag)?.();
}

export function version(): string {
  const file = new URL("../../package.json", import.meta.url);
  return JSON.parse(readFileSync(file, "utf8")).version;
}

export function versionText(): string {
  return `${version()}\n`;
}

/** Returns the first argument if it is one of `CLIENT_COMMANDS`, otherwise `undefined`. */
export function clientCommandOf([word = ""]: readonly string[]): ClientCommand | undefined {
  return Object.hasOwn(CLIENT_COMMANDS, word) ? (word as ClientCommand) : undefined;
}

export function helpText(): string {
  const list = (commands: Readonly<Record<string, string>>) =>
    Object.entries(commands)
      .map(([name, text]) => `  ${name.padEnd(15)} ${text}`)
      .join("\n");
  return `Usage: jindou [command] [--config <file>] [--<key>=<value> …]

Commands:
${list(COMMANDS)}

Commands that call a running server (jindou <command> --help shows their flags and an example):
${list(CLIENT_COMMANDS)}

Options:
  --config <file> JSON configuration file (or JINDOU_CONFIG)
  --<key>=<value> set a configuration key, for example --client.listen=0.0.0.0:5200
  --new-store     begin a new store if the data folder's database is lost
  -h, --help      print this text
  -V, --version   print the version

Every key can also be set in the environment, for example JINDOU_CLIENT_LISTEN.
docs/configuration.md lists all keys with their defaults.
Exit codes: 0 success, 1 failure, 2 invalid command line or configuration, 3 (commands that call a
node) the node does not respond.
`;
}
