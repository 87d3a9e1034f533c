// Runs a broker process that can be killed and started again on the same ports and data. The
// scenarios use it as their world.

import type { Test } from "tap";
import { type ChildBroker, spawnBroker } from "../support/broker.ts";
import { freePort } from "../support/redis.ts";
import { signedPath } from "../support/signed-path.ts";
import type { World } from "./scenario.ts";

/** Starts the broker. It is stopped at the end of the test `t`. */
export async function startWorld(t: Test): Promise<World> {
  // The ports are chosen before the first start, because a listener does not set SO_REUSEADDR on a
  // port that the system chose. Without SO_REUSEADDR the port is blocked for a minute after a kill.
  const [apiPort, clientPort] = [await freePort(), await freePort()];
  const ports = {
    JINDOU_API_LISTEN: `127.0.0.1:${apiPort}`,
    JINDOU_CLIENT_LISTEN: `127.0.0.1:${clientPort}`,
  };
  let broker: ChildBroker = await spawnBroker(t, ports);
  const { dataPath } = broker;
  return {
    url: `ws://127.0.0.1:${clientPort}`,
    async post(path, body) {
      try {
        return (await broker.call(path, body)).status;
      } catch {
        return 0; // the broker is not running
      }
    },
    sign: (path, access) => signedPath(broker, path, access),
    kill: () => broker.kill(),
    async start() {
      broker = await spawnBroker(t, ports, dataPath);
    },
  };
}
