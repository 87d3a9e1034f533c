// Starts the processes of the cluster bench: Redis, sets of our nodes on this Redis (each set has
// its own key prefix), and the peer's nodes. The workbench stops all of these processes.

import { fileURLToPath } from "node:url";
import { freePort } from "../../test/support/redis.ts";
import type { Bench, Subject } from "./benchmark.ts";
import { type Server, startBroker } from "./servers.ts";
import type { Child } from "./workbench.ts";

export interface RedisProcess {
  readonly pid: number;
  readonly port: number;
}

export interface Redis {
  /** One server, or the primaries of a Redis Cluster. */
  readonly processes: readonly RedisProcess[];
  /** Addresses for `redis.url`. */
  readonly url: string;
}

/** Nodes of one cluster, and the Redis they use. */
export interface Nodes {
  readonly name: string;
  readonly servers: readonly Server[];
  /** `undefined` for an embedded node. */
  readonly redis: Redis | undefined;
}

type Workplace = Pick<Bench, "workbench">;
type Build = Extract<Subject, { kind: "broker" }>;

const PEER = fileURLToPath(new URL("./socket-io-server.ts", import.meta.url));

/** Port and data folder of a Redis server. */
export interface RedisLocation {
  readonly port: number;
  readonly folder: string;
}

export async function chooseRedisLocation({ workbench }: Workplace): Promise<RedisLocation> {
  return { port: await freePort(), folder: workbench.folder("redis") };
}

/**
 * Starts a Redis server with an AOF that is flushed every second, as docs/cluster.md recommends.
 * Does not wait until it is ready.
 */
export function spawnRedis(
  { workbench }: Workplace,
  { port, folder }: RedisLocation,
  extraArgs: readonly string[] = [],
): Child {
  const listenArgs = ["--port", `${port}`, "--bind", "127.0.0.1"];
  const storageArgs = ["--dir", folder, "--save", ""];
  const aofArgs = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"];
  return workbench.spawn({
    name: "redis-server",
    command: "redis-server",
    args: [...listenArgs, ...storageArgs, ...aofArgs, ...extraArgs],
  });
}

/** Waits until the server accepts commands. */
export async function waitForRedis(server: Child): Promise<void> {
  await server.line("Ready to accept connections");
}

export async function startRedis(bench: Workplace): Promise<Redis> {
  const location = await chooseRedisLocation(bench);
  const server = spawnRedis(bench, location);
  await waitForRedis(server);
  const { port } = location;
  return { processes: [{ pid: server.pid, port }], url: urlOf(port) };
}

/** Starts a Redis Cluster with this number of primaries and no replicas. */
export async function startRedisCluster(bench: Bench, primaries: number): Promise<Redis> {
  const processes = await Promise.all(
    Array.from({ length: primaries }, async () => {
      const location = await chooseRedisLocation(bench);
      const busPort = `${await freePort()}`;
      const clusterArgs = ["--cluster-enabled", "yes", "--cluster-port", busPort];
      const server = spawnRedis(bench, location, clusterArgs);
      await waitForRedis(server);
      return { pid: server.pid, port: location.port };
    }),
  );
  const addresses = processes.map(({ port }) => `127.0.0.1:${port}`);
  const redisCli = bench.workbench.spawn({
    name: "redis-cli",
    command: "redis-cli",
    args: ["--cluster", "create", ...addresses, "--cluster-yes"],
  });
  await redisCli.output();
  return { processes, url: processes.map(({ port }) => urlOf(port)).join(",") };
}

const urlOf = (port: number): string => `redis://127.0.0.1:${port}`;

/** Starts `count` nodes of a build. */
export async function startNodes(
  { workbench }: Workplace,
  build: Build,
  { name, count, redis }: { readonly name: string; readonly count: number; readonly redis: Redis },
): Promise<Nodes> {
  const prefix = name.replaceAll(/\W/g, "");
  const servers = await Promise.all(
    Array.from({ length: count }, () =>
      startBroker(workbench, build, {
        ...{ url: redis.url, prefix },
        isCluster: redis.processes.length > 1,
      }),
    ),
  );
  return { name, servers, redis };
}

/**
 * Starts the peer's clusters, one for each node count. The clusters share the processes: the first
 * process has a node in every cluster, the last process only in the largest cluster.
 */
export async function startPeers(
  { workbench }: Bench,
  redis: Redis,
  counts: readonly number[],
): Promise<readonly Nodes[]> {
  const nodes = Array.from({ length: Math.max(...counts) }, async (_, at) => {
    const groups = counts.filter((count) => count > at);
    const child = workbench.spawn({
      name: "The Socket.IO server",
      command: process.execPath,
      args: [...process.execArgv, PEER, redis.url, ...groups.map(String)],
    });
    const ports = JSON.parse(await child.line()) as number[];
    const portsByCount = new Map(groups.map((count, i) => [count, ports[i] ?? 0]));
    return { child, of: portsByCount };
  });
  const started = await Promise.all(nodes);
  return counts.map((count) => ({
    name: `socket.io × ${count}`,
    redis,
    servers: started.slice(0, count).map(({ child, of: portsByCount }) => {
      const port = portsByCount.get(count) ?? 0;
      const stop = () => child.stop();
      return { pid: child.pid, apiPort: port, clientPort: port, stop };
    }),
  }));
}
