// A private Redis with replicas and a Sentinel that fails it over, for tests: real processes on
// free ports, ended with the test. State: none beyond them.

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "ioredis";
import type { Test } from "tap";
import { tieToParent } from "./child.ts";
import { freePort, type RedisServer, startRedis } from "./redis.ts";

const HOST = "127.0.0.1";
const START_MS = 120_000;

export interface SentinelServers {
  /** Of the Sentinel, for `redis.url`. */
  readonly url: string;
  /** What the Sentinel calls the primary, for `redis.sentinelName`. */
  readonly name: string;
  /** Of the Sentinel itself. */
  readonly password: string;
  readonly primary: RedisServer;
  readonly replicas: readonly RedisServer[];
}

/** The certificate and key of a server. */
export interface TlsFiles {
  readonly cert: string;
  readonly key: string;
}

interface SentinelOptions extends Pick<SentinelServers, "name" | "password"> {
  /** Of the primary. */
  readonly port: number;
  readonly replicas: number;
  readonly tls?: TlsFiles;
}

/**
 * A primary and `replicas` of it under one Sentinel: several may take long to agree on who acts.
 */
export async function startSentinels(
  t: Pick<Test, "teardown">,
  replicas: number,
): Promise<SentinelServers> {
  const durable = ["--appendonly", "yes", "--repl-diskless-sync-delay", "0"];
  const primary = await startRedis(t, durable);
  const follow = ["--replicaof", HOST, `${primary.port}`, ...durable];
  const followers = await Promise.all(
    Array.from({ length: replicas }, () => startRedis(t, follow)),
  );
  const admin = primary.client();
  // A replica is "online" before it has loaded: a Sentinel that chose it then would lose what the
  // others have.
  await until("replicas follow", async () => {
    await admin.multi().set("follow", "").del("follow").exec();
    return (await admin.wait(replicas, 1000)) === replicas;
  });
  admin.disconnect(); // its server goes away
  const watched = { name: "chat", password: "sentinels-only" };
  const port = await startSentinel(t, {
    ...{ ...watched, port: primary.port, replicas },
  });
  const url = `redis://${HOST}:${port}`;
  return { ...watched, url, primary, replicas: followers };
}

/** One Sentinel; its port. With `tls` it and the primary's port speak nothing else. */
export async function startSentinel(
  t: Pick<Test, "teardown">,
  watching: SentinelOptions,
): Promise<number> {
  const { name, password, tls } = watching;
  const folder = mkdtempSync(join(tmpdir(), "jindou-sentinel-"));
  const port = await freePort();
  const file = join(folder, "sentinel.conf");
  const lines = [
    ...(tls === undefined ? [`port ${port}`] : tlsLines(port, tls)),
    ...[`bind ${HOST}`, `dir ${folder}`, "logfile sentinel.log"],
    ...[`requirepass ${password}`, `sentinel sentinel-pass ${password}`],
    `sentinel monitor ${name} ${HOST} ${watching.port} 1`,
    `sentinel down-after-milliseconds ${name} 500`,
    `sentinel failover-timeout ${name} 3000`,
  ];
  writeFileSync(file, `${lines.join("\n")}\n`);
  const child = spawn(...tieToParent("redis-server", [file, "--sentinel"]), {
    stdio: "ignore",
  });
  t.teardown(() => end(child, folder));
  await knowsReplicas(port, watching);
  return port;
}

function tlsLines(port: number, { cert, key }: TlsFiles): readonly string[] {
  return [
    ...["port 0", `tls-port ${port}`, "tls-replication yes"],
    ...[`tls-cert-file ${cert}`, `tls-key-file ${key}`],
    ...[`tls-ca-cert-file ${cert}`, "tls-auth-clients no"],
  ];
}

async function knowsReplicas(
  port: number,
  { name, password, replicas, tls }: SentinelOptions,
): Promise<void> {
  const sentinel = new Redis(port, HOST, {
    ...{ password, protocol: 2, retryStrategy: () => 20 },
    maxRetriesPerRequest: null,
    ...(tls === undefined ? {} : { tls: { ca: readFileSync(tls.cert) } }),
  });
  sentinel.on("error", () => {}); // it is not there yet: that is what we wait for
  try {
    await until("the Sentinel knows the replicas", async () => {
      const known = await sentinel.call("SENTINEL", "REPLICAS", name);
      return Array.isArray(known) && known.length === replicas;
    });
  } finally {
    sentinel.disconnect();
  }
}

async function end(child: ChildProcess, folder: string): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) {
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  }
  rmSync(folder, { recursive: true, force: true });
}

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + START_MS;
  while (!(await holds().catch(() => false))) {
    if (Date.now() > deadline) throw new Error(`${what}: not in time`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
