// Parses the command line of `jindou` and runs one command. Prints each problem as one line to
// standard error. Exit codes: 0 success, 1 failure, 2 invalid command line or configuration, 3 no
// response from the node that the command calls.

import { once } from "node:events";
import { createInterface } from "node:readline";
import { Writable } from "node:stream";
import { text } from "node:stream/consumers";
import { CommandError } from "./cli/command-error.ts";
import { type CommandLine, parseCommandLine } from "./config/command-line.ts";
import { ConfigError } from "./config/errors.ts";
import {
  type ClientCommand,
  clientCommandOf,
  helpText,
  version,
  versionText,
} from "./config/help.ts";
import { loadSourcedConfig, type SourcedConfig } from "./config/load.ts";
import type { Config } from "./config/schema.ts";
import { cleanText, sentence } from "./config/setting-text.ts";
import { configJson, configText, sourcesJson } from "./config/summary.ts";
import { reasonOf, StartError } from "./server/start-error.ts";
import { onStopSignal } from "./signals.ts";

const FAILED = 1;
const INVALID = 2;

const argv = process.argv.slice(2);
try {
  const clientCommand = clientCommandOf(argv);
  if (clientCommand !== undefined) await callNode(clientCommand, argv.slice(1));
  else await run(parseCommandLine(argv));
} catch (error) {
  for (const problem of problemsOf(error)) process.stderr.write(`jindou: ${problem}\n`);
  process.exit(exitCodeOf(error));
}

function problemsOf(error: unknown): readonly string[] {
  if (error instanceof ConfigError) return error.problems;
  return [error instanceof CommandError ? error.message : `${reasonOf(error)}.`];
}

function exitCodeOf(error: unknown): number {
  if (error instanceof CommandError) return error.exitCode;
  return error instanceof ConfigError ? INVALID : FAILED;
}

async function run(line: CommandLine): Promise<void> {
  switch (line.command) {
    case "help":
      return print(helpText());
    case "version":
      return print(versionText());
    case "check-config":
      return checkConfig(configOf(line));
    case "print-config":
      return printConfig(line);
    case "migrate":
      return migrate(line);
    case "hash-password":
      return hashPassword();
    case "start":
      return start(line);
  }
}

/** Runs a command that calls a running node. SIGINT and SIGTERM end `watch` with exit code 0. */
async function callNode(command: ClientCommand, argv: readonly string[]): Promise<void> {
  const { runClientCommand } = await import("./cli/run.ts");
  const stopping = new AbortController();
  if (command === "watch") onStopSignal(() => stopping.abort());
  // The program that reads the output, such as `head`, may exit before this command. In that case,
  // an import may be incomplete, so it exits with `FAILED`.
  const exitCode = command === "import" && !argv.includes("--dry-run") ? FAILED : undefined;
  for (const stream of [process.stdout, process.stderr])
    stream.on("error", () => process.exit(exitCode));
  await runClientCommand(command, argv, {
    env: process.env,
    write: {
      output: (output) => process.stdout.write(output),
      error: (output) => process.stderr.write(output),
    },
    stopping: stopping.signal,
    survey: async (options) =>
      (await import("./compat/wukongim/import/survey.ts")).surveySource(options),
    copy: async (options) => (await import("./compat/wukongim/import/copy.ts")).copySource(options),
    switchStopped: async (config, isOn) =>
      (await import("./server/stopped-feed.ts")).switchStoppedFeed(config, isOn),
  });
  if (stopping.signal.aborted) process.exit(); // ends a call that gets no reply
}

function printConfig(line: CommandLine): void {
  const sourced = sourcedConfigOf(line);
  if (line.sources) print(sourcesJson(sourced));
  else print(line.json ? configJson(sourced.config) : configText(sourced));
}

/** Checks the configuration on this machine. An address that is in use causes only a warning. */
async function checkConfig(config: Config): Promise<void> {
  const { checkMachine } = await import("./server/preflight.ts");
  const { problems, warnings } = await checkMachine(config);
  for (const warning of warnings) process.stderr.write(`jindou: warning: ${warning}\n`);
  if (problems.length > 0) throw new ConfigError(problems);
  print("The configuration is valid.\n");
}

/** Starts a node. Imports its modules dynamically, so that other commands need not load them. */
async function start(line: CommandLine): Promise<void> {
  const sourced = sourcedConfigOf(line);
  const { config } = sourced;
  if (line.newStore && config.redis.url !== "")
    throw new ConfigError(["--new-store is for the embedded store, but redis.url is set."]);
  const { fileProblems } = await import("./server/preflight.ts");
  const problems = await fileProblems(config);
  // The exit code is 1 instead of 2, because a missing file may appear later.
  if (problems.length > 0) throw new StartError(problems.join(" "));
  const { startNode } = await import("./start.ts");
  await startNode(sourced, version(), line.newStore);
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

function configOf(line: CommandLine): Config {
  return sourcedConfigOf(line).config;
}

function sourcedConfigOf({ configFile, flags }: CommandLine): SourcedConfig {
  return loadSourcedConfig({ file: configFile, env: process.env, flags });
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

/** Reads a password from standard input. On a terminal, reads one line without echoing it. */
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

function print(output: string): void {
  process.stdout.write(output);
}
