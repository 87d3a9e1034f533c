// Helpers of the migration tests: migrations with default settings, and Redis stores that read the
// migrated data.

import type { Test } from "tap";
import { Migration, type MoveEvents } from "../../src/migrate/migration.ts";
import type { RedisSettings } from "../../src/redis/client.ts";
import { RedisLink } from "../../src/redis/link.ts";
import { createRedisStore, type RedisStore } from "../../src/store/redis/store.ts";
import { LOG_LIMITS } from "../support/log-limits.ts";

/** Limits of the Redis stores. */
export const LIMITS = {
  ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1_000_000 },
  maxChannelMessages: 0,
  ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800, logs: LOG_LIMITS },
};

/** Settings and callbacks of a migration. Only the folder and Redis are required. */
export interface MoverSettings extends Partial<Omit<MoveEvents, "onError">> {
  readonly from: string;
  readonly redis: RedisSettings;
  readonly clock?: () => number;
  readonly abandonedAfterMs?: number;
  /** Time without a heartbeat after which a node is considered dead. */
  readonly deadAfterMs?: number;
}

/** Settings of the embedded stores. */
export const FOLDER = {
  ...{ ...LIMITS, checkpointMs: 1_000_000, maxMemtableBytes: 67_108_864 },
  maxActiveStreamBytes: 268_435_456,
};

/** Creates a migration. If `from` is empty, the migration only waits for another process. */
export function mover(settings: MoverSettings): Migration {
  const { from, redis, clock, abandonedAfterMs = 5000, deadAfterMs = 300, ...events } = settings;
  return new Migration(
    {
      ...{ from, redis, abandonedAfterMs, deadAfterMs, store: FOLDER },
    },
    {
      ...{ onProgress() {}, onFailure() {}, onError() {}, onNotice() {}, onWaiting() {} },
      onOutage() {},
      ...{ onCompared() {}, onLost() {}, ...events },
    },
    clock,
  );
}

/** Starts a store without a cluster. The store is closed when the test ends. */
export async function redisStore(
  t: Pick<Test, "teardown">,
  redis: RedisSettings,
  clock: () => number,
): Promise<RedisStore> {
  const onError = (error: unknown) => {
    throw error; // fails the test
  };
  const link = new RedisLink(redis, {
    ...{ name: "look", onError },
  });
  const store = createRedisStore({
    ...{ link, clock, onError, limits: LIMITS, judgesBans: true },
  });
  await store.start();
  t.teardown(async () => {
    await store.close();
    await link.close();
  });
  return store;
}
