// Stores of logs on a real Redis for tests: with the topics of a node, so that the published events
// of logs arrive. Each store has keys of its own, unless several open the same prefix.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import { BUCKETS, logTopic } from "../../../src/broker/log-frame.ts";
import type { LogEvent, LogLimits } from "../../../src/broker/log-ports.ts";
import { createRedisTopics } from "../../../src/cluster/redis/topics/topics.ts";
import { NO_RESYNC } from "../../../src/cluster/redis/topics/topics-ports.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { createRedisStore, type RedisStore } from "../../../src/store/redis/store.ts";
import type { LogDriver } from "../../contract/log-fixture.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { redisSettings } from "../../support/redis.ts";

const HOUR_S = 3600;

export interface LogNode {
  readonly store: RedisStore;
  readonly link: RedisLink;
  readonly events: LogEvent[];
  readonly time: { nowMs: number };
  /** Waits until everything published before the call has arrived. */
  untilPublished(): Promise<void>;
  close(): Promise<void>;
}

interface LogNodeOptions {
  readonly prefix?: string;
  readonly limits?: Partial<LogLimits>;
  /** The default is an hour. */
  readonly dedupeWindowS?: number;
  readonly timeoutMs?: number;
  readonly time?: { nowMs: number };
}

export const newPrefix = () => `t${randomUUID().slice(0, 8)}`;

/** Starts a node, which receives the events of all logs. It is closed when the test ends. */
export async function startLogNode(
  t: Pick<Test, "teardown">,
  url: string,
  options: LogNodeOptions = {},
): Promise<LogNode> {
  const { prefix = newPrefix(), limits = {}, timeoutMs = 60_000 } = options;
  const { dedupeWindowS = HOUR_S } = options;
  const time = options.time ?? { nowMs: Date.UTC(2040, 0, 1) };
  const clock = () => time.nowMs;
  const onError = () => {}; // the callers get the errors
  const link = new RedisLink(redisSettings(url, { prefix, timeoutMs }), { name: "test", onError });
  const store = createRedisStore({
    ...{ link, clock, onError },
    limits: {
      ...{ dedupeWindowS, retentionS: 0, sweepIntervalMs: 1_000_000 },
      ...{ maxChannelMessages: 0, maxStreamBytes: 1000, maxInbox: 10, inboxTtlS: HOUR_S },
      logs: { ...LOG_LIMITS, ...limits },
    },
  });
  const topics = createRedisTopics({
    ...{ link, clock, onError, feed: store, nodeId: randomUUID(), unsubscribeDelayMs: 1000 },
  });
  const events: LogEvent[] = [];
  topics.onEvent((event) => {
    if (event.kind === "log") events.push(event);
  }, NO_RESYNC);
  let isClosed = false;
  const close = async () => {
    if (isClosed) return;
    isClosed = true;
    await store.close();
    await topics.close();
    await link.close();
  };
  t.teardown(close);
  await store.start();
  await topics.start();
  await topics.listen(...Array.from({ length: BUCKETS }, (_, bucket) => logTopic(bucket)));
  return { store, link, events, time, untilPublished: () => topics.barrier(), close };
}

/** Returns the keys of logs on all servers, without the prefix. */
export async function logKeys(link: RedisLink): Promise<readonly string[]> {
  const { prefix } = link.keys;
  const keys = await Promise.all(link.primaries().map((server) => server.keys(`${prefix}:*`)));
  return keys
    .flat()
    .map((key) => key.slice(prefix.length))
    .filter((key) => /\}:log[A-Z]/.test(key));
}

/** Creates the driver for the suites of logs on the server or Cluster at `url`. */
export function redisLogDriver(name: string, url: string): LogDriver {
  return {
    name,
    async open(t, limits = {}) {
      const prefix = newPrefix();
      const time = { nowMs: Date.UTC(2040, 0, 1) };
      const options = { prefix, limits, time };
      let node = await startLogNode(t, url, options);
      const events: LogEvent[] = [];
      return {
        get store() {
          return node.store;
        },
        get events() {
          return [...events, ...node.events];
        },
        now: () => time.nowMs,
        advance(ms) {
          time.nowMs += ms;
        },
        async reopen() {
          await node.close();
          events.push(...node.events);
          node = await startLogNode(t, url, options);
        },
        sweep: () => node.store.sweep(),
        leftovers: () => logKeys(node.link),
      };
    },
  };
}
