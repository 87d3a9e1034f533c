// What brokers in the process of a test run on: JINDOU_TEST_DRIVER = `embedded` (default), `redis`
// (one node on a Redis) or `three` (three nodes on one Redis, sessions and calls spread over them).
// State: the Redis of this process, started when first asked for.

import { crc32 } from "../../src/lib/crc32.ts";
import type { Settings } from "./broker.ts";
import type { RedisServer } from "./redis.ts";

export type Driver = "embedded" | "redis" | "three";

export const DRIVER = readDriver();

/** What is about one node: with these set it is asked alone. */
const ABOUT_ONE_NODE = [
  "JINDOU_API_LISTEN",
  "JINDOU_DRAIN_TIMEOUT_MS",
  "JINDOU_CLIENT_MAX_CONNECTIONS",
  "JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER",
  "JINDOU_API_MAX_FOLLOWERS",
];

/** How many nodes make the broker with these settings. */
export function nodeCount(settings: Settings): number {
  const isAboutOne = ABOUT_ONE_NODE.some((name) => name in settings);
  return DRIVER === "three" && !isAboutOne ? 3 : 1;
}

let redis: Promise<RedisServer> | undefined;

/** The Redis of this process; goes with it. */
export function sharedRedis(): Promise<RedisServer> {
  redis ??= (async () => {
    const [{ default: root }, { startRedis }] = await Promise.all([
      import("tap"),
      import("./redis.ts"),
    ]);
    return startRedis(root);
  })();
  return redis;
}

/** The prefix of the keys of brokers with that folder. */
export function redisPrefixOf(dataPath: string): string {
  return `t${crc32(Buffer.from(dataPath)).toString(36)}`;
}

/** What the driver adds to the settings of a broker: one folder, one set of keys. */
export async function driverSettings(dataPath: string): Promise<Settings> {
  if (DRIVER === "embedded") return {};
  const { url } = await sharedRedis();
  return {
    JINDOU_REDIS_URL: url,
    JINDOU_REDIS_PREFIX: redisPrefixOf(dataPath),
    JINDOU_CLUSTER_DEAD_AFTER_MS: "20000", // that the machine is busy is no fault here: a node that was still for longer delivers channels as they are judged
  };
}

function readDriver(): Driver {
  const name = process.env.JINDOU_TEST_DRIVER ?? "embedded";
  if (name === "embedded" || name === "redis" || name === "three") return name;
  throw new Error(`JINDOU_TEST_DRIVER is ${name}`);
}
