// Runs the commands of `jindou` that call a running node, as a person at a shell does.

import { once } from "node:events";
import type { Test } from "tap";
import { type Exit, type Invocation, jindou, spawnJindou } from "../main/jindou.ts";
import type { Broker, Settings } from "../support/broker.ts";

export interface Shell {
  /** Runs a command on this broker and waits for its exit. */
  run(argv: readonly string[], invocation?: Invocation): Promise<Exit>;
  /** Starts a command on this broker. */
  start(argv: readonly string[], env?: Settings): RunningCommand;
}

export interface RunningCommand {
  /** Waits until standard output and standard error together match the pattern. */
  untilShown(pattern: RegExp): Promise<void>;
  stop(signal: NodeJS.Signals): Promise<Exit>;
  readonly exit: Promise<Exit>;
}

export function openShell(t: Test, broker: Broker, env: Settings = {}): Shell {
  const withApi = ([command = "", ...rest]: readonly string[]) => [
    command,
    `--api=http://127.0.0.1:${broker.apiPort}`,
    ...rest,
  ];
  return {
    run: (argv, invocation = {}) =>
      jindou(t, withApi(argv), { ...invocation, env: { ...env, ...invocation.env } }),
    start(argv, ownEnv = {}) {
      const { child, exit } = spawnJindou(t, withApi(argv), { env: { ...env, ...ownEnv } });
      let screen = "";
      for (const stream of [child.stdout, child.stderr])
        stream?.on("data", (text: string) => {
          screen += text;
          child.emit("shown");
        });
      return {
        exit,
        async untilShown(pattern) {
          while (!pattern.test(screen)) {
            if (child.exitCode !== null) throw new Error(`the command exited: ${screen}`);
            await Promise.race([once(child, "shown"), exit]);
          }
        },
        stop(signal) {
          child.kill(signal);
          return exit;
        },
      };
    },
  };
}
