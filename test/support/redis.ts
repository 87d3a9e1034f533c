// Private Redis servers for tests: real processes on free ports, each with a folder of its own,
// ended with the test. Never one that runs already.

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
/** A server that takes longer is asked again. */
const ANSWER_MS = 5000;
/** Between looking for a free port and the start of a server another process may take it. */
const PORTS_TRIED = 5;

export interface RedisServer {
  readonly port: number;
  readonly url: string;
  /** A connection of the test's own; ended with the test. */
  client(): Redis;
  /** Sends the process a signal: SIGKILL, SIGSTOP, SIGCONT. */
  signal(name: NodeJS.Signals): void;
  /**
   * Ends the process (`SIGTERM` saves nothing but what the AOF has; `SIGKILL` is a crash) and waits
   * for it.
   */
  stop(how?: "SIGTERM" | "SIGKILL"): Promise<void>;
  /** Starts it again on the same port and folder. */
  restart(): Promise<void>;
}

/** Settings of the configuration for a Redis at `url`. */
export function redisSettings(url: string, over: Partial<RedisSettings> = {}): RedisSettings {
  return {
    ...{ url, cluster: false, sentinelName: "", sentinelPassword: "" },
    ...{ caFile: "", prefix: "jd", minReplicas: 0 },
    ...{ timeoutMs: 3000, maxInFlight: 20_000 },
    ...over,
  };
}

/**
 * Below the ports that the system gives to connections: one of those may take the port between two
 * starts of a node.
 */
const FIRST_PORT = 10_000;
const PORTS = 22_000;

/**
 * A file for each port that a test process was given, with its process id: what it starts there may
 * take seconds to listen.
 */
const RESERVED = join(tmpdir(), `jindou-ports-${process.getuid?.() ?? 0}`);

/** A port that nobody listens on now, and that no test process that lives was given before. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = FIRST_PORT + Math.floor(Math.random() * PORTS);
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
  const file = join(RESERVED, `${port}`);
  mkdirSync(RESERVED, { recursive: true });
  try {
    writeFileSync(file, `${process.pid}`, { flag: "wx" });
    return true;
  } catch {
    if (!isForsaken(file)) return false;
    rmSync(file, { force: true }); // another port is tried now, this one is free for the next
    return false;
  }
}

/** The process that was given the port is over. */
function isForsaken(file: string): boolean {
  try {
    process.kill(Number(readFileSync(file, "utf8")) || process.pid, 0);
    return false;
  } catch {
    return true;
  }
}

type Args = readonly string[];

/**
 * Starts a server of its own; `args` follow its options, e.g. `["--appendonly", "yes"]`, made anew
 * for each port that is tried.
 */
export async function startRedis(
  t: Pick<Test, "teardown">,
  args: Args | (() => Promise<Args>) = [],
): Promise<RedisServer> {
  for (let tried = 1; ; tried++) {
    const own = typeof args === "function" ? await args() : args;
    const server = await startOnce(t, own);
    if (server !== undefined) return server;
    if (tried === PORTS_TRIED) throw new Error("redis-server does not start");
  }
}

/** Undefined: it ended at once. */
async function startOnce(t: Pick<Test, "teardown">, args: Args): Promise<RedisServer | undefined> {
  const folder = mkdtempSync(join(tmpdir(), "jindou-redis-"));
  const port = await freePort();
  const options = ["--port", `${port}`, "--bind", HOST, "--dir", folder];
  const quiet = ["--save", "", "--loglevel", "warning"];
  const clients: Redis[] = [];
  let child: ChildProcess | undefined;

  async function start(): Promise<boolean> {
    assertInstalled();
    const all = [...options, ...quiet, ...args];
    child = spawn(...tieToParent("redis-server", all), { stdio: "ignore" });
    return answers(port, child);
  }
  async function stop(how: "SIGTERM" | "SIGKILL" = "SIGTERM"): Promise<void> {
    const running = child;
    child = undefined;
    if (running === undefined || running.exitCode !== null) return;
    if (running.signalCode !== null) return; // it ended by a signal that was not ours
    const ended = new Promise((resolve) => running.once("exit", resolve));
    running.kill("SIGCONT");
    running.kill(how);
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
      if (!(await start())) throw new Error("redis-server ended at its start");
    },
  };
}

export interface RedisClusterServers {
  /** Of all primaries, for `redis.url`. */
  readonly url: string;
  readonly primaries: readonly RedisServer[];
  /** One of each primary, in their order; none without `replicas`. */
  readonly replicas: readonly RedisServer[];
}

