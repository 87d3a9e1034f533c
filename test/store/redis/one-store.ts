// A store on a real Redis, without the topics of a node, for tests of the store alone. Closed at
// the end of the test.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import type { RedisStoreLimits } from "../../../src/store/redis/ports.ts";
import { createRedisStore, type RedisStore } from "../../../src/store/redis/store.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { redisSettings } from "../../support/redis.ts";

/** Timeout of a call. A busy machine needs seconds for thousands of messages sent at once. */
const TIMEOUT_MS = 10_000;

/** An open store and the parts of its node that tests use. */
export interface StoreNode {
  readonly store: RedisStore;
  readonly link: RedisLink;
  readonly time: { nowMs: number };
  readonly problems: unknown[];
}

export interface StoreNodeOptions {
  readonly limits?: Partial<RedisStoreLimits>;
  readonly settings?: Partial<RedisSettings>;
}

/** Opens a store. It has a prefix of its own unless `settings` contain one. */
export async function openStore(
  t: Pick<Test, "teardown">,
  url: string,
  options: StoreNodeOptions = {},
): Promise<StoreNode> {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const problems: unknown[] = [];
  const onError = (error: unknown) => problems.push(error);
  const settings = { prefix, timeoutMs: TIMEOUT_MS, ...options.settings };
  const link = new RedisLink(redisSettings(url, settings), {
    name: "test",
    onError,
    onWarning: (warning) => problems.push(warning),
  });
  const time = { nowMs: Date.UTC(2040, 0, 1) };
  const store = createRedisStore({
    judgesBans: true,
    ...{ link, onError, clock: () => time.nowMs },
    limits: {
      ...{ dedupeWindowS: 3600, retentionS: 0, sweepIntervalMs: 1_000_000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 1_000_000, maxInbox: 100, inboxTtlS: 3600, logs: LOG_LIMITS },
      ...options.limits,
    },
  });
  t.teardown(async () => {
    await store.close();
    await link.close();
  });
  await store.start();
  return { store, link, time, problems };
}
