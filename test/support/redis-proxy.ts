// Carries bytes between nodes and Redis. What Redis says to connections that subscribe can be
// delayed, held, or lost; commands can be put in between. State: the connections.

import { createServer, type Socket, connect as tcp } from "node:net";
import type { Test } from "tap";

interface Pair {
  readonly node: Socket;
  readonly redis: Socket;
  subscribes: boolean;
  /** Bytes for the node that wait, in order. */
  waiting: Promise<void>;
}

export interface RedisProxy {
  readonly port: number;
  /** From now on what Redis says to subscribers comes so much later, in order. */
  delay(ms: number): void;
  /** What Redis says to subscribers waits. */
  hold(isHeld: boolean): void;
  /** Subscribers neither hear Redis nor reach it any more; their connections stay open. */
  silence(): void;
  /** Ends subscriptions at Redis behind the nodes' backs. */
  unsubscribe(name: string): void;
  /** The next publication of a node that goes through. */
  published(): Promise<void>;
}

/** `port`: Redis'. */
export async function startRedisProxy(
  t: Pick<Test, "teardown">,
  port: number,
): Promise<RedisProxy> {
  const pairs = new Set<Pair>();
  const silent = new WeakSet<Pair>();
  let delayMs = 0;
  let release: (() => void) | undefined;
  let held: Promise<void> | undefined;
  let published: (() => void) | undefined;

  const toNode = (pair: Pair, bytes: Buffer): void => {
    const { node, subscribes } = pair;
    if (silent.has(pair)) return;
    if (!subscribes || (delayMs === 0 && held === undefined)) {
      node.write(bytes);
      return;
    }
    const [gate, dueMs] = [held, performance.now() + delayMs];
    pair.waiting = pair.waiting.then(async () => {
      await gate;
      const leftMs = dueMs - performance.now();
      if (leftMs > 0) await new Promise((go) => setTimeout(go, leftMs));
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
      if (bytes.includes("spublish")) published?.();
      if (!silent.has(pair)) redis.write(bytes);
    });
    redis.on("data", (bytes) => toNode(pair, bytes));
    const end = (): void => {
      pairs.delete(pair);
      node.destroy();
      redis.destroy();
    };
    for (const one of [node, redis]) one.on("error", end).on("close", end);
  });
  await new Promise<void>((go) => server.listen(0, "127.0.0.1", go));
  t.teardown(() => {
    release?.();
    for (const { node } of pairs) node.destroy();
    server.close();
  });
  const subscribers = () => [...pairs].filter((one) => one.subscribes);
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the proxy does not listen");
  return {
    port: address.port,
    delay(ms) {
      delayMs = ms;
    },
    hold(isHeld) {
      release?.();
      held = undefined;
      if (!isHeld) return;
      held = new Promise((go) => {
        release = go;
      });
    },
    silence() {
      for (const pair of subscribers()) silent.add(pair);
    },
    unsubscribe(name) {
      for (const { redis } of subscribers())
        redis.write(`*2\r\n$12\r\nSUNSUBSCRIBE\r\n$${Buffer.byteLength(name)}\r\n${name}\r\n`);
    },
    published: () =>
      new Promise((go) => {
        published = go;
      }),
  };
}
