// Starts Redis servers for tests: real processes on free ports, each with its own folder, stopped
// at the end of the test. Never connects to a server that was already running.

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "ioredis";
import type { Test } from "tap";
import type { RedisSettings } from "../../src/redis/client.ts";
import { tieToParent } from "./child.ts";

const HOST = "127.0.0.1";
const SLOTS = 16_384;
const START_MS = 120_000;
/** Time after which an unanswered PING to a starting server is sent again. */
const PING_TIMEOUT_MS = 5000;
/** Maximum number of ports tried. Another process may bind a free port before the server does. */
const MAX_PORT_ATTEMPTS = 5;

export interface RedisServer {
  readonly port: number;
  readonly url: string;
  /** Opens a connection, which is closed at the end of the test. */
  client(): Redis;
  /** Sends a signal to the process, for example SIGSTOP or SIGCONT. */
  signal(name: NodeJS.Signals): void;
  /**
   * Ends the process and waits for its end. `SIGTERM` (the default) writes the AOF but no snapshot,
   * `SIGKILL` is a crash.
   */
  stop(signal?: "SIGTERM" | "SIGKILL"): Promise<void>;
  /** Stops the process and starts it again with the same port and folder. */
  restart(): Promise<void>;
}

/** Returns the `redis` section of a configuration for the server at `url`. */
export function redisSettings(url: string, overrides: Partial<RedisSettings> = {}): RedisSettings {
  return {
    ...{ url, cluster: false, sentinelName: "", sentinelPassword: "" },
    ...{ caFile: "", prefix: "jd", minReplicas: 0 },
    ...{ timeoutMs: 3000, maxInFlight: 20_000 },
    ...overrides,
  };
}

/**
 * Lowest port for servers. All ports lie below the range of outgoing connections, because such a
 * connection could occupy the port while a server is restarted.
 */
const FIRST_PORT = 10_000;
const PORT_COUNT = 22_000;

/**
 * Folder with one file for each reserved port, which contains the process id of the owner. Without
 * this folder, two test processes could choose the same port, because a new server needs seconds to
 * listen.
 */
const RESERVED_PORTS = join(tmpdir(), `jindou-ports-${process.getuid?.() ?? 0}`);

/** Returns a port on which no process listens and which no running test process has reserved. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = FIRST_PORT + Math.floor(Math.random() * PORT_COUNT);
    if (!reserve(port)) continue;
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, HOST, () => resolve(true));
    });
    if (!isFree) continue;
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
}

function reserve(port: number): boolean {
  const file = join(RESERVED_PORTS, `${port}`);
  mkdirSync(RESERVED_PORTS, { recursive: true });
  try {
    writeFileSync(file, `${process.pid}`, { flag: "wx" });
    return true;
  } catch {
    if (!isAbandoned(file)) return false;
    rmSync(file, { force: true }); // a later call may reserve this port; this call tries another
    return false;
  }
}

/** Returns true if the process that reserved the port has ended. */
function isAbandoned(file: string): boolean {
  try {
    process.kill(Number(readFileSync(file, "utf8")) || process.pid, 0);
    return false;
  } catch {
    return true;
  }
}

type Args = readonly string[];

/**
 * Starts a server. `args` are added to its command line, e.g. `["--appendonly", "yes"]`. If `args`
 * is a function, it is called again for each port that is tried. `env` is added to the server's
 * environment.
 */
export async function startRedis(
  t: Pick<Test, "teardown">,
  args: Args | (() => Promise<Args>) = [],
  env: NodeJS.ProcessEnv = {},
): Promise<RedisServer> {
  for (let attempt = 1; ; attempt++) {
    const extraArgs = typeof args === "function" ? await args() : args;
    const server = await startOnce(t, extraArgs, env);
    if (server !== undefined) return server;
    if (attempt === MAX_PORT_ATTEMPTS)
      throw new Error(`redis-server did not start on any of ${MAX_PORT_ATTEMPTS} ports`);
  }
}

