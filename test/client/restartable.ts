// A broker process that can be killed and started again on the same ports and data, as the scenarios' world.

import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import type { Test } from "tap";
import { type ChildBroker, spawnBroker } from "../support/broker.ts";
import type { World } from "./scenario.ts";

export async function startWorld(t: Test): Promise<World> {
  const [apiPort, clientPort] = await freePorts();
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
        return 0; // down
      }
    },
    kill: () => broker.kill(),
    async start() {
      broker = await spawnBroker(t, ports, dataPath);
    },
  };
}

/**
 * Chosen before the first start: a listener on a port that the system chose does not set SO_REUSEADDR, and then the port is not free for a
 * minute after a kill.
 */
async function freePorts(): Promise<readonly number[]> {
  const servers = [createServer(), createServer()];
  const ports = servers.map(async (server) => {
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return (server.address() as AddressInfo).port;
  });
  const chosen = await Promise.all(ports);
  for (const server of servers) server.close();
  return chosen;
}
