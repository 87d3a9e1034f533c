// Helpers shared by the tests of the transport: a started listener, clients that record what they
// receive, and waiting for conditions. Everything is closed when its test ends.

import { connect, type Socket } from "node:net";
import type { Test } from "tap";
import { type ClientOptions, WebSocket } from "ws";
import { ClientSockets } from "../../src/transport/client-sockets.ts";
import { DescriptorReserve } from "../../src/transport/descriptors.ts";
import { chooseDriver } from "../../src/transport/drivers.ts";
import { BodyBudget } from "../../src/transport/http-body.ts";
import { createListener, createTcpListener } from "../../src/transport/listener.ts";
import { SocketLimits } from "../../src/transport/socket-limits.ts";
import type {
  Connection,
  ConnectionHandler,
  Framer,
  HttpEndpoint,
  HttpReply,
  HttpRoute,
  Listener,
  ListenerSpec,
  SocketEndpoint,
  TcpListenerSpec,
  TopicPublisher,
} from "../../src/transport/types.ts";
import { TEST_TRANSPORT } from "../support/driver.ts";

export const HOST = "127.0.0.1";

/** Driver of all listeners of these tests, from JINDOU_TEST_TRANSPORT. */
export const { driver: DRIVER } = await chooseDriver({
  driver: TEST_TRANSPORT,
  maxHeadBytes: 16_384,
});

/** True if the tests run on the portable driver. */
export const IS_PORTABLE = DRIVER.name === "portable";

export const tlsFile = (name: string): string =>
  new URL(`../support/tls/${name}`, import.meta.url).pathname;