/** Starts a server on a free port. Returns `undefined` if its process ended at once. */
async function startOnce(
  t: Pick<Test, "teardown">,
  args: Args,
  env: NodeJS.ProcessEnv,
): Promise<RedisServer | undefined> {
  const folder = mkdtempSync(join(tmpdir(), "jindou-redis-"));
  const port = await freePort();
  const options = ["--port", `${port}`, "--bind", HOST, "--dir", folder];
  const quiet = ["--save", "", "--loglevel", "warning"];
  const clients: Redis[] = [];
  let child: ChildProcess | undefined;

  async function start(): Promise<boolean> {
    assertInstalled();
    const serverArgs = [...options, ...quiet, ...args];
    child = spawn(...tieToParent("redis-server", serverArgs), {
      stdio: "ignore",
      env: { ...process.env, ...env },
    });
    return waitUntilReachable(port, child);
  }
  async function stop(signal: "SIGTERM" | "SIGKILL" = "SIGTERM"): Promise<void> {
    const running = child;
    child = undefined;
    if (running === undefined || running.exitCode !== null) return;
    if (running.signalCode !== null) return; // another signal has already ended the process
    const ended = new Promise((resolve) => running.once("exit", resolve));
    running.kill("SIGCONT");
    running.kill(signal);
    await ended;
  }
  t.teardown(async () => {
    for (const client of clients) client.disconnect();
    await stop("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  });
  if (!(await start())) return undefined;
  return {
    port,
    url: `redis://${HOST}:${port}`,
    client() {
      const client = new Redis(port, HOST, { protocol: 2 });
      clients.push(client);
      return client;
    },
    signal: (name) => child?.kill(name),
    stop,
    restart: async () => {
      await stop();
      if (!(await start())) throw new Error("redis-server ended while it was starting again");
    },
  };
}

export interface RedisClusterServers {
  /** Addresses of all primaries, for `redis.url`. */
  readonly url: string;
  readonly primaries: readonly RedisServer[];
  /** One replica of each primary, in the order of the primaries. Empty without `replicas`. */
  readonly replicas: readonly RedisServer[];
}

/** Starts a Redis Cluster of three primaries. With `replicas`, each has one replica. */
export async function startRedisCluster(
  t: Pick<Test, "teardown">,
  { replicas = false }: { readonly replicas?: boolean } = {},
): Promise<RedisClusterServers> {
  const servers = await Promise.all(
    Array.from({ length: replicas ? 6 : 3 }, () => startClusterNode(t, replicas)),
  );
  const [primaries, followers] = [servers.slice(0, 3), servers.slice(3)];
  const clients = servers.map((server) => server.client());
  const share = Math.ceil(SLOTS / 3);
  for (const [at, client] of clients.slice(0, 3).entries())
    await client.call(
      ...(["CLUSTER", "ADDSLOTSRANGE"] as const),
      ...[`${at * share}`, `${Math.min((at + 1) * share, SLOTS) - 1}`],
    );
  for (const [at, client] of clients.entries())
    await client.call("CLUSTER", "SET-CONFIG-EPOCH", `${at + 1}`);
  for (const { port, busPort } of servers.slice(1))
    await clients[0]?.call("CLUSTER", "MEET", HOST, `${port}`, `${busPort}`);
  for (const client of clients) await waitForCluster(client, servers.length);
  for (const [at] of followers.entries()) {
    const id = await clients[at]?.call("CLUSTER", "MYID");
    await clients[at + 3]?.call("CLUSTER", "REPLICATE", String(id));
  }
  for (const [at] of followers.entries()) await waitForReplication(clients[at], clients[at + 3]);
  for (const client of clients) client.disconnect(); // no errors when a test kills a server later
  return {
    url: primaries.map(({ url }) => url).join(","),
    primaries,
    replicas: followers,
  };
}

/**
 * Starts one server of a Redis Cluster. With replicas the node timeout is short, so that a dead
 * primary is replaced soon. Without replicas it is long, because servers on a busy machine would
 * otherwise consider each other dead.
 */
async function startClusterNode(
  t: Pick<Test, "teardown">,
  hasReplicas: boolean,
): Promise<RedisServer & { readonly busPort: number }> {
  const timeoutMs = hasReplicas ? "1500" : "10000";
  let busPort = 0;
  const server = await startRedis(t, async () => {
    busPort = await freePort();
    return [
      ...["--cluster-enabled", "yes", "--cluster-port", `${busPort}`],
      ...["--cluster-node-timeout", timeoutMs, "--appendonly", "yes"],
      ...["--cluster-require-full-coverage", "no"],
      ...["--repl-diskless-sync-delay", "0"],
    ];
  });
  return { ...server, busPort };
}

async function waitForCluster(client: Redis, nodes: number): Promise<void> {
  await until(async () => {
    const info = String(await client.call("CLUSTER", "INFO"));
    return (
      // The state can be "ok" before all slots are assigned.
      info.includes("cluster_state:ok") &&
      info.includes(`cluster_slots_assigned:${SLOTS}`) &&
      info.includes(`cluster_known_nodes:${nodes}`)
    );
  });
}

/** Time until CLUSTER FAILOVER is sent again. Redis abandons a manual fail-over after 5 s. */
const FAILOVER_RETRY_MS = 6000;

/**
 * Makes the replica the primary. Redis replies to CLUSTER FAILOVER before the fail-over. The
 * fail-over may fail on a busy machine, so the command is repeated until the role has changed.
 */
export async function failOverTo(replica: RedisServer): Promise<void> {
  const client = replica.client();
  let failoverAtMs = 0;
  await until(async () => {
    if (await isPrimary(client)) return true;
    if (Date.now() - failoverAtMs < FAILOVER_RETRY_MS) return false;
    failoverAtMs = Date.now();
    await client.call("CLUSTER", "FAILOVER");
    return false;
  });
}

export async function isPrimary(client: Redis): Promise<boolean> {
  return (await client.info("replication")).includes("role:master");
}

/**
 * Waits until the replica is connected and its primary lists it as online. WAIT does not count the
 * replica before that.
 */
export async function waitForReplication(
  primary: Redis | undefined,
  replica: Redis | undefined,
): Promise<void> {
  const reports = async (client: Redis | undefined, pattern: RegExp) =>
    pattern.test((await client?.info("replication")) ?? "");
  await until(() => reports(replica, /master_link_status:up/));
  await until(() => reports(primary, /slave\d+:.*state=online/));
}

let isInstalled = false;

function assertInstalled(): void {
  if (isInstalled) return;
  try {
    execFileSync("redis-server", ["--version"], { stdio: "ignore" });
    isInstalled = true;
  } catch (cause) {
    throw new Error(
      "redis-server is not installed. Run npm test as root or with sudo, which installs it, or run apt-get install redis-server.",
      { cause },
    );
  }
}

/**
 * Waits until the server responds to PING. Returns false if the process ended. Another process may
 * then be responding at the port.
 */
async function waitUntilReachable(port: number, child: ChildProcess): Promise<boolean> {
  const client = new Redis(port, HOST, {
    ...{ protocol: 2, retryStrategy: () => 20 },
    ...{ maxRetriesPerRequest: 1, commandTimeout: PING_TIMEOUT_MS },
  });
  client.on("error", () => {}); // connections are refused until the server listens
  const hasEnded = () => child.exitCode !== null || child.signalCode !== null;
  try {
    await until(async () => hasEnded() || (await client.ping()) === "PONG");
    return !hasEnded();
  } finally {
    client.disconnect();
  }
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + START_MS;
  for (;;) {
    if (await condition().catch(() => false)) return;
    if (Date.now() > deadline) throw new Error(`Redis was not ready within ${START_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Options of a server that logs every command of its clients, for `callsByCommand`. */
export const LOG_ALL = ["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"];

/** Entry of the slow log: number, time, duration in microseconds, and arguments. */
export type SlowCommand = readonly [number, number, number, readonly string[]];

/** Commands that no script runs: they read statistics, or check a server. */
const UNCOUNTED = /^(exec|info|multi|time|.*\|.*)$/;

/**
 * Returns how often each command was run since the statistics and the log were last reset
 * together. Omits `UNCOUNTED` commands and GETs of a data format, because each link sends such
 * commands every second to check its server. The server must have the options `LOG_ALL`.
 */
export async function callsByCommand(client: Redis): Promise<ReadonlyMap<string, number>> {
  const replies = await client.multi().info("commandstats").call("SLOWLOG", "GET", -1).exec();
  const [stats, log] = (replies ?? []).map(([, reply]) => reply) as [string, SlowCommand[]];
  const calls = new Map<string, number>();
  for (const [, name = "", count] of stats.matchAll(/^cmdstat_(.*?):calls=(\d+)/gm))
    if (!UNCOUNTED.test(name)) calls.set(name, Number(count));
  const checks = log.filter(
    ([, , , [name, key]]) => name?.toLowerCase() === "get" && key?.endsWith(":format"),
  ).length;
  calls.set("get", (calls.get("get") ?? 0) - checks);
  return calls;
}

/** Resets the statistics and the log of commands together. */
export async function resetCalls(client: Redis): Promise<void> {
  await client.multi().config("RESETSTAT").call("SLOWLOG", "RESET").exec();
}

/** Returns how often clients and scripts have run the command since the statistics were reset. */
export async function commandCalls(client: Redis, command: string): Promise<number> {
  return commandCallsIn(await client.info("commandstats"), command);
}

/** Returns how often the command was run according to the reply to `INFO commandstats`. */
export function commandCallsIn(stats: string, command: string): number {
  const match = new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats);
  return Number(match?.[1] ?? 0);
}