/** Three primaries with all slots, each with a replica if asked. */
export async function startRedisCluster(
  t: Pick<Test, "teardown">,
  { replicas = false }: { readonly replicas?: boolean } = {},
): Promise<RedisClusterServers> {
  const all = await Promise.all(
    Array.from({ length: replicas ? 6 : 3 }, () => startClusterNode(t, replicas)),
  );
  const [primaries, followers] = [all.slice(0, 3), all.slice(3)];
  const clients = all.map((one) => one.client());
  const share = Math.ceil(SLOTS / 3);
  for (const [at, client] of clients.slice(0, 3).entries())
    await client.call(
      ...(["CLUSTER", "ADDSLOTSRANGE"] as const),
      ...[`${at * share}`, `${Math.min((at + 1) * share, SLOTS) - 1}`],
    );
  for (const [at, client] of clients.entries())
    await client.call("CLUSTER", "SET-CONFIG-EPOCH", `${at + 1}`);
  for (const { port, busPort } of all.slice(1))
    await clients[0]?.call("CLUSTER", "MEET", HOST, `${port}`, `${busPort}`);
  for (const client of clients) await clusterIsOk(client, all.length);
  for (const [at] of followers.entries()) {
    const id = await clients[at]?.call("CLUSTER", "MYID");
    await clients[at + 3]?.call("CLUSTER", "REPLICATE", String(id));
  }
  for (const [at] of followers.entries()) await waitForReplication(clients[at], clients[at + 3]);
  for (const client of clients) client.disconnect(); // a server that is killed later is no news to them
  return {
    url: primaries.map(({ url }) => url).join(","),
    primaries,
    replicas: followers,
  };
}

/**
 * `failsOver`: one that is away is replaced soon; else a busy machine is given time before servers
 * think each other dead.
 */
async function startClusterNode(
  t: Pick<Test, "teardown">,
  failsOver: boolean,
): Promise<RedisServer & { readonly busPort: number }> {
  const timeoutMs = failsOver ? "1500" : "10000";
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

async function clusterIsOk(client: Redis, nodes: number): Promise<void> {
  await until(async () => {
    const info = String(await client.call("CLUSTER", "INFO"));
    return (
      info.includes("cluster_state:ok") &&
      info.includes(`cluster_slots_assigned:${SLOTS}`) && // a part is enough for "ok" here
      info.includes(`cluster_known_nodes:${nodes}`)
    );
  });
}

/** Longer than Redis tries a manual fail-over. */
const TAKE_OVER_MS = 6000;

/**
 * Makes the replica of a Redis Cluster the primary. Redis answers before it tries, and gives up on
 * a busy machine: it is asked again.
 */
export async function failOverTo(replica: RedisServer): Promise<void> {
  const client = replica.client();
  const isPrimary = async () => (await client.info("replication")).includes("role:master");
  let askedAt = 0;
  await until(async () => {
    if (await isPrimary()) return true;
    if (Date.now() - askedAt < TAKE_OVER_MS) return false;
    askedAt = Date.now();
    await client.call("CLUSTER", "FAILOVER");
    return false;
  });
}

/**
 * Resolves when the replica follows and its primary counts it: only then is it waited for by WAIT.
 */
export async function waitForReplication(
  primary: Redis | undefined,
  replica: Redis | undefined,
): Promise<void> {
  const isSeen = async (client: Redis | undefined, what: RegExp) =>
    what.test((await client?.info("replication")) ?? "");
  await until(() => isSeen(replica, /master_link_status:up/));
  await until(() => isSeen(primary, /slave\d+:.*state=online/));
}

let isInstalled = false;

function assertInstalled(): void {
  if (isInstalled) return;
  try {
    execFileSync("redis-server", ["--version"], { stdio: "ignore" });
    isInstalled = true;
  } catch (cause) {
    throw new Error(
      "redis-server is not installed: npm test installs it as root or with sudo; else: apt-get install redis-server",
      { cause },
    );
  }
}

/** False: the process ended; who answers at the port is another one. */
async function answers(port: number, child: ChildProcess): Promise<boolean> {
  const client = new Redis(port, HOST, {
    ...{ protocol: 2, retryStrategy: () => 20 },
    ...{ maxRetriesPerRequest: 1, commandTimeout: ANSWER_MS },
  });
  client.on("error", () => {}); // it is not there yet: that is what we wait for
  const isOver = () => child.exitCode !== null || child.signalCode !== null;
  try {
    await until(async () => isOver() || (await client.ping()) === "PONG");
    return !isOver();
  } finally {
    client.disconnect();
  }
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + START_MS;
  for (;;) {
    if (await holds().catch(() => false)) return;
    if (Date.now() > deadline) throw new Error("Redis did not come up in time");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** How often clients, and scripts, ran the command since the server's statistics were reset. */
export async function commandCalls(client: Redis, command: string): Promise<number> {
  return commandCallsIn(await client.info("commandstats"), command);
}

/** The same in what `INFO commandstats` answered. */
export function commandCallsIn(stats: string, command: string): number {
  const found = new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats);
  return Number(found?.[1] ?? 0);
}
