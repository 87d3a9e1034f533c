// Counts the records that a broker stores for a channel, in the embedded store or in Redis. Tests
// use it to check that storage is freed.

import { join } from "node:path";
import type { Test } from "tap";
import type { ChannelKey } from "../../src/broker/model.ts";
import { Keys } from "../../src/redis/keys.ts";
import { openTables } from "../../src/store/embedded/engine/tables.ts";
import { DRIVER, redisPrefixOf, sharedRedis } from "./driver.ts";

/** Number of stored messages, and of entries in the index of expiry times. */
export interface StoredCounts {
  readonly messages: number;
  readonly expiries: number;
}

/**
 * Returns a function that counts the records of the channel. On the embedded store the function
 * counts the records of all channels, so the test must use no other channel.
 */
export async function countStored(
  t: Test,
  dataPath: string,
  key: ChannelKey,
): Promise<() => Promise<StoredCounts>> {
  if (DRIVER === "embedded") return countInFolder(t, dataPath);
  const client = (await sharedRedis()).client();
  const keys = new Keys(redisPrefixOf(dataPath));
  return async () => ({
    messages: await client.xlen(keys.channel("log", key)),
    expiries: await client.zcard(keys.channel("expiry", key)),
  });
}

function countInFolder(t: Test, dataPath: string): () => Promise<StoredCounts> {
  const tables = openTables(join(dataPath, "lmdb"));
  t.teardown(() => tables.env.close());
  return async () => ({
    messages: tables.log.getCount(),
    expiries: tables.expiry.getCount(),
  });
}
