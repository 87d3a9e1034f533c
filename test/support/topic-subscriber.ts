// A connection for tests that subscribe to topics in Redis themselves, on one server or on a Redis
// Cluster. Closed at the end of the test.

import { Cluster, Redis } from "ioredis";
import type { Test } from "tap";

/** Connects a subscriber that passes every frame of its topics to `onFrame`. */
export async function connectSubscriber(
  t: Pick<Test, "teardown">,
  url: string,
  onFrame: (topic: string, frame: Buffer) => void,
): Promise<{ ssubscribe(topic: string): Promise<unknown> }> {
  const options = { protocol: 2, autoResubscribe: false } as const;
  const servers = url.split(",");
  const client =
    servers.length > 1
      ? new Cluster(servers, {
          ...{ lazyConnect: true, shardedSubscribers: true },
          redisOptions: options,
        })
      : new Redis(url, { ...options, lazyConnect: true });
  client.on("error", () => {}); // tests stop servers on purpose
  t.teardown(() => client.disconnect());
  await client.connect();
  client.on("smessageBuffer", (topic: Buffer, frame: Buffer) => onFrame(String(topic), frame));
  return client;
}
