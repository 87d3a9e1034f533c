// A TCP proxy between nodes and one Redis server, for tests. It can delay, hold or drop what Redis
// sends to the nodes' subscriber connections, and can unsubscribe a node without the node noticing.
// Owns the connections.

import { createServer, type Socket, connect as tcp } from "node:net";
import type { Test } from "tap";

interface Pair {
  readonly node: Socket;
  readonly redis: Socket;
  subscribes: boolean;
  /** Resolves when all earlier delayed bytes have been sent to the node. */
  waiting: Promise<void>;
}

export interface RedisProxy {
  readonly port: number;
  /** Delays everything that Redis sends to subscribers from now on, in order. 0 ends the delay. */
  delaySubscribers(ms: number): void;
  /** Holds everything that Redis sends to subscribers (`true`), or releases it (`false`). */
  holdSubscribers(isHeld: boolean): void;
  /** Drops all bytes on the current subscriber connections, both ways, but leaves them open. */
  silenceSubscribers(): void;
  /** Sends SUNSUBSCRIBE on the nodes' connections, which the nodes do not notice. */
  unsubscribe(name: string): void;
  /** Resolves when a node sends its next publication. */
  nextPublication(): Promise<void>;
}

/** Starts a proxy to the Redis server at `port`. */
export async function startRedisProxy(
  t: Pick<Test, "teardown">,
  port: number,
): Promise<RedisProxy> {
  const pairs = new Set<Pair>();
  const silent = new WeakSet<Pair>();
  let delayMs = 0;
  let release: (() => void) | undefined;
  let hold: Promise<void> | undefined;
  let onPublication: (() => void) | undefined;

  const sendToNode = (pair: Pair, bytes: Buffer): void => {
    const { node, subscribes } = pair;
    if (silent.has(pair)) return;
    if (!subscribes || (delayMs === 0 && hold === undefined)) {
      node.write(bytes);
      return;
    }
    const [gate, dueMs] = [hold, performance.now() + delayMs];
    pair.waiting = pair.waiting.then(async () => {
      await gate;
      const waitMs = dueMs - performance.now();
      if (waitMs > 0) await new Promise((go) => setTimeout(go, waitMs));
      if (!node.destroyed) node.write(bytes);
    });
  };

  const server = createServer((node) => {
    const redis = tcp(port, "127.0.0.1");
    const waiting = Promise.resolve();
    const pair: Pair = { node, redis, subscribes: false, waiting };
    pairs.add(pair);
    node.on("data", (bytes) => {
      if (bytes.includes("ssubscribe")) pair.subscribes = true;
      if (bytes.includes("spublish")) onPublication?.();
      if (!silent.has(pair)) redis.write(bytes);
    });
    redis.on("data", (bytes) => sendToNode(pair, bytes));
    const end = (): void => {
      pairs.delete(pair);
      node.destroy();
      redis.destroy();
    };
    for (const socket of [node, redis]) socket.on("error", end).on("close", end);
  });
  await new Promise<void>((go) => server.listen(0, "127.0.0.1", go));
  t.teardown(() => {
    release?.();
    for (const { node } of pairs) node.destroy();
    server.close();
  });
  const subscribers = () => [...pairs].filter((pair) => pair.subscribes);
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the proxy does not listen");
  return {
    port: address.port,
    delaySubscribers(ms) {
      delayMs = ms;
    },
    holdSubscribers(isHeld) {
      release?.();
      hold = undefined;
      if (!isHeld) return;
      hold = new Promise((go) => {
        release = go;
      });
    },
    silenceSubscribers() {
      for (const pair of subscribers()) silent.add(pair);
    },
    unsubscribe(name) {
      for (const { redis } of subscribers())
        redis.write(`*2\r\n$12\r\nSUNSUBSCRIBE\r\n$${Buffer.byteLength(name)}\r\n${name}\r\n`);
    },
    nextPublication: () =>
      new Promise((go) => {
        onPublication = go;
      }),
  };
}
