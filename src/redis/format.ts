// Checks the server, and the program and the format that the data in Redis belongs to. The first
// node writes the program's name and the format number under the key `format`. A node that cannot
// read the data must not start.

import { randomBytes } from "node:crypto";
import type { Redis } from "ioredis";
import type { RedisClient } from "./client.ts";
import { isReply, RedisAway, UnusableRedis } from "./errors.ts";
import type { Keys } from "./keys.ts";

const MIN_MAJOR = 7;
/** Format of the keys and of the frames that nodes publish. */
const FORMAT = 4;

/**
 * Returns warnings for the operator about the configuration of the server, none if the server does
 * not let this node read it. Throws an `UnusableRedis` if this build cannot use the server, and a
 * `RedisAway` if the server is a replica outside a Cluster.
 */
export async function checkServer(
  server: Redis | RedisClient,
  isCluster: boolean,
): Promise<readonly string[]> {
  const info = await server.info().catch((error: unknown) => {
    if (isReply(error)) return undefined; // INFO is denied, which `assertCommands` reports
    throw error;
  });
  if (info === undefined) return [];
  const version = /redis_version:(\d+)[^\r\n]*/.exec(info);
  if (version === null || Number(version[1]) < MIN_MAJOR)
    throw new UnusableRedis(
      `Redis ${MIN_MAJOR} or newer is required, but the server reports ${version?.[0] ?? "no version"}`,
    );
  if (info.includes("redis_mode:cluster") && !isCluster)
    throw new UnusableRedis("Redis is a Cluster. Set redis.cluster (JINDOU_REDIS_CLUSTER) to true");
  if (!isCluster) assertPrimary(info);
  return warningsOf(info);
}

/** A replica may accept writes, but it deletes them when it next synchronizes with its primary. */
export function assertPrimary(info: string): void {
  if (!/^role:slave\b/m.test(info)) return;
  throw new RedisAway(
    "the server is a replica, and a replica deletes what it stores when it synchronizes with its primary. Set redis.url (JINDOU_REDIS_URL) to the primary, or make this server the primary with REPLICAOF NO ONE",
  );
}

/**
 * Marks the prefix as used by Jindou if it has no mark yet. Returns the mark, which is another one
 * after Redis was emptied. Throws an `UnusableRedis` if this build cannot use the data.
 */
export async function assertFormat(client: RedisClient, keys: Keys): Promise<string> {
  const key = keys.shared("format");
  const id = randomBytes(8).toString("hex"); // differs after Redis was emptied
  const newMark = `jindou ${FORMAT} ${id}`;
  const mark = await client.set(key, newMark, "NX", "GET").then(
    (former) => former ?? newMark,
    (error: unknown) => {
      if (isReply(error) && error.message.startsWith("WRONGTYPE")) return "";
      throw error;
    },
  );
  const format = /^jindou (\d+)(?: [0-9a-f]+)?$/.exec(mark)?.[1];
  if (format === undefined)
    throw new UnusableRedis(
      `the key ${JSON.stringify(key)} belongs to another program. Set another redis.prefix`,
    );
  if (Number(format) < FORMAT)
    throw new UnusableRedis(
      `Redis holds data of format ${format}, but this build reads only format ${FORMAT}. Stop all nodes, and start them on an empty Redis or with another redis.prefix`,
    );
  if (Number(format) > FORMAT)
    throw new UnusableRedis(
      `Redis holds data of format ${format}, but this build reads only format ${FORMAT}. Start the newer build`,
    );
  return mark;
}

function warningsOf(info: string): readonly string[] {
  const policy = /maxmemory_policy:([\w-]+)/.exec(info)?.[1] ?? "noeviction";
  if (policy === "noeviction") return [];
  return [
    `The maxmemory-policy of Redis is ${policy}, so it evicts acknowledged data when its memory is full. Set maxmemory-policy to noeviction`,
  ];
}
