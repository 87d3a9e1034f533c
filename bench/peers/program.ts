// Finds the programs of peers that are not libraries, and starts them on a free port.

import { accessSync, constants } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { freePort } from "../../test/support/redis.ts";
import type { Server } from "../support/servers.ts";
import type { Workbench } from "../support/workbench.ts";

const HOME = process.env.HOME ?? "/";

/** Folders that are searched in addition to `PATH`: those of Debian packages, Go and Rust. */
const FOLDERS = ["/usr/sbin", "/usr/local/sbin", join(HOME, "go/bin"), join(HOME, ".cargo/bin")];

/** Interval between checks of the port. A program may log that it is ready before it listens. */
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

/**
 * Returns the path of the program, or `undefined` if it is not installed. A variable such as
 * `BENCH_WUKONGIM`, with the path of the program, takes precedence over the folders.
 */
export function findProgram(name: string): string | undefined {
  const path = process.env[`BENCH_${name.toUpperCase().replaceAll("-", "_")}`];
  if (path !== undefined && path !== "") return isExecutable(path) ? path : undefined;
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
 * Starts a program and waits until its ports accept connections. With `mark`, first waits for a
 * line of output that contains it. `configure` writes the program's configuration for the port
 * into the folder, and returns the program's arguments. `clientPort` is the clients' port if the
 * program has a separate one.
 */
export async function startProgram(
  workbench: Workbench,
  name: string,
  {
    mark,
    clientPort,
    configure,
  }: {
    readonly mark?: string;
    readonly clientPort?: number;
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
  if (mark !== undefined) await child.line(mark);
  const ports = { apiPort: port, clientPort: clientPort ?? port };
  for (const each of new Set(Object.values(ports)))
    while (!(await isListening(each))) {
      if (child.hasEnded) throw child.failure("ended early");
      await pause(PORT_CHECK_MS);
    }
  return {
    ...{ pid: child.pid, ...ports },
    async stop() {
      await child.stop();
      workbench.removeFolder(folder);
    },
  };
}
