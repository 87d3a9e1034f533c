// Whose data a Redis holds and of which format. Written once by the first node; a node that cannot
// read it must not start.

import type { Redis } from "ioredis";
import type { RedisClient } from "./client.ts";
import type { Keys } from "./keys.ts";
import { WIRE_VERSION } from "./wire.ts";

const MIN_MAJOR = 7;
/** Format 1 had no batches of frames, and was never published. */
const OLDEST_FORMAT = 2;

/** A server or data that this build cannot use: no retry helps. */
export class UnusableRedis extends Error {}

/**
 * Marks an unmarked server's prefix as ours; `server`: one that is connected. Answers sentences of
 * warning, and throws an Error with one, for the operator.
 */
export async function assertCompatible(
  client: RedisClient,
  keys: Keys,
  server: Redis | undefined,
): Promise<readonly string[]> {
  const info = await (server ?? client).info();
  const version = /redis_version:(\d+)[^\r\n]*/.exec(info);
  if (version === null || Number(version[1]) < MIN_MAJOR)
    throw new UnusableRedis(
      `Redis ${MIN_MAJOR} or newer is needed; the server says ${version?.[0] ?? "nothing of its version"}`,
    );
  const key = keys.shared("format");
  const ours = `jindou ${WIRE_VERSION}`;
  await client.set(key, ours, "NX");
  const isText = (await client.type(key)) === "string";
  const found = isText ? await client.get(key) : null;
  const format = /^jindou (\d+)$/.exec(found ?? "")?.[1];
  if (format === undefined)
    throw new UnusableRedis(
      `Redis holds ${JSON.stringify(key)} of another program; choose another redis.prefix`,
    );
  if (Number(format) < OLDEST_FORMAT)
    throw new UnusableRedis(
      `Redis holds data of format ${format}; this build reads none before ${OLDEST_FORMAT}. Stop all nodes and start them on an empty Redis or with another redis.prefix`,
    );
  if (Number(format) > WIRE_VERSION)
    throw new UnusableRedis(
      `Redis holds data of format ${format}; this build reads up to ${WIRE_VERSION}. Start the newer build`,
    );
  return warningsOf(info);
}

/**
 * What ends by itself (who logged in, inboxes, what retries are answered) counts as evictable with
 * any policy but one.
 */
function warningsOf(info: string): readonly string[] {
  const policy = /maxmemory_policy:([\w-]+)/.exec(info)?.[1] ?? "noeviction";
  if (policy === "noeviction") return [];
  return [
    `Redis' maxmemory-policy is ${policy}: when its memory is full it removes what was acknowledged. Set it to noeviction`,
  ];
}
