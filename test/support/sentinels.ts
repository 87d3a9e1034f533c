// Starts a Redis primary with replicas, and a Sentinel that fails over the primary. They are real
// processes on free ports, stopped at the end of the test.

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
  /** Address of the Sentinel, for `redis.url`. */
  readonly url: string;
  /** Name under which the Sentinel monitors the primary, for `redis.sentinelName`. */
  readonly name: string;
  /** Password of the Sentinel, for `redis.sentinelPassword`. */
  readonly password: string;
  readonly primary: RedisServer;
  readonly replicas: readonly RedisServer[];
}

/** Paths of a server's certificate and private key. */
export interface TlsFiles {
  readonly cert: string;
  readonly key: string;
}

interface SentinelOptions extends Pick<SentinelServers, "name" | "password"> {
  /** Port of the primary. */
  readonly port: number;
  /** Number of replicas that the Sentinel must find before it is ready. */
  readonly replicas: number;
  readonly tls?: TlsFiles;
}

/**
 * Starts a primary with the given number of replicas and one Sentinel. One Sentinel is enough here,
 * and several Sentinels can need a long time to elect a leader.
 */
export async function startSentinels(
  t: Pick<Test, "teardown">,
  replicas: number,
): Promise<SentinelServers> {
  const durableArgs = ["--appendonly", "yes", "--repl-diskless-sync-delay", "0"];
  const primary = await startRedis(t, durableArgs);
  const followArgs = ["--replicaof", HOST, `${primary.port}`, ...durableArgs];
  const followers = await Promise.all(
    Array.from({ length: replicas }, () => startRedis(t, followArgs)),
  );
  const admin = primary.client();
  // A replica counts as online before it has loaded the data. A Sentinel that promoted it then
  // would lose writes, so wait until every replica has confirmed a write.
  await until("the replicas did not confirm a write", async () => {
    await admin.multi().set("follow", "").del("follow").exec();
    return (await admin.wait(replicas, 1000)) === replicas;
  });
  admin.disconnect(); // no errors when a test kills the server later
  const primaryOptions = { name: "chat", password: "sentinels-only" };
  const port = await startSentinel(t, {
    ...{ ...primaryOptions, port: primary.port, replicas },
  });
  const url = `redis://${HOST}:${port}`;
  return { ...primaryOptions, url, primary, replicas: followers };
}

/**
 * Starts one Sentinel and returns its port. With `tls`, the Sentinel accepts only TLS and expects
 * TLS at the primary's port.
 */
export async function startSentinel(
  t: Pick<Test, "teardown">,
  options: SentinelOptions,
): Promise<number> {
  const { name, password, tls } = options;
  const folder = mkdtempSync(join(tmpdir(), "jindou-sentinel-"));
  const port = await freePort();
  const file = join(folder, "sentinel.conf");
  const lines = [
    ...(tls === undefined ? [`port ${port}`] : tlsLines(port, tls)),
    ...[`bind ${HOST}`, `dir ${folder}`, "logfile sentinel.log"],
    ...[`requirepass ${password}`, `sentinel sentinel-pass ${password}`],
    `sentinel monitor ${name} ${HOST} ${options.port} 1`,
    `sentinel down-after-milliseconds ${name} 500`,
    `sentinel failover-timeout ${name} 3000`,
  ];
  writeFileSync(file, `${lines.join("\n")}\n`);
  const child = spawn(...tieToParent("redis-server", [file, "--sentinel"]), {
    stdio: "ignore",
  });
  t.teardown(() => end(child, folder));
  await waitForReplicas(port, options);
  return port;
}

function tlsLines(port: number, { cert, key }: TlsFiles): readonly string[] {
  return [
    ...["port 0", `tls-port ${port}`, "tls-replication yes"],
    ...[`tls-cert-file ${cert}`, `tls-key-file ${key}`],
    ...[`tls-ca-cert-file ${cert}`, "tls-auth-clients no"],
  ];
}

async function waitForReplicas(
  port: number,
  { name, password, replicas, tls }: SentinelOptions,
): Promise<void> {
  const sentinel = new Redis(port, HOST, {
    ...{ password, protocol: 2, retryStrategy: () => 20 },
    maxRetriesPerRequest: null,
    ...(tls === undefined ? {} : { tls: { ca: readFileSync(tls.cert) } }),
  });
  sentinel.on("error", () => {}); // connections are refused until the Sentinel listens
  try {
    await until("the Sentinel did not find the replicas", async () => {
      const replicaList = await sentinel.call("SENTINEL", "REPLICAS", name);
      return Array.isArray(replicaList) && replicaList.length === replicas;
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

async function until(failure: string, condition: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + START_MS;
  while (!(await condition().catch(() => false))) {
    if (Date.now() > deadline) throw new Error(`${failure} within ${START_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
