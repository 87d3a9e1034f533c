// What a broker's storage holds of a channel, whatever it is kept in: for tests that storage is
// given back.

import { join } from "node:path";
import type { Test } from "tap";
import type { ChannelKey } from "../../src/broker/model.ts";
import { Keys } from "../../src/redis/keys.ts";
import { openTables } from "../../src/store/embedded/engine/tables.ts";
import { DRIVER, redisPrefixOf, sharedRedis } from "./driver.ts";

/** Records of messages, and notes of when they expire. */
export interface StoredCounts {
  readonly messages: number;
  readonly expiries: number;
}

/**
 * Tells what is there now each time it is asked. Of all channels where that is how it is counted:
 * let the channel be the only one.
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
