// Parses the command line of `jindou` and runs one command. Prints each problem as one line on
// standard error. Exit codes: 0 success, 1 failure, 2 invalid command line or configuration.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Writable } from "node:stream";
import { text } from "node:stream/consumers";
import { type CommandLine, helpText, parseCommandLine } from "./config/command-line.ts";
import { ConfigError } from "./config/errors.ts";
import { loadConfig } from "./config/load.ts";
import type { Config } from "./config/schema.ts";
import { cleanText, sentence } from "./config/setting-text.ts";
import { maskSecrets } from "./config/summary.ts";
import { reasonOf, StartError } from "./server/start-error.ts";

const FAILED = 1;
const INVALID = 2;

try {
  await run(parseCommandLine(process.argv.slice(2)));
} catch (error) {
  const problems = error instanceof ConfigError ? error.problems : [`${reasonOf(error)}.`];
  for (const problem of problems) process.stderr.write(`jindou: ${problem}\n`);
  process.exit(error instanceof ConfigError ? INVALID : FAILED);
}

async function run(line: CommandLine): Promise<void> {
  switch (line.command) {
    case "help":
      return print(helpText());
    case "version":
      return print(`${version()}\n`);
    case "check-config":
      return checkConfig(configOf(line));
    case "print-config":
      return print(`${JSON.stringify(maskSecrets(configOf(line)), undefined, 2)}\n`);
    case "migrate":
      return migrate(line);
    case "hash-password":
      return hashPassword();
    case "start":
      return start(line);
  }
}

/** An address in use is only a warning. */
async function checkConfig(config: Config): Promise<void> {
  const { checkMachine } = await import("./server/preflight.ts");
  const { problems, warnings } = await checkMachine(config);
  for (const warning of warnings) process.stderr.write(`jindou: warning: ${warning}\n`);
  if (problems.length > 0) throw new ConfigError(problems);
  print("The configuration is valid.\n");
}

/** Only this command imports the modules of the node. */
async function start(line: CommandLine): Promise<void> {
  const config = configOf(line);
  if (line.newStore && config.redis.url !== "")
    throw new ConfigError(["--new-store is for the embedded store, but redis.url is set."]);
  const { fileProblems, libraryProblem } = await import("./server/preflight.ts");
  const library = await libraryProblem();
  if (library !== undefined) throw new ConfigError([library]);
  const problems = await fileProblems(config);
  // Exit code 1 instead of 2, because a missing file may appear later.
  if (problems.length > 0) throw new StartError(problems.join(" "));
  const { startNode } = await import("./start.ts");
  await startNode(config, version(), line.newStore);
}

async function migrate(line: CommandLine): Promise<void> {
  const config = configOf(line);
  if (config.migrate.from === "")
    throw new ConfigError([
      "jindou migrate needs --from=<folder of the embedded store> and --to=<URL of Redis>.",
    ]);
  const { moveData } = await import("./move.ts");
  await moveData(config);
  process.exit(0);
}

function configOf({ configFile, flags }: CommandLine) {
  return loadConfig({ file: configFile, env: process.env, flags });
}

async function hashPassword(): Promise<void> {
  const { text: password, fault } = cleanText(await readPassword());
  if (fault !== undefined)
    throw new ConfigError([sentence("The password on standard input", fault, undefined)]);
  if (password === "")
    throw new ConfigError([
      "The password on standard input is empty. Enter at least one character.",
    ]);
  const passwords = await import("./broker/passwords.ts");
  print(`${await passwords.hashPassword(password)}\n`);
}

/** On a terminal, reads one line without echo. */
async function readPassword(): Promise<string> {
  if (!process.stdin.isTTY) return text(process.stdin);
  process.stderr.write("Password: ");
  const discarded = new Writable({ write: (_chunk, _encoding, done) => done() });
  const input = createInterface({
    input: process.stdin,
    output: discarded,
    terminal: true,
  });
  const ended = once(input, "close").then(() => [""]);
  const [password] = await Promise.race([once(input, "line"), ended]);
  input.close();
  process.stderr.write("\n");
  return password;
}

function version(): string {
  const file = new URL("../package.json", import.meta.url);
  return JSON.parse(readFileSync(file, "utf8")).version;
}

function print(output: string): void {
  process.stdout.write(output);
}
