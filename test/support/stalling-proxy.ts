// A network that stalls: a TCP proxy that can hold back everything a client sends and deliver it
// later, even if the client has closed its connection in the meantime. Owns the connections.

import { createServer, type Socket, connect as tcp } from "node:net";
import type { Test } from "tap";

interface Pair {
  readonly client: Socket;
  readonly server: Socket;
  /** True while bytes of the client are held back. */
  isHeld: boolean;
  /** Bytes of the client that wait for the end of a stall. */
  backlog: Buffer[];
  isClientGone: boolean;
}

export interface StallingProxy {
  readonly port: number;
  /** Starts to hold back all bytes that clients send. */
  stall(): void;
  /** Holds back the bytes of a client, starting with the first ones that contain `text`. */
  stallAt(text: string): void;
  /** Delivers the bytes that were held back, in order. */
  resume(): void;
  /**
   * Resets the clients' connections. New connections work. `resume` still delivers the bytes that
   * were held back on the old connections, unless the server closes these connections first.
   */
  cut(): void;
}

/**
 * Starts a proxy in front of `port` on this machine. Port numbers in the server's replies are
 * replaced according to `ports` (see `startClusterProxy`).
 */
export async function startStallingProxy(
  t: Pick<Test, "teardown">,
  port: number,
  ports: ReadonlyMap<number, number> = new Map(),
): Promise<StallingProxy> {
  const pairs = new Set<Pair>();
  let isStalled = false;
  let stallText: string | undefined;

  const close = (pair: Pair): void => {
    pairs.delete(pair);
    pair.client.destroy();
    pair.server.destroy();
  };
  const listener = createServer((client) => {
    const server = tcp(port, "127.0.0.1");
    const pair: Pair = { client, server, isHeld: isStalled, backlog: [], isClientGone: false };
    pairs.add(pair);
    client.on("data", (bytes) => {
      if (stallText !== undefined && bytes.includes(stallText)) pair.isHeld = true;
      if (pair.isHeld) pair.backlog.push(bytes);
      else server.write(bytes);
    });
    server.on("data", (bytes) => {
      if (!client.destroyed) client.write(withPorts(bytes, ports));
    });
    const clientGone = (): void => {
      pair.isClientGone = true;
      if (pair.backlog.length === 0) close(pair);
    };
    client.on("error", clientGone).on("close", clientGone);
    server.on("error", () => close(pair)).on("close", () => close(pair));
  });
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  t.teardown(() => {
    for (const pair of pairs) close(pair);
    listener.close();
  });
  const address = listener.address();
  if (address === null || typeof address === "string") throw new Error("the proxy does not listen");
  return {
    port: address.port,
    stall() {
      isStalled = true;
      for (const pair of pairs) pair.isHeld = true;
    },
    stallAt(text) {
      stallText = text;
    },
    resume() {
      isStalled = false;
      stallText = undefined;
      for (const pair of pairs) {
        pair.isHeld = false;
        for (const bytes of pair.backlog) pair.server.write(bytes);
        pair.backlog = [];
        if (pair.isClientGone) pair.server.end();
      }
    },
    cut() {
      isStalled = false;
      for (const { client } of pairs) client.resetAndDestroy();
    },
  };
}

/**
 * Starts a proxy in front of each server of a Redis Cluster. The addresses in the replies of the
 * servers are those of the proxies, so that a client that connects to the first proxy uses only
 * proxies. `port` is that of the first proxy.
 */
export async function startClusterProxy(
  t: Pick<Test, "teardown">,
  servers: readonly { readonly port: number }[],
): Promise<StallingProxy> {
  const ports = new Map<number, number>();
  const proxies: StallingProxy[] = [];
  for (const { port } of servers) {
    const proxy = await startStallingProxy(t, port, ports);
    proxies.push(proxy);
    ports.set(port, proxy.port);
  }
  const forAll = (run: (proxy: StallingProxy) => void) => () => proxies.forEach(run);
  return {
    port: proxies[0]?.port ?? 0,
    stall: forAll((proxy) => proxy.stall()),
    stallAt: (text) => forAll((proxy) => proxy.stallAt(text))(),
    resume: forAll((proxy) => proxy.resume()),
    cut: forAll((proxy) => proxy.cut()),
  };
}

/** Replaces port numbers at the end of a line, as in replies to CLUSTER SLOTS and in MOVED. */
function withPorts(bytes: Buffer, ports: ReadonlyMap<number, number>): Buffer {
  if (ports.size === 0) return bytes;
  const text = bytes.toString("latin1");
  return Buffer.from(
    text.replace(/:(\d+)\r\n/g, (line, port) => {
      const replacement = ports.get(Number(port));
      return replacement === undefined ? line : `:${replacement}\r\n`;
    }),
    "latin1",
  );
}
