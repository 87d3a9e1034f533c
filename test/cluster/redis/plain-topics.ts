// Topics as plain as they can be, for tests of what stands beside them: loose events over sharded
// publish/subscribe, no lines, no repair. State: the subscriber connection and what was published.

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
  /** As after a cut of the connection, on which these users' topics came. */
  resubscribed(uids: readonly string[]): void;
  /** What `recovery` answers. */
  recovers: () => Promise<void> | undefined;
}

const AGAIN_MS = 20;

/** `subscriber` is the test's own connection to the same server. */
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
      link.call("spublish", link.keys.topic(topic + event.uid), frame).catch(() => undefined); // the server is away: nobody hears it
    },
    announce: async (events) => {
      for (const event of events) topics.publish(event);
    },
    onEvent: (listener, given) => {
      deliver = listener;
      resync = given;
    },
    listen: (topic) => topics.subscribe(topic),
    subscribe: async (topic) => {
      await subscriber.ssubscribe(link.keys.topic(topic));
    },
    unlisten() {},
    barrier: async () => {
      await subscriber.ping();
    },
    recovery: () => topics.recovers(),
    recovers: () => undefined,
    delivered: () => undefined,
    start: async () => {},
    close: async () => {},
    ping: async () => {},
    resubscribed(uids) {
      resync
        .judgeUsers(uids)
        .catch(() => uids)
        .then((left) => {
          if (left.length > 0) setTimeout(() => topics.resubscribed(left), AGAIN_MS);
        });
    },
  };
  return topics;
}
