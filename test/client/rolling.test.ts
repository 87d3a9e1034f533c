// Rolling restarts of a cluster under traffic: the nodes are stopped gracefully one after the other
// while clients send through a load balancer. No message fails, is lost, duplicated or reordered.

import { once } from "node:events";
import { type AddressInfo, connect as connectTcp, createServer, type Socket } from "node:net";
import type { Test } from "tap";
import { type Client, connect, group, type JindouError } from "../../src/client/index.ts";
import { type ChildBroker, spawnBroker } from "../support/broker.ts";
import { freePort, startRedis } from "../support/redis.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";

const NODES = 2;
const RESTARTS = volume(5, undefined, 2);

/**
 * Starts a load balancer that connects to the ports in turn, without checking which nodes are
 * ready.
 */
async function startBalancer(t: Test, ports: readonly number[]): Promise<string> {
  const sockets = new Set<Socket>();
  let turn = 0;
  const server = createServer((client) => {
    const upstream = connectTcp(ports[turn++ % ports.length] ?? 0, "127.0.0.1");
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(from);
      from.on("error", () => to.destroy()).on("close", () => to.destroy());
      from.pipe(to);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.teardown(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

t.test(
  "no message fails or is lost while the nodes of a cluster are restarted one after the other",
  async (t) => {
    const redis = await startRedis(t);
    const nodes: { start(): Promise<ChildBroker>; running: ChildBroker; port: number }[] = [];
    for (let n = 0; n < NODES; n++) {
      const port = await freePort();
      const settings = { JINDOU_REDIS_URL: redis.url, JINDOU_CLIENT_LISTEN: `127.0.0.1:${port}` };
      const start = () => spawnBroker(t, { ...settings, JINDOU_NODE_ID: `n${n}` });
      nodes.push({ start, running: await start(), port });
    }
    const { call } = nodes[0]?.running ?? (await spawnBroker(t));
    for (const uid of ["amy", "ben"])
      await call("/user/token", { uid, token: "secret", device_flag: 1 });
    const ids = ["a", "b", "c"];
    for (const id of ids)
      await call("/channel", { channel_id: id, channel_type: 2, subscribers: ["amy", "ben"] });
    const url = await startBalancer(
      t,
      nodes.map(({ port }) => port),
    );
    const login = (uid: string): Client => {
      const client = connect({ url, uid, token: "secret", reconnect: { minMs: 50, maxMs: 200 } });
      t.teardown(() => client.close());
      return client;
    };
    const [amy, ben] = [login("amy"), login("ben")];
    const received = new Map<string, string[]>(ids.map((id) => [id, []]));
    ben.on("message", ({ channel, content }) =>
      received.get(channel.id)?.push(String(content?.content)),
    );
    await Promise.all([amy.ready(), ben.ready()]);
    const sent = new Map<string, string[]>(ids.map((id) => [id, []]));
    const failures: JindouError[] = [];
    let isOver = false;
    const writers = ids.map(async (id) => {
      for (let n = 0; !isOver; n++)
        await amy.send(group(id), `${n}`).then(
          () => sent.get(id)?.push(`${n}`),
          (error) => failures.push(error),
        );
    });
    const total = () => [...sent.values()].reduce((sum, { length }) => sum + length, 0);
    for (let restart = 0; restart < RESTARTS; restart++) {
      const before = total();
      while (total() < before + 20) await new Promise((resolve) => setTimeout(resolve, 5));
      const node = nodes[restart % NODES];
      if (node === undefined) break;
      t.equal(await node.running.terminate(), 0, "the node ends after it has drained");
      node.running = await node.start();
    }
    isOver = true;
    await Promise.all(writers);
    t.same(failures, []);
    const isComplete = () => ids.every((id) => received.get(id)?.length === sent.get(id)?.length);
    while (!isComplete()) await new Promise((resolve) => setTimeout(resolve, 5));
    t.same(received, sent, "the messages of each group arrive once and in order");
    t.ok(total() >= RESTARTS * 20);
  },
);
