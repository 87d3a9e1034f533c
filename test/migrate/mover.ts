// Moves from folders to private Redis servers, and Redis stores to look at what came of them.

import type { Test } from "tap";
import { Migration, type MoveEvents } from "../../src/migrate/migration.ts";
import type { RedisSettings } from "../../src/redis/client.ts";
import { RedisLink } from "../../src/redis/link.ts";
import { createRedisStore, type RedisStore } from "../../src/store/redis/store.ts";

export const LIMITS = {
  ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1_000_000 },
  maxChannelMessages: 0,
  ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800 },
};

export interface MoverSettings extends Partial<Omit<MoveEvents, "onError">> {
  readonly from: string;
  readonly redis: RedisSettings;
  readonly clock?: () => number;
  readonly abandonedAfterMs?: number;
  /** Without a sign for so long nodes are dead to it. */
  readonly deadAfterMs?: number;
}

/** How folders are read. */
export const FOLDER = {
  ...{ ...LIMITS, checkpointMs: 1_000_000, maxMemtableBytes: 67_108_864 },
  maxActiveStreamBytes: 268_435_456,
};

export function mover(parts: MoverSettings): Migration {
  const { from, redis, ...others } = parts;
  const { abandonedAfterMs = 5000, deadAfterMs = 300, ...more } = others;
  const { clock, ...over } = more;
  return new Migration(
    {
      ...{ from, redis, abandonedAfterMs, deadAfterMs, store: FOLDER },
    },
    {
      ...{ onProgress() {}, onFailure() {}, onError() {}, onWaiting() {} },
      ...{ onCompared() {}, onLost() {}, ...over },
    },
    clock,
  );
}

/** A started store of a node that listens to nothing; ended with the test. */
export async function redisStore(
  t: Pick<Test, "teardown">,
  redis: RedisSettings,
  clock: () => number,
): Promise<RedisStore> {
  const onError = (error: unknown) => {
    throw error; // there is none
  };
  const link = new RedisLink(redis, {
    ...{ name: "look", onError },
  });
  const store = createRedisStore({
    ...{ link, clock, onError, limits: LIMITS },
  });
  await store.start();
  t.teardown(async () => {
    await store.close();
    await link.close();
  });
  return store;
}
