// Starts real brokers for tests: in the test process (fast), or as a child process (for kill -9 and
// signals). Each broker has its own folder and free ports, and is stopped at the end of the test.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { loadConfig } from "../../src/config/load.ts";
import { createLogger } from "../../src/observe/logger.ts";
import { NewestErrors } from "../../src/observe/newest-errors.ts";
import { createServer } from "../../src/server.ts";
import { chooseDriver } from "../../src/transport/drivers.ts";
import { TYPESCRIPT_ARGS, tieToParent } from "./child.ts";
import { combineNodes } from "./combine-nodes.ts";
import { DATA_FOLDERS } from "./data-folders.ts";
import { DRIVER, driverSettings, nodeCount, TEST_TRANSPORT } from "./driver.ts";
import { callHttp, type HttpReply } from "./http.ts";

/** Environment variables that configure a broker, or headers of a request. */
export type Settings = Readonly<Record<string, string>>;

export interface Broker {
  /** API port of one node. With several nodes, each read returns the port of the next node. */
  readonly apiPort: number;
  /** Client port of one node. With several nodes, each read returns the port of the next node. */
  readonly clientPort: number;
  /** Port for WKProto over TCP, or `undefined` if no such listener is configured. */
  readonly wkprotoPort?: number | undefined;
  readonly dataPath: string;
  /** Passwords that the broker has printed for the operator. */
  readonly passwords: readonly string[];
  /** Sends a POST with a JSON body, or a GET if there is no body, and parses the response. */
  call(path: string, body?: unknown, headers?: Settings): Promise<ApiResponse>;
  /**
   * Resolves when everything published so far has reached all nodes. `undefined` with one node on
   * the embedded store, where a publication is delivered before its call is answered.
   */
  readonly publicationsDelivered?: (() => Promise<void>) | undefined;
  /**
   * Resolves when the sessions opened so far have caught up. With `clientPort`, waits only for the
   * sessions of the node with this client port. `undefined` with one node on the embedded store,
   * where a session has caught up when it receives its CONNACK.
   */
  readonly sessionsCaughtUp?: ((clientPort?: number) => Promise<void>) | undefined;
  close(): Promise<void>;
}

export type ApiResponse = HttpReply;

/** Creates a folder that is removed after the test. */
export async function tempFolder(t: Test, parent = tmpdir()): Promise<string> {
  const path = await mkdtemp(join(parent, "jindou-test-"));
  t.teardown(() => rm(path, { recursive: true, force: true }));
  return path;
}

/**
 * Returns the environment of a test broker: both listeners on free loopback ports, only errors
 * logged, and no limit on unauthenticated clients from one address. `settings` overrides these
 * values.
 */
function environment(dataPath: string, settings: Settings): Settings {
  return {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_STORE_PATH: dataPath,
    JINDOU_LOG_LEVEL: "error",
    JINDOU_DRAIN_TIMEOUT_MS: "500",
    JINDOU_TRANSPORT_DRIVER: TEST_TRANSPORT,
    JINDOU_SOCKETS_MAX_UNAUTHENTICATED_PER_ADDRESS: "0",
    ...settings,
  };
}

/** Starts a broker in this process. `driver.ts` chooses the store and the number of nodes. */
export async function startBroker(
  t: Test,
  settings: Settings = {},
  dataPath?: string,
): Promise<Broker> {
  const path = dataPath ?? (await tempFolder(t, DATA_FOLDERS));
  const merged = { ...(await driverSettings(path)), ...settings };
  const config = loadConfig({ env: environment(path, merged) });
  const passwords: string[] = [];
  const newestErrors = new NewestErrors();
  const { driver } = await chooseDriver(config.transport);
  const creating = Array.from({ length: nodeCount(settings) }, () =>
    createServer(config, {
      transport: driver,
      logger: createLogger({ level: config.log.level, newestErrors }, process.stdout),
      droppedLogLines: () => 0,
      newestErrors: () => newestErrors.list(),
      version: "test",
      announcePassword: (_username, password) => passwords.push(password),
      onUnfit(error) {
        throw error; // never happens: these brokers do not migrate or lose their data folder
      },
    }),
  );
  const servers = await Promise.all(creating);
  const close = async () => {
    await Promise.all(servers.map((server) => server.close()));
  };
  t.teardown(close);
  const nodes = await Promise.all(servers.map((server) => server.start()));
  const [first, ...otherNodes] = nodes.map((ports) => ({
    ...ports,
    call: caller(ports.apiPort),
  }));
  if (first === undefined) throw new Error("the broker has no node");
  const broker = { dataPath: path, passwords, close };
  if (DRIVER === "embedded") return { ...first, ...broker };
  return { ...broker, ...combineNodes([first, ...otherNodes]), close };
}

/** The built program (`npm test` builds it first) as a process, which may not be ready yet. */
export interface BrokerProcess {
  readonly process: ChildProcess;
  readonly dataPath: string;
  /** Returns everything the process has written to stdout and stderr so far. */
  output(): string;
  /** Resolves when the broker listens. Rejects if the process ends first. */
  ready(): Promise<ChildBroker>;
  /** Sends SIGKILL and waits until the process has ended. */
  kill(): Promise<void>;
  /** Sends the signal and resolves with the exit of the process. */
  stop(signal: NodeJS.Signals): Promise<Exit>;
  /** Resolves when the process has ended. */
  readonly exited: Promise<Exit>;
}

