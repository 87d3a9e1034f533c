// The Redis driver for the Store contract's suites, as a node has it: with the cluster's topics,
// which give the listener what is published under the topics that the suites look at. Each place
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
import { redisSettings } from "../../support/redis.ts";

const GROUPS = ["g", "g1", "g2", "g3", "h", "late", "other", "gone"];
const USERS = [...LISTENED_USERS, "a", "b", "dave"];
const TOPICS: readonly Topic[] = [...GROUPS.map(groupTopic), ...new Set(USERS.map(userTopic))];

/** A driver on the server or Cluster at `url`. */
export function redisDriver(name: string, url: string): StoreDriver {
  return {
    name,
    supportsClock: true,
    async createLocation() {
      const prefix = `t${randomUUID().slice(0, 8)}`;
      const timeoutMs = 60_000; // that the machine is busy is no fault here
      const settings = redisSettings(url, { prefix, timeoutMs });
      return { create: (options) => createNode(settings, options) };
    },
  };
}

/** A node's store, which starts and ends with all it needs. */
function createNode(
  settings: RedisSettings,
  { publisher, clock, maxChannelMessages, retentionS }: StoreOptions,
): TestedStore {
  const onError = (error: unknown, what: string) => {
    if (what === "A received event could not be handled") return; // a listener that throws is one of the suites' cases
    if (isTransient(error) && what.startsWith("Missed messages")) return; // the node closes while it reads
    throw error;
  };
  const link = new RedisLink(settings, {
    ...{ name: "contract", onError },
  });
  const store = createRedisStore({
    ...{ link, clock, onError },
    limits: {
      ...{ dedupeWindowS: 86_400, retentionS, sweepIntervalMs: 1_000_000 },
      ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800 },
      maxChannelMessages,
    },
  });
  const topics = createRedisTopics({
    ...{ link, clock, onError, feed: store, nodeId: "n", lingerMs: 1000 },
  });
  topics.onEvent((event) => publisher.publish(event), {
    ...NO_RESYNC,
    judgeGroup: async (channelId) =>
      publisher.publish({ kind: "removal", channelId, uids: undefined }),
  });
  /**
   * The suites compare what was published with what was answered: this node answers when its
   * listener has what was published before.
   */
  const told =
    <A extends unknown[], R>(call: (...asked: A) => R | Promise<R>) =>
    async (...asked: A): Promise<R> => {
      try {
        return await call(...asked);
      } finally {
        await topics.barrier().catch(() => {}); // it is closing
      }
    };
  return {
    ...store,
    append: told(store.append),
    streamEvent: told(store.streamEvent),
    cancelStream: told(store.cancelStream),
    interruptStreams: told(store.interruptStreams),
    appendCommand: told(store.appendCommand),
    headSeq: told(store.headSeq),
    readMessages: told(store.readMessages),
    stream: told(store.stream),
    readInbox: told(store.readInbox),
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
