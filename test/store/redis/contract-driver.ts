// The Redis driver for the suites of the Store contract, as a node uses it: with the cluster's
// topics. The listener receives the publications on the topics that the suites check. Each location
// has keys of its own on one server or Cluster.

import { randomUUID } from "node:crypto";
import { isTransient } from "../../../src/broker/errors.ts";
import { groupTopic, type Topic, userTopic } from "../../../src/broker/model.ts";
import { createRedisTopics } from "../../../src/cluster/redis/topics/topics.ts";
import { NO_RESYNC } from "../../../src/cluster/redis/topics/topics-ports.ts";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { createRedisStore } from "../../../src/store/redis/store.ts";
import type { StoreDriver, StoreOptions, TestedStore } from "../../contract/store-fixture.ts";
import { LISTENED_USERS } from "../../contract/store-inbox.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { redisSettings } from "../../support/redis.ts";

const GROUPS = ["g", "g1", "g2", "g3", "h", "late", "other", "gone"];
const USERS = [...LISTENED_USERS, "a", "b", "dave"];
const TOPICS: readonly Topic[] = [...GROUPS.map(groupTopic), ...new Set(USERS.map(userTopic))];

/** Creates a driver on the server or Cluster at `url`. */
export function redisDriver(name: string, url: string): StoreDriver {
  return {
    name,
    supportsClock: true,
    async createLocation() {
      const prefix = `t${randomUUID().slice(0, 8)}`;
      const timeoutMs = 60_000; // a busy machine must not fail the suites
      const settings = redisSettings(url, { prefix, timeoutMs });
      return { create: (options) => createNode(settings, options) };
    },
  };
}

/** Creates a node's store, which starts and closes everything that it needs. */
function createNode(
  settings: RedisSettings,
  { publisher, clock, maxChannelMessages, retentionS }: StoreOptions,
): TestedStore {
  const onError = (error: unknown, what: string) => {
    // The suites include a listener that throws.
    if (what === "Could not handle a received event") return;
    // The node may close while it reads.
    if (isTransient(error) && what.startsWith("Could not read missed messages")) return;
    throw error;
  };
  const link = new RedisLink(settings, {
    ...{ name: "contract", onError },
  });
  const store = createRedisStore({
    ...{ link, clock, onError },
    limits: {
      ...{ dedupeWindowS: 86_400, retentionS, sweepIntervalMs: 1_000_000 },
      ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800, logs: LOG_LIMITS },
      maxChannelMessages,
    },
  });
  const topics = createRedisTopics({
    ...{ link, clock, onError, feed: store, nodeId: "n", unsubscribeDelayMs: 1000 },
  });
  // The embedded store has no counterpart of `head`.
  topics.onEvent((event) => event.kind !== "head" && publisher.publish(event), {
    ...NO_RESYNC,
    judgeGroup: async (channelId) =>
      publisher.publish({ kind: "removal", channelId, uids: undefined }),
  });
  /**
   * Makes a call return only after the listener has received everything published before, because
   * the suites compare the published events with the results of the calls.
   */
  const afterDelivery =
    <A extends unknown[], R>(call: (...args: A) => R | Promise<R>) =>
    async (...args: A): Promise<R> => {
      try {
        return await call(...args);
      } finally {
        await topics.barrier().catch(() => {}); // fails while the node closes
      }
    };
  return {
    ...store,
    append: afterDelivery(store.append),
    streamEvent: afterDelivery(store.streamEvent),
    cancelStream: afterDelivery(store.cancelStream),
    interruptStreams: afterDelivery(store.interruptStreams),
    appendCommand: afterDelivery(store.appendCommand),
    headSeq: afterDelivery(store.headSeq),
    readMessages: afterDelivery(store.readMessages),
    stream: afterDelivery(store.stream),
    readInbox: afterDelivery(store.readInbox),
    async listen(names) {
      await Promise.all(names.map((name) => topics.listen(name)));
    },
    async start() {
      await store.start();
      await topics.start();
      await Promise.all(TOPICS.map((topic) => topics.listen(topic)));
    },
    async close() {
      await store.close();
      await topics.close();
      await link.close();
    },
  };
}
