// Topics as plain as they can be, for tests of what stands beside them: loose events over sharded publish/subscribe, no lines, no repair.
// State: the subscriber connection and what was published.

import type { Redis } from "ioredis";
import type { Test } from "tap";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import type { ClusterTopics } from "../../../src/cluster/redis/cluster.ts";
import type { RedisLink } from "../../../src/redis/link.ts";
import { decodeFrame, looseFrame } from "../../../src/redis/wire.ts";

export interface PlainTopics extends ClusterTopics {
  readonly published: readonly ClusterEvent[];
  /** As after a cut of the connection. */
  resubscribed(): void;
}

/** `subscriber` is the test's own connection to the same server. */
export function plainTopics(
  t: Pick<Test, "teardown">,
  {
    link,
    subscriber,
  }: { readonly link: RedisLink; readonly subscriber: Redis },
): PlainTopics {
  const published: ClusterEvent[] = [];
  const listeners: (() => void)[] = [];
  let tell: (event: ClusterEvent) => void = () => {};
  subscriber.on("smessageBuffer", (_: Buffer, frame: Buffer) => {
    const publication = decodeFrame(frame);
    if (publication.kind === "loose") tell(publication.event);
  });
  t.teardown(() => subscriber.disconnect());
  const topics: PlainTopics = {
    published,
    publish(event) {
      published.push(event);
      if (!("uid" in event)) return;
      const frame = looseFrame("x", event);
      const topic = event.kind === "presence" ? "p:" : "u:";
      link
        .call("spublish", link.keys.topic(topic + event.uid), frame)
        .catch(() => undefined); // the server is away: nobody hears it
    },
    announce: async (events) => {
      for (const event of events) topics.publish(event);
    },
    onEvent: (listener) => {
      tell = listener;
    },
    listen: async (topic) => {
      await subscriber.ssubscribe(link.keys.topic(topic));
    },
    unlisten() {},
    barrier: async () => {
      await subscriber.ping();
    },
    start: async () => {},
    close: async () => {},
    ping: async () => {},
    onResubscribed: (listener) => void listeners.push(listener),
    resubscribed() {
      for (const listener of listeners) listener();
    },
  };
  return topics;
}
