// A graceful restart of the only node. The requests in progress are answered, all connections are
// closed with a code that makes the clients reconnect at once, and the clients are back soon after
// the new process listens. The time offline is reported, not asserted: it depends on the machine.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { type Client, connect, group } from "../../src/client/index.ts";
import { spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { freePort } from "../support/redis.ts";
import { volume } from "../support/volume.ts";

const CLIENTS = volume(50, "JINDOU_TEST_RESTART_CLIENTS");
/** Maximum time until the clients are back. It is shorter than the drain of a cluster. */
const BACK_MS = 20_000;

t.setTimeout(180_000);

t.test(
  "a single node that restarts closes all client connections at once, and the clients reconnect",
  async (t) => {
    const [apiPort, clientPort] = [await freePort(), await freePort()];
    const settings = {
      JINDOU_API_LISTEN: `127.0.0.1:${apiPort}`,
      JINDOU_CLIENT_LISTEN: `127.0.0.1:${clientPort}`,
      JINDOU_AUTH_CLIENTS: "none",
      JINDOU_DRAIN_TIMEOUT_MS: "60000",
    };
    const before = await spawnBroker(t, settings);
    await before.call("/channel", { channel_id: "g", channel_type: 2, subscribers: ["user-0"] });
    const clients: Client[] = [];
    const offlineMs: number[] = [];
    let signalledAt = 0;
    for (let number = 0; number < CLIENTS; number++) {
      const client = connect({ url: `ws://127.0.0.1:${clientPort}`, uid: `user-${number}` });
      t.teardown(() => client.close());
      clients.push(client);
    }
    const areOnline = () => clients.every(({ status }) => status === "online");
    while (!areOnline()) await pause(10);
    for (const client of clients)
      client.on("status", (status) => {
        if (status === "online") offlineMs.push(performance.now() - signalledAt);
      });
    const bare = await connectNative(t, { port: clientPort, uid: "bare" });
    const closed = bare.closed.then(({ code }) => ({ code, ms: performance.now() - signalledAt }));

    const sends = Array.from({ length: 20 }, (_, number) =>
      clients[0]?.send(group("g"), { type: 1, content: `text ${number}` }),
    );
    signalledAt = performance.now();
    const exit = before.stop("SIGTERM");
    const { code, ms } = await closed;
    t.equal(code, 4000, "the client is asked to reconnect at once");
    t.ok(
      ms < 5000,
      `the last connection is closed after ${Math.round(ms)} ms, so the closings are not spread over the drain`,
    );
    t.equal((await exit).code, 0, "the node ends without an error");
    await spawnBroker(t, settings, before.dataPath);
    const until = performance.now() + BACK_MS;
    while (!areOnline() && performance.now() < until) await pause(10);
    t.ok(areOnline(), "all clients are back");
    const sorted = offlineMs.map(Math.round).sort((a, b) => a - b);
    t.comment(`offline: median ${sorted[sorted.length >> 1]} ms, longest ${sorted.at(-1)} ms`);

    const results = await Promise.all(sends);
    t.same(
      results.map((result) => result?.messageSeq).sort((a = 0, b = 0) => a - b),
      Array.from({ length: 20 }, (_, number) => number + 1),
      "messages that were sent during the restart are stored once",
    );
  },
);
