// Checks that this build can use the server, and that the data in Redis belongs to this program and
// has a supported format. The first node writes the program's name and the format number under the
// key `format`. A node that cannot read the data must not start.

import { randomBytes } from "node:crypto";
import type { Redis } from "ioredis";
import {
  CLUSTER_DOWN,
  isUnneededPassword,
  REPLICA,
  SLOTS_WITHOUT_SERVER,
  sentenceAbout,
  TOO_FEW_REPLICAS,
  UNNEEDED_PASSWORD,
} from "./causes.ts";
import { passwordOf, type RedisClient, type RedisSettings, send } from "./client.ts";
import { isReply, RedisAway, UnusableRedis } from "./errors.ts";
import type { Keys } from "./keys.ts";
import { SLOTS } from "./slots.ts";

const MIN_MAJOR = 7;
/** Format of the keys and of the frames that nodes publish. */
const FORMAT = 8;

/**
 * Returns warnings about the server's configuration, or an empty list if the server denies INFO.
 * Throws an `UnusableRedis` if this build cannot use the server, and a `RedisAway` if a single
 * server is a replica.
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
  if (info.includes("redis_mode:sentinel"))
    throw new UnusableRedis(
      "redis.url is the address of a Sentinel, but redis.sentinelName is not set. Set it (JINDOU_REDIS_SENTINEL_NAME) to the name under which the Sentinel monitors the primary",
    );
  if (!isCluster) assertPrimary(info);
  return warningsOf(info);
}

/** Returns a warning if redis.url has a password that the server does not require. */
export async function checkPassword(
  server: Redis | undefined,
  settings: Pick<RedisSettings, "url">,
): Promise<readonly string[]> {
  const { username, password } = passwordOf(settings);
  if (server === undefined || password === "") return [];
  const args = username === "" ? [password] : [username, password];
  try {
    await send(server, "auth", args, {});
    return [];
  } catch (error) {
    if (isReply(error) && isUnneededPassword(error.message)) return [UNNEEDED_PASSWORD];
    throw error;
  }
}

/**
 * Throws a `RedisAway` if the server is a replica, because a replica may accept writes and then
 * lose them.
 */
export function assertPrimary(info: string): void {
  if (!/^role:slave\b/m.test(info)) return;
  throw new RedisAway(sentenceAbout(REPLICA));
}

/** Throws a `RedisAway` if CLUSTER INFO shows that the Cluster rejects all calls. */
export function assertClusterUp(info: string): void {
  if (/^cluster_state:fail/m.test(info))
    throw new RedisAway(
      sentenceAbout(CLUSTER_DOWN, `${slotsWithoutServer(info)} of ${SLOTS} slots`),
    );
}

/** Throws a `RedisAway` if CLUSTER INFO shows slots without a server. */
export function assertAllSlots(info: string): void {
  const missing = slotsWithoutServer(info);
  if (missing > 0)
    throw new RedisAway(sentenceAbout(SLOTS_WITHOUT_SERVER, `${missing} of ${SLOTS} slots`));
}

function slotsWithoutServer(info: string): number {
  const count = (name: string) => Number(new RegExp(`^${name}:(\\d+)`, "m").exec(info)?.[1] ?? 0);
  return SLOTS - count("cluster_slots_assigned") + count("cluster_slots_fail");
}

/** Throws a `RedisAway` if INFO shows fewer than `minReplicas` connected replicas. */
export function assertReplicas(info: string, minReplicas: number): void {
  const replicas = info.match(/^slave\d+:.*\bstate=online\b/gm)?.length ?? 0;
  if (replicas < minReplicas)
    throw new RedisAway(
      sentenceAbout(TOO_FEW_REPLICAS, `${replicas} connected, ${minReplicas} required`),
    );
}

/** Returns the error about replicas that are connected but have not confirmed a write. */
export function unconfirmed(confirmed: number, minReplicas: number): RedisAway {
  return new RedisAway(
    sentenceAbout(TOO_FEW_REPLICAS, `${confirmed} confirmed a write, ${minReplicas} required`),
  );
}

/**
 * Returns the mark of the data under `redis.prefix`, which is the value of the key `format`. If
 * there is no mark, writes a new one. The mark therefore changes when Redis is emptied. Throws an
 * `UnusableRedis` if this build cannot use the data.
 */
export async function assertFormat(client: RedisClient, keys: Keys): Promise<string> {
  const key = keys.shared("format");
  const mark = await client
    .get(key)
    // A mark is written only if there is none, because a Redis whose memory is full rejects writes.
    .then((former) => former ?? writeMark(client, key))
    .catch((error: unknown) => {
      if (isReply(error) && error.message.startsWith("WRONGTYPE")) return "";
      throw error;
    });
  const format = /^jindou (\d+)(?: [0-9a-f]+)?$/.exec(mark)?.[1];
  if (format === undefined)
    throw new UnusableRedis(
      `the key ${JSON.stringify(key)} belongs to another program. Set a different redis.prefix`,
    );
  if (Number(format) < FORMAT)
    throw new UnusableRedis(
      `Redis holds data of format ${format}, but this build reads only format ${FORMAT}. Stop all nodes, and start them on an empty Redis or with a different redis.prefix`,
    );
  if (Number(format) > FORMAT)
    throw new UnusableRedis(
      `Redis holds data of format ${format}, but this build reads only format ${FORMAT}. Start the newer build that wrote it`,
    );
  return mark;
}

/** Writes a new mark unless another node has written one. Returns the mark in Redis. */
async function writeMark(client: RedisClient, key: string): Promise<string> {
  const mark = `jindou ${FORMAT} ${randomBytes(8).toString("hex")}`;
  return (await client.set(key, mark, "NX", "GET")) ?? mark;
}

function warningsOf(info: string): readonly string[] {
  const policy = /maxmemory_policy:([\w-]+)/.exec(info)?.[1] ?? "noeviction";
  if (policy === "noeviction") return [];
  return [
    `the maxmemory-policy of Redis is ${policy}, so it evicts acknowledged data when its memory is full. Set maxmemory-policy to noeviction`,
  ];
}