/** How a process ended. */
export interface Exit {
  /** `null` if a signal ended the process. */
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface ChildBroker extends Broker, Omit<BrokerProcess, "ready"> {
  /** Sends SIGTERM and resolves with the exit code. */
  terminate(): Promise<number | null>;
}

/** How the start of a broker process differs from a normal start. */
export interface LaunchOptions {
  /** Maximum number of open files (RLIMIT_NOFILE, Linux only). */
  readonly maxFiles?: number;
  /** Command that starts the broker, such as one that enters a namespace. */
  readonly prefix?: readonly string[];
  /** Path of the Node.js that runs the program. Default: that of this process. */
  readonly node?: string;
  /** Arguments for Node.js. Default: the built program and its `start` command. */
  readonly program?: readonly string[];
}

/**
 * Options of a broker whose store flushes and deletes segments constantly, so that a kill is likely
 * to interrupt one of these operations.
 */
export const BUSY_STORE: LaunchOptions = {
  program: [...TYPESCRIPT_ARGS, fileURLToPath(new URL("busy-broker.ts", import.meta.url))],
};

/** Options of a broker whose database writes fail after a SIGUSR2, see brittle-broker.ts. */
export const BRITTLE_STORE: LaunchOptions = {
  program: [...TYPESCRIPT_ARGS, fileURLToPath(new URL("brittle-broker.ts", import.meta.url))],
};

/** Starts the built program without waiting until it is ready. */
export async function launchBroker(
  t: Test,
  settings: Settings = {},
  dataPath?: string,
  {
    maxFiles,
    prefix = [],
    node = process.execPath,
    program = ["dist/main.js", "start"],
  }: LaunchOptions = {},
): Promise<BrokerProcess> {
  const path = dataPath ?? (await tempFolder(t));
  const variables = Object.entries({
    PATH: process.env.PATH ?? "",
    ...environment(path, { JINDOU_LOG_LEVEL: "info", ...settings }),
  }).map(([name, value]) => `${name}=${value}`);
  const command = [...variables, node, ...program];
  const limit = maxFiles === undefined ? [] : ["prlimit", `--nofile=${maxFiles}`];
  const [launcher = "env", ...args] = [...prefix, ...limit, "env", "-i", ...command];
  const child = spawn(...tieToParent(launcher, args), {
    cwd: fileURLToPath(new URL("../..", import.meta.url)),
    stdio: ["ignore", "pipe", "pipe"],
  });
  const exited = once(child, "exit").then(([code, signal]) => ({
    code,
    signal,
  }));
  const stop = (signal: NodeJS.Signals) => {
    child.kill(signal);
    return exited;
  };
  const kill = async () => {
    await stop("SIGKILL");
  };
  t.teardown(kill);
  let output = "";
  const read = (chunk: Buffer) => {
    output += chunk.toString();
  };
  child.stdout?.on("data", read);
  child.stderr?.on("data", read);
  const running: Omit<BrokerProcess, "ready"> = {
    process: child,
    dataPath: path,
    output: () => output,
    exited,
    kill,
    stop,
  };
  return {
    ...running,
    async ready() {
      const ports = await readPorts(running);
      return {
        ...running,
        ...ports,
        passwords: [],
        call: caller(ports.apiPort),
        close: kill,
        terminate: async () => (await stop("SIGTERM")).code,
      };
    },
  };
}

/** Starts the built program and waits until it is ready. */
export async function spawnBroker(
  t: Test,
  settings: Settings = {},
  dataPath?: string,
  launch?: LaunchOptions,
): Promise<ChildBroker> {
  const launched = await launchBroker(t, settings, dataPath, launch);
  return launched.ready();
}

/** Reads the two ports from the log line of a node that is ready. */
function readPorts(
  running: Omit<BrokerProcess, "ready">,
): Promise<Pick<Broker, "apiPort" | "clientPort" | "wkprotoPort">> {
  return new Promise((resolve, reject) => {
    const findPorts = () => {
      const api = /"apiPort":(\d+)/.exec(running.output());
      const client = /"clientPort":(\d+)/.exec(running.output());
      if (!api || !client) return;
      const wkproto = /"wkprotoPort":(\d+)/.exec(running.output());
      resolve({
        ...{ apiPort: Number(api[1]), clientPort: Number(client[1]) },
        ...(wkproto && { wkprotoPort: Number(wkproto[1]) }),
      });
    };
    running.process.stdout?.on("data", findPorts);
    findPorts();
    void running.exited.then(({ code }) =>
      reject(new Error(`the broker exited with code ${code}: ${running.output()}`)),
    );
  });
}

function caller(port: number): Broker["call"] {
  return (path, body, headers = {}) => callHttp({ port, path, body, headers });
}

/** Returns the Base64 payload of a text message [spec: type 1]. */
export function textPayload(content: string): string {
  return Buffer.from(JSON.stringify({ type: 1, content })).toString("base64");
}
