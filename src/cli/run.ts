// Runs a command that calls a running server: reads its arguments and the configuration, and writes
// its output. Must not exit the process.

import type { ClientCommand } from "../config/help.ts";
import { loadConfig } from "../config/load.ts";
import type { Config } from "../config/schema.ts";
import { Api, apiUrl } from "./api.ts";
import { events, health, history, type Output, send, token } from "./commands.ts";
import { type CopySource, importFrom, type SurveySource } from "./import.ts";
import { helpOf, parseArguments } from "./usage.ts";
import { watch } from "./watch.ts";

interface RunPorts {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly write: {
    readonly output: (text: string) => void;
    readonly error: (text: string) => void;
  };
  readonly stopping: AbortSignal;
  readonly survey: SurveySource;
  readonly copy: CopySource;
  /** Turns the event feed of a stopped embedded store on or off (see `events`). */
  readonly switchStopped: (config: Config, isOn: boolean) => Promise<string | undefined>;
}

/** Runs a command that calls a running server. Throws a CommandError or a ConfigError. */
export async function runClientCommand(
  command: ClientCommand,
  argv: readonly string[],
  { env, write, stopping, survey, copy, switchStopped }: RunPorts,
): Promise<void> {
  const args = parseArguments(command, argv);
  const { flags } = args;
  if (flags.has("help")) return write.output(helpOf(command));
  const output: Output = {
    isJson: flags.has("json"),
    print: (line) => write.output(`${line}\n`),
    note: (line) => write.error(`${line}\n`),
  };
  if (command === "import") return importFrom(args, { output, env, survey, copy });
  const config = loadConfig({ file: flags.get("config"), env });
  const api = new Api(apiUrl(flags.get("api"), config), config);
  try {
    switch (command) {
      case "health":
        return await health(api, output);
      case "token":
        return await token(api, args, output);
      case "send":
        return await send(api, args, output);
      case "history":
        return await history(api, args, output);
      case "events":
        return await events(api, args, output, (isOn) => switchStopped(config, isOn));
      case "watch":
        return await watch(args, { api, config, output, env, stopping });
    }
  } finally {
    await api.close();
  }
}
