// This process's signals. State: the handler of SIGTERM and SIGINT. main.ts imports this file
// before all others, so it must not load other modules. Node.js resets ignored signals when it
// starts. Without this file, a SIGHUP would end the process even under `nohup`.

import type { ClientCommand, COMMANDS } from "./config/help.ts";

type StopSignal = "SIGTERM" | "SIGINT";
type OtherCommand = Exclude<keyof typeof COMMANDS, "start">;

const OTHER_COMMANDS: Readonly<Record<OtherCommand, true>> = {
  "check-config": true,
  "hash-password": true,
  migrate: true,
  "print-config": true,
};

/** Commands that must be the first argument, because their names may also be values of flags. */
const CLIENT_COMMANDS: Readonly<Record<ClientCommand, true>> = {
  events: true,
  health: true,
  history: true,
  import: true,
  send: true,
  token: true,
  watch: true,
};

let handleStop: (signal: StopSignal) => void = isNode() ? () => process.exit(0) : endBy;

for (const signal of ["SIGTERM", "SIGINT"] as const) process.on(signal, () => handleStop(signal));
// The SIGUSR1 handler replaces Node.js' own handler, which opens a debugger.
for (const signal of ["SIGHUP", "SIGUSR1", "SIGUSR2"] as const) process.on(signal, () => {});

/**
 * Replaces the handler of SIGTERM and SIGINT. Before the first call, a signal makes a node exit
 * with 0, because there is nothing to drain, and kills other commands.
 */
export function onStopSignal(handler: (signal: StopSignal) => void): void {
  handleStop = handler;
}

/** Returns true for the command `start`. Does not load the modules that parse the command line. */
function isNode(): boolean {
  const argv = process.argv.slice(2);
  if (Object.hasOwn(CLIENT_COMMANDS, argv[0] ?? "")) return false;
  return !argv.some((argument) => Object.hasOwn(OTHER_COMMANDS, argument));
}

/**
 * Ends the process with the signal itself, so that the caller does not conclude that the command
 * has succeeded.
 */
function endBy(signal: StopSignal): void {
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  process.exit(1); // process 1 of a container is not killed by its own signal
}
