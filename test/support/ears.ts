// A connection that subscribes, for tests that hear what is published under topics themselves: to
// one server or a Cluster. Ends with the test.

import { Cluster, Redis } from "ioredis";
import type { Test } from "tap";

/** `hear` is given every frame of the topics it subscribes to. */
export async function connectEars(
  t: Pick<Test, "teardown">,
  url: string,
  hear: (topic: string, frame: Buffer) => void,
): Promise<{ ssubscribe(topic: string): Promise<unknown> }> {
  const options = { protocol: 2, autoResubscribe: false } as const;
  const servers = url.split(",");
  const ears =
    servers.length > 1
      ? new Cluster(servers, {
          ...{ lazyConnect: true, shardedSubscribers: true },
          redisOptions: options,
        })
      : new Redis(url, { ...options, lazyConnect: true });
  ears.on("error", () => {}); // tests end servers on purpose
  t.teardown(() => ears.disconnect());
  await ears.connect();
  ears.on("smessageBuffer", (topic: Buffer, frame: Buffer) => hear(String(topic), frame));
  return ears;
}
