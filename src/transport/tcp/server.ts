// One listening address for clients that send frames over TCP. A connection may begin with a PROXY
// protocol header if the peer is a trusted proxy. A TLS handshake may follow. State: the open
// connections and sockets of the address.

import { createServer, type Server, type Socket } from "node:net";
import { networkOf } from "../../lib/network.ts";
import { addressText } from "../address.ts";
import { addressBytes } from "../address-bytes.ts";
import { ClientAddresses } from "../client-addresses.ts";
import type { ClientSockets } from "../client-sockets.ts";
import { type ConnectionContext, SocketConnection } from "../connection.ts";
import type { DriverServer, Tls } from "../driver.ts";
import { readProxyHeader } from "../first-bytes.ts";
import { listenOn } from "../listen-on.ts";
import { parseAnyProxyHeader } from "../proxy-header.ts";
import { driverLimit } from "../slow-readers.ts";
import { TlsHandshakes } from "../tls-handshakes.ts";
import { Topics } from "../topics.ts";
import { afterTurnEnds, TurnEnd } from "../turn-end.ts";
import type { TcpListenerSpec, Upgrade } from "../types.ts";
import { bufferOf, TcpSocket, type TcpSocketContext } from "./socket.ts";

/** Time limit for a PROXY header, and for the TLS handshake. */
const GREETING_MS = 10_000;
const TICK_MS = 1000;

/** A connection whose client may not send frames yet. */
interface Arrival {
  readonly socket: Socket;
  readonly peer: string;
  /** Address in the PROXY header, or `""` if there is no such address. */
  proxied: string;
  /** Releases the slot that `SocketLimits` counts for a connection without a request. */
  readonly release: () => void;
}

export class TcpServer
  implements Pick<DriverServer, "listen" | "stopAccepting" | "close" | "publish" | "numSubscribers">
{
  readonly #spec: TcpListenerSpec;
  readonly #clients: ClientSockets;
  readonly #server: Server;
  readonly #tls: TlsHandshakes<Arrival> | undefined;
  readonly #addresses: ClientAddresses;
  readonly #topics = new Topics(bufferOf);
  readonly #context: ConnectionContext;
  readonly #socketContext: TcpSocketContext;
  readonly #accepted = new Set<Socket>();
  readonly #sockets = new Set<TcpSocket>();
  #ticks: NodeJS.Timeout | undefined;

  constructor(tls: Tls | undefined, spec: TcpListenerSpec, clients: ClientSockets) {
    this.#spec = spec;
    this.#clients = clients;
    this.#addresses = new ClientAddresses(spec.trustedProxies);
    this.#context = clients.attach(this, spec.name);
    this.#socketContext = {
      topics: this.#topics,
      turnEnd: new TurnEnd(afterTurnEnds),
      sockets: this.#sockets,
      connections: clients.connections,
      maxUnreadBytes: driverLimit(clients.endpoint.maxBufferedBytes),
      idleTimeoutS: spec.idleTimeoutS,
    };
    const secured = (arrival: Arrival, stream: Socket) => this.#open(arrival, stream);
    this.#tls = tls && new TlsHandshakes(tls, { timeoutMs: GREETING_MS, alpn: [], secured });
    this.#server = createServer({ noDelay: true }, (socket) => this.#accept(socket));
  }

  publish(topic: string, data: Uint8Array | string, isBinary: boolean): void {
    this.#topics.publish(topic, { data, isBinary });
  }

  numSubscribers(topic: string): number {
    return this.#topics.count(topic);
  }

  async listen(host: string, port: number): Promise<number | undefined> {
    const boundPort = await listenOn(this.#server, host, port);
    if (boundPort !== undefined) this.#ticks = setInterval(() => this.#tick(), TICK_MS).unref();
    return boundPort;
  }

  stopAccepting(): void {
    this.#server.close();
  }

  close(): void {
    clearInterval(this.#ticks);
    for (const socket of this.#sockets) socket.close();
    for (const socket of this.#accepted) socket.destroy();
    this.#server.close();
  }

  // --- Connections ---

  #accept(socket: Socket): void {
    const { limits, spareSockets } = this.#spec;
    socket.on("error", () => {}); // `close` follows
    this.#accepted.add(socket);
    const peer = addressText(addressBytes(socket.remoteAddress ?? ""));
    const release = limits.accepted(networkOf(peer), spareSockets);
    const arrival = { socket, peer, proxied: "", release: once(release) };
    socket.once("close", () => {
      this.#accepted.delete(socket);
      arrival.release();
      limits.closed();
    });
    if (release === undefined) socket.destroy();
    else if (this.#addresses.isProxy(peer)) this.#readProxyHeader(arrival);
    else this.#secure(arrival);
  }

  #readProxyHeader(arrival: Arrival): void {
    const { socket } = arrival;
    const late = setTimeout(() => socket.destroy(), GREETING_MS).unref();
    readProxyHeader(socket, parseAnyProxyHeader, (address) => {
      clearTimeout(late);
      arrival.proxied = addressText(address);
      this.#secure(arrival);
    });
    socket.once("close", () => clearTimeout(late));
  }

  #secure(arrival: Arrival): void {
    if (this.#tls === undefined) this.#open(arrival, arrival.socket);
    else this.#tls.begin(arrival.socket, arrival);
  }

  /** Opens the client's connection. The client's first bytes may already be in the stream. */
  #open({ socket, peer, proxied, release }: Arrival, stream: Socket): void {
    if (stream !== socket) {
      stream.on("error", () => {});
      stream.once("close", () => socket.destroy());
    }
    release();
    const remoteAddress = this.#addresses.ofConnection(peer, proxied);
    const subprotocols = [this.#spec.name];
    const upgrade = { path: "", origin: "", subprotocols, remoteAddress, headers: {} };
    const connection = new SocketConnection(remoteAddress, this.#context);
    if (!this.#accepts(upgrade) || !connection.enter(networkOf(remoteAddress)))
      return void stream.destroy();
    const { endpoint, connections } = this.#clients;
    const framer = this.#spec.createFramer();
    const client = new TcpSocket(connection, { stream, framer }, this.#socketContext);
    connections.add(connection);
    connection.opened(client, () => endpoint.open(connection, upgrade));
    client.start();
  }

  #accepts(upgrade: Upgrade): boolean {
    try {
      return !("status" in this.#clients.endpoint.accept(upgrade));
    } catch (error) {
      this.#spec.onError(error, "Could not accept a connection");
      return false;
    }
  }

  #tick(): void {
    for (const socket of this.#sockets) socket.tick();
  }
}

function once(run: (() => void) | undefined): () => void {
  let isPending = run !== undefined;
  return () => {
    if (isPending) run?.();
    isPending = false;
  };
}
