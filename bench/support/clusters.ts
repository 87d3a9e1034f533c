// Starting what the cluster bench measures: a private Redis, groups of our nodes on it, each group
// with a key prefix of its own, and the peer's nodes. All are processes of the workbench, which
// ends them. No state.

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
  /** Several: the primaries of a Redis Cluster. */
  readonly processes: readonly RedisProcess[];
  /** For `redis.url`. */
  readonly url: string;
}

/** Nodes that work together, and what takes processor time for them. */
export interface Nodes {
  readonly name: string;
  readonly servers: readonly Server[];
  /** Undefined: an embedded node, which has none. */
  readonly redis: Redis | undefined;
}

type Build = Extract<Subject, { kind: "broker" }>;

const PEER = fileURLToPath(new URL("./socket-io-server.ts", import.meta.url));

/** Where a Redis listens, and where its file is. */
export interface RedisPlace {
  readonly port: number;
  readonly folder: string;
}

export async function redisPlace({ workbench }: Bench): Promise<RedisPlace> {
  return { port: await freePort(), folder: workbench.folder("redis") };
}

/**
 * A Redis that logs every write (fsync each second), as docs/cluster.md asks for. It may not be
 * ready yet.
 */
export function spawnRedis(
  { workbench }: Bench,
  { port, folder }: RedisPlace,
  more: readonly string[] = [],
): Child {
  const where = ["--port", `${port}`, "--bind", "127.0.0.1"];
  const kept = ["--dir", folder, "--save", ""];
  const logged = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"];
  return workbench.spawn({
    name: "redis-server",
    command: "redis-server",
    args: [...where, ...kept, ...logged, ...more],
  });
}

/** Until the server takes commands. */
export async function redisIsReady(server: Child): Promise<void> {
  await server.line("Ready to accept connections");
}

export async function startRedis(bench: Bench): Promise<Redis> {
  const place = await redisPlace(bench);
  const server = spawnRedis(bench, place);
  await redisIsReady(server);
  const { port } = place;
  return { processes: [{ pid: server.pid, port }], url: urlOf(port) };
}

/** A Redis Cluster: `primaries` share the slots, none has a replica. */
export async function startRedisCluster(bench: Bench, primaries: number): Promise<Redis> {
  const processes = await Promise.all(
    Array.from({ length: primaries }, async () => {
      const place = await redisPlace(bench);
      const busPort = `${await freePort()}`;
      const asOne = ["--cluster-enabled", "yes", "--cluster-port", busPort];
      const server = spawnRedis(bench, place, asOne);
      await redisIsReady(server);
      return { pid: server.pid, port: place.port };
    }),
  );
  const addresses = processes.map(({ port }) => `127.0.0.1:${port}`);
  const joining = bench.workbench.spawn({
    name: "redis-cli",
    command: "redis-cli",
    args: ["--cluster", "create", ...addresses, "--cluster-yes"],
  });
  await joining.output();
  return { processes, url: processes.map(({ port }) => urlOf(port)).join(",") };
}

const urlOf = (port: number): string => `redis://127.0.0.1:${port}`;

/** `count` nodes of a build. */
export async function startNodes(
  { workbench }: Bench,
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
 * The peer's groups of 1, 2, … nodes: the first node is of all of them, the last of the largest
 * only.
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
    const of = new Map(groups.map((count, i) => [count, ports[i] ?? 0]));
    return { child, of };
  });
  const started = await Promise.all(nodes);
  return counts.map((count) => ({
    name: `socket.io × ${count}`,
    redis,
    servers: started.slice(0, count).map(({ child, of }) => {
      const port = of.get(count) ?? 0;
      const stop = () => child.stop();
      return { pid: child.pid, apiPort: port, clientPort: port, stop };
    }),
  }));
}