/** Resolves when `isTrue` returns true. Checks every millisecond, and rejects after `withinMs`. */
export async function until(isTrue: () => boolean, withinMs = 120_000): Promise<void> {
  const giveUp = new Error(`the condition did not become true within ${withinMs} ms: ${isTrue}`);
  const deadlineMs = performance.now() + withinMs;
  while (!isTrue()) {
    if (performance.now() > deadlineMs) throw giveUp;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

export interface Started {
  readonly listener: Listener & TopicPublisher;
  readonly port: number;
  /** Errors that were reported through `onError`. */
  readonly errors: { readonly error: unknown; readonly message: string }[];
}

/** Options of a test listener. */
export type Overrides = Partial<ListenerSpec> & { readonly sockets?: SocketEndpoint };

export async function startListener(
  t: Test,
  { sockets, ...overrides }: Overrides,
  tuning: { readonly closeTimeoutMs?: number; readonly clients?: ClientSockets } = {},
): Promise<Started> {
  const errors: Started["errors"] = [];
  const spec: ListenerSpec = {
    driver: DRIVER,
    host: HOST,
    port: 0,
    tls: undefined,
    http: undefined,
    limits: socketLimits(),
    trustedProxies: [],
    spareSockets: 0,
    bodies: new BodyBudget(Number.POSITIVE_INFINITY),
    onHeadRefused: () => undefined,
    onError: (error, message) => errors.push({ error, message }),
    ...overrides,
  };
  const clients =
    tuning.clients ?? (sockets && new ClientSockets(sockets, spec, tuning.closeTimeoutMs));
  const listener = createListener(spec, clients);
  t.teardown(() => listener.close());
  const publish: TopicPublisher["publish"] = (topic, frame) => clients?.publish(topic, frame);
  return { listener: { ...listener, publish }, port: await listener.start(), errors };
}

/** Creates socket limits. A limit that is not passed does not apply. */
export function socketLimits(
  ports: Partial<ConstructorParameters<typeof SocketLimits>[0]> = {},
): SocketLimits {
  return new SocketLimits({
    capacity: () => Number.POSITIVE_INFINITY,
    maxUnauthenticatedPerAddress: 0,
    reserve: new DescriptorReserve(),
    onRefused: () => undefined,
    onDisplaced: () => undefined,
    ...ports,
  });
}

/** A frame of the test protocol: its length in one byte, then its bytes. */
export function lengthFrame(body: string): Buffer {
  return Buffer.concat([Buffer.from([body.length]), Buffer.from(body)]);
}

/** A framer that divides bytes into frames and returns each without its length byte. */
class LengthFramer implements Framer {
  #unread = Buffer.alloc(0);

  *frames(bytes: Uint8Array): Generator<Uint8Array> {
    this.#unread = Buffer.concat([this.#unread, bytes]);
    for (;;) {
      const end = 1 + (this.#unread[0] ?? Number.POSITIVE_INFINITY);
      if (end > this.#unread.length) return;
      const frame = this.#unread.subarray(1, end);
      this.#unread = this.#unread.subarray(end);
      yield frame;
    }
  }
}

/** Starts a TCP listener for frames of the test protocol. */
export async function startTcpListener(
  t: Test,
  clients: ClientSockets,
  overrides: Partial<TcpListenerSpec> = {},
): Promise<{ readonly listener: Listener; readonly port: number }> {
  const spec: TcpListenerSpec = {
    name: "frames",
    host: HOST,
    port: 0,
    tls: undefined,
    limits: socketLimits(),
    trustedProxies: [],
    spareSockets: 0,
    idleTimeoutS: 60,
    createFramer: () => new LengthFramer(),
    onError: (error) => {
      throw error;
    },
    ...overrides,
  };
  const listener = createTcpListener(spec, clients);
  t.teardown(() => listener.close());
  return { listener, port: await listener.start() };
}

export const text = (body: string, status = 200): HttpReply => ({
  status,
  headers: { "content-type": "text/plain" },
  body,
});

export function httpEndpoint(
  routes: readonly HttpRoute[],
  overrides: Partial<HttpEndpoint> = {},
): HttpEndpoint {
  return {
    routes,
    headers: [],
    maxBodyBytes: 1000,
    notFound: (request) => text(`none ${request.method} ${request.path}`, 404),
    wrongMethod: (_request, allow) => text(`use ${allow}`, 405),
    tooLarge: () => text("too large", 413),
    malformed: (problem) => text(problem, 400),
    headTooLarge: () => text("head too large", 431),
    busy: () => text("busy", 503),
    ...overrides,
  };
}

/** A TCP client that sends exactly the bytes the test writes. */
export class RawClient {
  readonly socket: Socket;
  received = Buffer.alloc(0);
  isClosed = false;

  constructor(t: Test, port: number, host = HOST, localAddress?: string) {
    this.socket = connect({ port, host, noDelay: true, ...(localAddress && { localAddress }) });
    this.socket.on("data", (data) => {
      this.received = Buffer.concat([this.received, data]);
    });
    this.socket.on("error", () => undefined); // `close` follows
    this.socket.on("close", () => {
      this.isClosed = true;
    });
    t.teardown(() => this.socket.destroy());
  }

  get text(): string {
    return this.received.toString("latin1");
  }

  write(bytes: string | Uint8Array): void {
    this.socket.write(bytes);
  }

  /** Resolves when the text was received. */
  async has(expected: string): Promise<void> {
    await until(() => this.text.includes(expected));
  }

  async closed(withinMs?: number): Promise<void> {
    await until(() => this.isClosed, withinMs);
  }
}

// --- Sockets -------------------------------------------------------------------------------------

/** The events of one connection on the server side. */
export interface Seen {
  readonly connection: Connection;
  readonly closed: number[];
  drains: number;
  /** Number of `lagging` events. */
  lags: number;
  /** Number of unread bytes at each `lagging` event. */
  readonly lagBytes: number[];
  /** Names of the `lagging` and `drained` events, in order. */
  readonly events: ("lags" | "drained")[];
}

export interface Behaviour {
  readonly received?: (seen: Seen, data: string, isText: boolean) => void;
  readonly opened?: (seen: Seen) => void;
  readonly closed?: (seen: Seen) => void;
  readonly endpoint?: Partial<SocketEndpoint>;
}

/** Creates a socket endpoint that records its connections in the order in which they opened. */
export function socketEndpoint(behaviour: Behaviour = {}): {
  readonly seen: Seen[];
  readonly endpoint: SocketEndpoint;
} {
  const seen: Seen[] = [];
  const endpoint: SocketEndpoint = {
    headers: [],
    maxFrameBytes: 1_000_000,
    maxBufferedBytes: 64 * 1024,
    maxBufferedBytesPerUser: 1e12,
    maxBufferedBytesTotal: 1e12,
    lagBytes: 16 * 1024,
    idleTimeoutS: 60,
    slowReader: { code: 4001, message: "slow" },
    accept: () => ({ subprotocol: undefined }),
    open(connection): ConnectionHandler {
      const side: Seen = {
        ...{ connection, closed: [], drains: 0, lags: 0 },
        ...{ lagBytes: [], events: [] },
      };
      seen.push(side);
      behaviour.opened?.(side);
      return {
        received: (data, isText) =>
          behaviour.received?.(side, Buffer.from(data).toString(), isText),
        pinged: () => {},
        drained: () => {
          side.drains += 1;
          side.events.push("drained");
        },
        lagging: () => {
          side.lags += 1;
          side.lagBytes.push(connection.bufferedBytes());
          side.events.push("lags");
        },
        closed(code) {
          side.closed.push(code);
          behaviour.closed?.(side);
        },
      };
    },
    ...behaviour.endpoint,
  };
  return { seen, endpoint };
}

export interface Client {
  readonly socket: WebSocket;
  readonly texts: string[];
  readonly binaries: Buffer[];
  /** Close code and reason, empty while the connection is open. */
  readonly closed: { code: number; reason: string }[];
}

/** Opens a client socket. Resolves when the handshake is complete. */
export async function openClient(
  t: Test,
  port: number,
  options: ClientOptions & { readonly url?: string } = {},
): Promise<Client> {
  const { url = `ws://${HOST}:${port}/`, ...clientOptions } = options;
  const socket = new WebSocket(url, { perMessageDeflate: false, ...clientOptions });
  const client: Client = { socket, texts: [], binaries: [], closed: [] };
  socket.on("message", (data: Buffer, isBinary) => {
    if (isBinary) client.binaries.push(data);
    else client.texts.push(data.toString());
  });
  socket.on("close", (code, reason) => client.closed.push({ code, reason: reason.toString() }));
  t.teardown(() => socket.terminate());
  await new Promise<void>((resolve, reject) => {
    socket.once("open", resolve);
    socket.once("error", reject);
  });
  socket.on("error", () => undefined); // `close` follows
  return client;
}

/** Waits for the connection with this index on the server side and returns it. */
export async function connectionAt(seen: readonly Seen[], index: number): Promise<Seen> {
  await until(() => seen.length > index);
  const side = seen[index];
  if (side === undefined) throw new Error("unreachable");
  return side;
}

/** Sends frames in one write, so that the server handles them in one turn of the event loop. */
export function sendTogether({ socket }: Client, frames: string[]): void {
  const raw = (socket as unknown as { _socket: Socket })._socket; // `ws` has no public way
  raw.cork();
  for (const frame of frames) socket.send(frame);
  raw.uncork();
}
