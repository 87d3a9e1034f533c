// Simplified topics for tests of the registry and the session directory: unordered events over
// sharded publish/subscribe, without sequencers and without catch-up. Owns the subscriber
// connection and the list of published events.

import type { Redis } from "ioredis";
import type { Test } from "tap";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import type { ClusterTopics } from "../../../src/cluster/redis/cluster.ts";
import { NO_RESYNC } from "../../../src/cluster/redis/topics/topics-ports.ts";
import type { RedisLink } from "../../../src/redis/link.ts";
import { unorderedFrame } from "../../../src/redis/wire.ts";
import { decodePublished } from "../../store/redis/published.ts";

export interface PlainTopics extends ClusterTopics {
  readonly published: readonly ClusterEvent[];
  /**
   * Checks these users, as the node does after it lost the connection that carried their topics.
   */
  resubscribed(uids: readonly string[]): void;
  /** Returns the node's `silentSinceMs`, which real topics read before they deliver events. */
  silentSinceMs(): number | undefined;
  /** Provides the result of `recovery`. */
  onRecovery: () => Promise<void> | undefined;
}

const RETRY_MS = 20;

/** Creates the topics. `subscriber` must be a separate connection to the same server. */
export function plainTopics(
  t: Pick<Test, "teardown">,
  { link, subscriber }: { readonly link: RedisLink; readonly subscriber: Redis },
): PlainTopics {
  const published: ClusterEvent[] = [];
  let deliver: (event: ClusterEvent) => void = () => {};
  let resync = NO_RESYNC;
  subscriber.on("smessageBuffer", (_: Buffer, frame: Buffer) => {
    for (const publication of decodePublished(frame))
      if (publication.kind === "unordered") deliver(publication.event);
  });
  t.teardown(() => subscriber.disconnect());
  const topics: PlainTopics = {
    published,
    publish(event) {
      published.push(event);
      if (!("uid" in event)) return;
      const frame = unorderedFrame("x", event);
      const topic = event.kind === "presence" ? "p:" : "u:";
      link.call("spublish", link.keys.topic(topic + event.uid), frame).catch(() => undefined); // the server may be down
    },
    announce: async (events) => {
      for (const event of events) topics.publish(event);
    },
    onEvent: (listener, newResync) => {
      deliver = listener;
      resync = newResync;
    },
    listen: async (...names) => {
      for (const topic of names) await subscriber.ssubscribe(link.keys.topic(topic));
    },
    subscribe: (...names) => topics.listen(...names).then(() => true),
    unlisten() {},
    barrier: async () => {
      await subscriber.ping();
    },
    silentSinceMs: () => resync.silentSinceMs(),
    recovery: () => topics.onRecovery(),
    onRecovery: () => undefined,
    delivered: () => undefined,
    start: async () => {},
    close: async () => {},
    ping: async () => {},
    resubscribed(uids) {
      resync
        .judgeUsers(uids)
        .catch(() => uids)
        .then((uncheckedUids) => {
          if (uncheckedUids.length > 0)
            setTimeout(() => topics.resubscribed(uncheckedUids), RETRY_MS);
        });
    },
  };
  return topics;
}
