// Starts the servers to measure: a build of the broker with an empty store, or the raw server. Each
// server runs in its own process.

import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Subject } from "./benchmark.ts";
import { profilerArgs } from "./profile.ts";
import type { RawKind } from "./raw-server.ts";
import type { Child, Workbench } from "./workbench.ts";

export interface Server {
  /** Process id, or 0 if the server runs on another machine. */
  readonly pid: number;
  /** IPv4 address. Absent for 127.0.0.1. */
  readonly host?: string;
  /** Token of the server's API. Absent if the API needs no token. */
  readonly apiToken?: string;
  readonly apiPort: number;
  readonly clientPort: number;
  /** Port of WKProto over TCP. Absent if there is no such listener. */
  readonly wkprotoPort?: number;
  /**
   * Ends the process and removes its data. The process is killed, unless it must end normally to
   * write a profile.
   */
  stop(): Promise<void>;
}

const SETTINGS = {
  JINDOU_API_LISTEN: "127.0.0.1:0",
  JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
  JINDOU_CLIENT_AUTH_TIMEOUT_MS: "60000", // thousands of clients connect at once
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
  JINDOU_DRAIN_TIMEOUT_MS: "1000",
  JINDOU_LOG_LEVEL: "info",
};

const RAW_SERVER = fileURLToPath(new URL("./raw-server.ts", import.meta.url));

/**
 * Returns the setting that removes the limit on unauthenticated sockets per address, because all
 * clients of a bench have the same address. Older builds do not have this setting.
 */
function addressLimit(directory: string): Record<string, string> {
  return existsSync(`${directory}/src/transport/socket-limits.ts`)
    ? { JINDOU_SOCKETS_MAX_UNAUTHENTICATED_PER_ADDRESS: "0" }
    : {};
}

/** Returns the arguments with which `npm start` of a build starts Node.js. */
function startArgs(directory: string): string[] {
  const { scripts } = JSON.parse(readFileSync(`${directory}/package.json`, "utf8")) as {
    scripts: { start: string };
  };
  return scripts.start.replace(/^exec node /, "").split(" ");
}

/**
 * Starts the build as its `npm start` does, as a node on Redis if `redis` is present. The rate
 * limits per client and the limit per address are off, and a client has a minute to log in.
 * `settings` overrides these values and the defaults of all other settings.
 */
export async function startBroker(
  workbench: Workbench,
  { directory, transport, profileFolder }: Extract<Subject, { kind: "broker" }>,
  redis?: {
    readonly url: string;
    readonly prefix: string;
    readonly isCluster?: boolean;
  },
  settings: Readonly<Record<string, string>> = {},
): Promise<Server> {
  const folder = workbench.folder("store");
  const data: Record<string, string> =
    redis === undefined
      ? { JINDOU_STORE_PATH: folder }
      : {
          JINDOU_REDIS_URL: redis.url,
          JINDOU_REDIS_PREFIX: `${redis.prefix}-${hashOf(directory)}`,
          JINDOU_REDIS_CLUSTER: `${redis.isCluster ?? false}`,
        };
  const profiler = profileFolder === undefined ? [] : profilerArgs(profileFolder);
  const child = workbench.spawn({
    name: `The broker of ${directory}`,
    command: process.execPath,
    args: [...profiler, ...startArgs(directory)],
    cwd: directory,
    env: {
      ...SETTINGS,
      ...addressLimit(directory),
      ...(transport === undefined ? {} : { JINDOU_TRANSPORT_DRIVER: transport }),
      ...data,
      ...settings,
    },
    isMeasured: true,
  });
  const ready = JSON.parse(await child.line('"The node is ready"')) as Record<string, unknown>;
  return {
    pid: child.pid,
    apiPort: Number(ready.apiPort),
    clientPort: Number(ready.clientPort),
    ...(ready.wkprotoPort !== undefined && { wkprotoPort: Number(ready.wkprotoPort) }),
    async stop() {
      if (profileFolder === undefined) await child.stop();
      else await child.finish();
      workbench.removeFolder(folder);
    },
  };
}

/**
 * Returns a short hash for the key prefix. It keeps builds apart on one Redis, because their data
 * formats may differ.
 */
function hashOf(directory: string): string {
  return createHash("sha256").update(directory).digest("hex").slice(0, 8);
}

/** Starts the raw server with this fixed response. */
export function startRaw(workbench: Workbench, kind: RawKind, answer: Uint8Array): Promise<Server> {
  const hex = Buffer.from(answer).toString("hex");
  return startScript(workbench, "The raw server", [RAW_SERVER, kind, hex]);
}

/** Starts a TypeScript server that prints its port. The first item of `args` is its file. */
export async function startScript(
  workbench: Workbench,
  name: string,
  args: readonly string[],
): Promise<Server> {
  const child: Child = workbench.spawn({
    name,
    command: process.execPath,
    args: [...process.execArgv, ...args], // execArgv is needed to run TypeScript
    isMeasured: true,
  });
  const port = Number(await child.line());
  return {
    pid: child.pid,
    apiPort: port,
    clientPort: port,
    stop: () => child.stop(),
  };
}
