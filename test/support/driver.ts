// Chooses the store of brokers that run in the test process, from JINDOU_TEST_DRIVER: `embedded`
// (the default), `redis` (one node on Redis) or `three` (three nodes on one Redis, over which the
// sessions and calls are spread). Owns the Redis server of this process, which starts on first use.

import { crc32 } from "../../src/lib/crc32.ts";
import type { Settings } from "./broker.ts";
import type { RedisServer } from "./redis.ts";
import { IS_FULL } from "./volume.ts";

/** How test clients of WKProto connect, from JINDOU_TEST_WKPROTO. Default: `websocket`. */
export const WKPROTO_OVER = process.env.JINDOU_TEST_WKPROTO === "tcp" ? "tcp" : "websocket";

/** Driver of the listeners of all brokers, from JINDOU_TEST_TRANSPORT. Default: `uws`. */
export const TEST_TRANSPORT = readTransport();

export type Driver = "embedded" | "redis" | "three";

export const DRIVER = readDriver();

/**
 * True if tests are run whose result depends only on one process, such as tests of a frame's form.
 * False on three nodes without JINDOU_TEST_VOLUME=full, because these tests also run on one node.
 */
export const TESTS_ONE_PROCESS = DRIVER !== "three" || IS_FULL;

/** Settings that can be tested only on a single node. A broker with one of them has one node. */
const SINGLE_NODE_SETTINGS = [
  "JINDOU_CLIENT_TRUSTED_PROXIES",
  "JINDOU_API_LISTEN",
  "JINDOU_DRAIN_TIMEOUT_MS",
  "JINDOU_CLIENT_MAX_CONNECTIONS",
  "JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER",
  "JINDOU_API_MAX_FOLLOWERS",
  "JINDOU_CLIENT_KEEP_CLOSED",
];

/** Returns the number of nodes of a broker with these settings. */
export function nodeCount(settings: Settings): number {
  const needsSingleNode = SINGLE_NODE_SETTINGS.some((name) => name in settings);
  return DRIVER === "three" && !needsSingleNode ? 3 : 1;
}

let redis: Promise<RedisServer> | undefined;

/** Returns the Redis server shared by the tests of this process. It ends with the process. */
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

/** Returns the prefix of all Redis keys of the broker with this data folder. */
export function redisPrefixOf(dataPath: string): string {
  return `t${crc32(Buffer.from(dataPath)).toString(36)}`;
}

/** Returns the settings that the driver adds. Each data folder has its own prefix of Redis keys. */
export async function driverSettings(dataPath: string): Promise<Settings> {
  if (DRIVER === "embedded") return {};
  const { url } = await sharedRedis();
  return {
    JINDOU_REDIS_URL: url,
    JINDOU_REDIS_PREFIX: redisPrefixOf(dataPath),
    // A node on a busy machine can stall for seconds. With a shorter limit it would fence itself
    // and check memberships again before it delivers, which these tests do not expect.
    JINDOU_CLUSTER_DEAD_AFTER_MS: "20000",
  };
}

function readTransport(): "uws" | "portable" {
  const name = process.env.JINDOU_TEST_TRANSPORT ?? "uws";
  if (name === "uws" || name === "portable") return name;
  throw new Error(`JINDOU_TEST_TRANSPORT is ${name}. Set it to uws or portable.`);
}

function readDriver(): Driver {
  const name = process.env.JINDOU_TEST_DRIVER ?? "embedded";
  if (name === "embedded" || name === "redis" || name === "three") return name;
  throw new Error(`JINDOU_TEST_DRIVER is ${name}. Set it to embedded, redis or three.`);
}
