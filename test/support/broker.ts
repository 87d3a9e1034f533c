// Real brokers for tests: one in this process (quick), or one as a child process (for kill -9 and
// signals). Each has its own folder and free ports, and goes away with the test.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { loadConfig } from "../../src/config/load.ts";
import { createLogger } from "../../src/observe/logger.ts";
import { createServer } from "../../src/server.ts";
import { TYPESCRIPT_ARGS, tieToParent } from "./child.ts";
import { combineNodes } from "./combine-nodes.ts";
import { DRIVER, driverSettings, nodeCount } from "./driver.ts";

/** Settings as environment variables, the way an operator gives them. */
export type Settings = Readonly<Record<string, string>>;

export interface Broker {
  /** Of one of its nodes; with several, of another one each time it is asked. */
  readonly apiPort: number;
  readonly clientPort: number;
  readonly dataPath: string;
  /** Passwords shown to the operator. */
  readonly passwords: readonly string[];
  /** POSTs JSON (GETs without a body) and returns status and parsed body. */
  call(path: string, body?: unknown, headers?: Settings): Promise<ApiResponse>;
  /**
   * Resolves once everything published before has reached all nodes; undefined: it has when the
   * call is answered.
   */
  readonly publicationsDelivered?: (() => Promise<void>) | undefined;
  /**
   * Resolves once the sessions that were opened before, at that port or at all, are level;
   * undefined: they are with their connack.
   */
  readonly sessionsCaughtUp?: ((clientPort?: number) => Promise<void>) | undefined;
  close(): Promise<void>;
}

export interface ApiResponse {
  readonly status: number;
  readonly headers: Headers;
  // biome-ignore lint/suspicious/noExplicitAny: bodies are looked into freely by tests
  readonly body: any;
}

export async function tempFolder(t: Test): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), "jindou-test-"));
  t.teardown(() => rm(path, { recursive: true, force: true }));
  return path;
}

/**
 * Both listeners on free loopback ports, quiet, any number of clients from this one address;
 * `settings` wins.
 */
function environment(dataPath: string, settings: Settings): Settings {
  return {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_STORE_PATH: dataPath,
    JINDOU_LOG_LEVEL: "error",
    JINDOU_DRAIN_TIMEOUT_MS: "500",
    JINDOU_SOCKETS_MAX_UNAUTHENTICATED_PER_ADDRESS: "0",
    ...settings,
  };
}

/**
 * A broker in this process: of one node or several, on what the environment says (see `driver.ts`).
 */
export async function startBroker(
  t: Test,
  settings: Settings = {},
  dataPath?: string,
): Promise<Broker> {
  const path = dataPath ?? (await tempFolder(t));
  const given = { ...(await driverSettings(path)), ...settings };
  const config = loadConfig({ env: environment(path, given) });
  const passwords: string[] = [];
  const servers = Array.from({ length: nodeCount(settings) }, () =>
    createServer(config, {
      logger: createLogger({ level: config.log.level }),
      version: "test",
      announcePassword: (_username, password) => passwords.push(password),
      onUnfit(error) {
        throw error; // nothing is moved
      },
    }),
  );
  const close = async () => {
    await Promise.all(servers.map((server) => server.close()));
  };
  t.teardown(close);
  const nodes = await Promise.all(servers.map((server) => server.start()));
  const [only, ...others] = nodes.map((ports) => ({
    ...ports,
    call: caller(ports.apiPort),
  }));
  if (only === undefined) throw new Error("no node");
  const broker = { dataPath: path, passwords, close };
  if (DRIVER === "embedded") return { ...only, ...broker };
  return { ...broker, ...combineNodes([only, ...others]), close };
}

/** The built binary as its own process (`npm test` builds it first), ready or not. */
export interface BrokerProcess {
  readonly process: ChildProcess;
  readonly dataPath: string;
  /** Everything it has written so far: log lines and what it says to the operator. */
  output(): string;
  /** Resolves when it listens; rejects when it ends before. */
  ready(): Promise<ChildBroker>;
  /** kill -9, and waits until it is gone. */
  kill(): Promise<void>;
  /** Sends the signal; resolves with how the process ended. */
  stop(signal: NodeJS.Signals): Promise<Exit>;
  /** How it ended, once it has. */
  readonly exited: Promise<Exit>;
}

export interface Exit {
  /** Null when a signal ended it. */
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface ChildBroker extends Broker, Omit<BrokerProcess, "ready"> {
  /** SIGTERM; resolves with the exit code. */
  terminate(): Promise<number | null>;
}

/** How the process is started, where not as an operator does it. */
export interface LaunchOptions {
  /** Its limit of open files (Linux). */
  readonly maxFiles?: number;
  /** What Node.js runs instead of the binary. */
  readonly program?: readonly string[];
}

/** Kills of it fall into flushes and the deletion of segments. */
export const BUSY_STORE: LaunchOptions = {
  program: [...TYPESCRIPT_ARGS, fileURLToPath(new URL("busy-broker.ts", import.meta.url))],
};

/** Starts the binary and does not wait for it, for tests of what happens before it is ready. */
export async function launchBroker(
  t: Test,
  settings: Settings = {},
  dataPath?: string,
  { maxFiles, program = ["dist/main.js", "start"] }: LaunchOptions = {},
): Promise<BrokerProcess> {
  const path = dataPath ?? (await tempFolder(t));
  const variables = Object.entries({
    PATH: process.env.PATH ?? "",
    ...environment(path, { JINDOU_LOG_LEVEL: "info", ...settings }),
  }).map(([name, value]) => `${name}=${value}`);
  const command = [...variables, process.execPath, ...program];
  const bare = ["-i", ...command];
  const [first, args] =
    maxFiles === undefined ? ["env", bare] : ["prlimit", [`--nofile=${maxFiles}`, "env", ...bare]];
  const child = spawn(...tieToParent(first, args), {
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

/** The built binary as its own process, ready. */
export async function spawnBroker(
  t: Test,
  settings: Settings = {},
  dataPath?: string,
  launch?: LaunchOptions,
): Promise<ChildBroker> {
  const launched = await launchBroker(t, settings, dataPath, launch);
  return launched.ready();
}

/** The ports are in the log line that says the node is ready. */
function readPorts(
  running: Omit<BrokerProcess, "ready">,
): Promise<{ apiPort: number; clientPort: number }> {
  return new Promise((resolve, reject) => {
    const look = () => {
      const api = /"apiPort":(\d+)/.exec(running.output());
      const client = /"clientPort":(\d+)/.exec(running.output());
      if (!api || !client) return;
      resolve({ apiPort: Number(api[1]), clientPort: Number(client[1]) });
    };
    running.process.stdout?.on("data", look);
    look();
    void running.exited.then(({ code }) =>
      reject(new Error(`the broker exited with ${code}: ${running.output()}`)),
    );
  });
}

function caller(port: number): Broker["call"] {
  return async (path, body, headers = {}) => {
    const response = await fetch(`http://127.0.0.1:${port}${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { "content-type": "application/json", ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return {
      status: response.status,
      headers: response.headers,
      body: isJson(response) ? JSON.parse(text) : text,
    };
  };
}

function isJson(response: Response): boolean {
  return response.headers.get("content-type")?.includes("json") ?? false;
}

/** The Base64 payload of a text message [spec: type 1]. */
export function textPayload(content: string): string {
  return Buffer.from(JSON.stringify({ type: 1, content })).toString("base64");
}
