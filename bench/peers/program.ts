// Finds the programs of peers that are not libraries, and starts them with a free port.

import { accessSync, constants } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { freePort } from "../../test/support/redis.ts";
import type { Server } from "../support/servers.ts";
import type { Workbench } from "../support/workbench.ts";

/** Folders that are searched in addition to `PATH`: those of Debian packages and of Go. */
const FOLDERS = ["/usr/sbin", "/usr/local/sbin", join(process.env.HOME ?? "/", "go/bin")];

/** Time between two checks of the port: a program may log that it is ready before it listens. */
const PORT_CHECK_MS = 50;

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.once("error", () => resolve(false));
    socket.once("connect", () => {
      socket.destroy();
      resolve(true);
    });
  });
}

/** Returns the path of the program, `undefined` if it is not installed. */
export function findProgram(name: string): string | undefined {
  const folders = [...(process.env.PATH ?? "").split(":"), ...FOLDERS];
  return folders.map((folder) => join(folder, name)).find(isExecutable);
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/**
 * Starts a program and waits for a line of its output that contains `mark`. `configure` writes its
 * configuration for the port into the folder, and returns its arguments.
 */
export async function startProgram(
  workbench: Workbench,
  name: string,
  {
    mark,
    configure,
  }: {
    readonly mark: string;
    configure(folder: string, port: number): readonly string[];
  },
): Promise<Server> {
  const program = findProgram(name);
  if (program === undefined) throw new Error(`${name} is not installed.`);
  const port = await freePort();
  const folder = workbench.folder(name);
  const args = configure(folder, port);
  const child = workbench.spawn({
    name,
    command: "sh",
    args: ["-c", 'exec "$0" "$@" 2>&1', program, ...args], // most programs log to standard error
    cwd: folder,
    isMeasured: true,
  });
  await child.line(mark);
  while (!(await isListening(port))) {
    if (child.hasEnded) throw child.failure("ended early");
    await pause(PORT_CHECK_MS);
  }
  return {
    ...{ pid: child.pid, apiPort: port, clientPort: port },
    async stop() {
      await child.stop();
      workbench.removeFolder(folder);
    },
  };
}
