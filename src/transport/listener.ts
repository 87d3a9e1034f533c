// A listener: one address that serves HTTP and socket endpoints, or clients that send frames over
// TCP. `stopAccepting` closes the listening socket. `close` also closes all connections.

import { networkText } from "./address.ts";
import { ClientAddresses } from "./client-addresses.ts";
import type { ClientSockets } from "./client-sockets.ts";
import type { DriverConnection, DriverServer, Tls } from "./driver.ts";
import { refuseHttp, serveHttp } from "./http.ts";
import { refuseHead } from "./http-head.ts";
import { readTls, whyCannotListen } from "./listen-checks.ts";
import { TcpServer } from "./tcp/server.ts";
import type { Listener, ListenerSpec, TcpListenerSpec } from "./types.ts";
import { serveSockets } from "./websocket.ts";

const MIN_IDLE_S = 8;
const MAX_IDLE_S = 960;

const UNPARSABLE = "The received bytes are not a valid HTTP request";

/** Creates a listener. It does nothing before `start`. Without `clients`, it serves no sockets. */
export function createListener(spec: ListenerSpec, clients?: ClientSockets): Listener {
  function mount(tls: Tls | undefined): DriverServer {
    checkIdleTimeout(clients?.endpoint.idleTimeoutS ?? MIN_IDLE_S);
    const server = spec.driver.createServer(tls);
    countConnections(server, spec);
    server.guardHeads({
      reserve: (bytes) => spec.bodies.reserve(bytes),
      release: (bytes) => spec.bodies.release(bytes),
      refuse: (problem) => refuseHead(problem, UNPARSABLE, spec),
    });
    const { trustedProxies } = spec;
    const addresses = trustedProxies.length > 0 ? new ClientAddresses(trustedProxies) : undefined;
    const shared = { ...spec, addresses };
    if (clients !== undefined) serveSockets(server, clients, shared);
    if (spec.http === undefined) refuseHttp(server, addresses);
    else serveHttp(server, spec.http, shared);
    return server;
  }
  return listenerOf(spec, clients, mount);
}

/** Creates a listener for clients that send frames over TCP. It does nothing before `start`. */
export function createTcpListener(spec: TcpListenerSpec, clients: ClientSockets): Listener {
  return listenerOf(spec, clients, (tls) => new TcpServer(tls, spec, clients));
}

/** The part of a server that listens and publishes. */
type ListeningServer = Pick<
  DriverServer,
  "listen" | "stopAccepting" | "close" | "publish" | "numSubscribers"
>;

function listenerOf(
  spec: Pick<ListenerSpec, "host" | "port" | "tls" | "limits">,
  clients: ClientSockets | undefined,
  mount: (tls: Tls | undefined) => ListeningServer,
): Listener {
  const host = spec.host.replace(/^\[(.*)\]$/, "$1");
  let status: "new" | "starting" | "listening" | "stopped" | "closed" = "new";
  let server: ListeningServer | undefined;

  async function start(): Promise<number> {
    if (status !== "new")
      throw new Error("A listener can be started only once. Create another listener.");
    status = "starting";
    const tls = spec.tls && (await readTls(spec.tls));
    if (isClosed()) throw new Error("The listener was closed while it was starting");
    spec.limits.start();
    server = mount(tls);
    const port = await server.listen(host, spec.port);
    if (isClosed()) throw new Error("The listener was closed while it was starting");
    if (port === undefined) {
      close();
      throw await whyCannotListen(host, spec.port);
    }
    status = "listening";
    return port;
  }

  function isClosed(): boolean {
    return status === "closed";
  }

  function stopAccepting(): void {
    if (status !== "listening") return;
    server?.stopAccepting();
    status = "stopped";
  }

  function close(): void {
    if (status === "closed") return;
    status = "closed";
    if (server !== undefined) clients?.detach(server);
    server?.close();
    spec.limits.stop();
  }

  return { start, stopAccepting, close };
}

function countConnections(server: DriverServer, { limits, spareSockets }: ListenerSpec): void {
  const opened = (connection: DriverConnection) => {
    const peer = networkText(connection.getRemoteAddress());
    const release = limits.accepted(peer, spareSockets);
    // `connection` must not be kept for a later close. With uWebSockets.js, closing it after its
    // first request could close a different connection.
    if (release === undefined) connection.close();
    else connection.onAborted(release);
  };
  server.countConnections(opened, () => limits.closed());
}

/**
 * Throws a RangeError for a value out of range. With such a value, uWebSockets.js would end the
 * process.
 */
function checkIdleTimeout(seconds: number): void {
  if (seconds < MIN_IDLE_S || seconds > MAX_IDLE_S)
    throw new RangeError(
      `The idle timeout must be from ${MIN_IDLE_S} to ${MAX_IDLE_S} seconds, not ${seconds}`,
    );
}
