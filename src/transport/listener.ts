// A listener: one address, and the HTTP and socket endpoints that are served on it. `stopAccepting`
// closes the listening socket; `close` also closes all connections.

import { networkText } from "./address.ts";
import { ClientAddresses } from "./client-addresses.ts";
import type { DriverConnection, DriverServer, Tls } from "./driver.ts";
import { refuseHttp, serveHttp } from "./http.ts";
import { refuseHead } from "./http-head.ts";
import { readTls, whyCannotListen } from "./listen-checks.ts";
import type { Listener, ListenerSpec, TopicPublisher } from "./types.ts";
import { serveSockets } from "./websocket.ts";

const MIN_IDLE_S = 8;
const MAX_IDLE_S = 960;

const UNPARSABLE = "The bytes received are not a valid HTTP request";

const CLOSE_TIMEOUT_MS = 5000;

/** Creates a listener, which does nothing until `start`. Only tests set `closeTimeoutMs`. */
export function createListener(
  spec: ListenerSpec,
  { closeTimeoutMs = CLOSE_TIMEOUT_MS }: { readonly closeTimeoutMs?: number } = {},
): Listener {
  const host = spec.host.replace(/^\[(.*)\]$/, "$1");
  let status: "new" | "starting" | "listening" | "stopped" | "closed" = "new";
  let server: DriverServer | undefined;
  let sockets: TopicPublisher | undefined;

  function mount(tls: Tls | undefined): DriverServer {
    const mounted = spec.driver.createServer(tls);
    countConnections(mounted, spec);
    mounted.guardHeads({
      reserve: (bytes) => spec.bodies.reserve(bytes),
      release: (bytes) => spec.bodies.release(bytes),
      refuse: (problem) => refuseHead(problem, UNPARSABLE, spec),
    });
    const { trustedProxies } = spec;
    const addresses = trustedProxies.length > 0 ? new ClientAddresses(trustedProxies) : undefined;
    const shared = { ...spec, addresses };
    if (spec.sockets !== undefined)
      sockets = serveSockets(mounted, spec.sockets, shared, closeTimeoutMs);
    if (spec.http === undefined) refuseHttp(mounted, addresses);
    else serveHttp(mounted, spec.http, shared);
    return mounted;
  }

  async function start(): Promise<number> {
    if (status !== "new")
      throw new Error("A listener can be started only once. Create another listener.");
    status = "starting";
    checkIdleTimeout(spec);
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
    server?.close();
    spec.limits.stop();
  }

  return {
    start,
    stopAccepting,
    close,
    publish(topic, frame) {
      if (status !== "closed") sockets?.publish(topic, frame);
    },
  };
}

function countConnections(server: DriverServer, { limits, spareSockets }: ListenerSpec): void {
  const opened = (connection: DriverConnection) => {
    const peer = networkText(connection.getRemoteAddress());
    const release = limits.accepted(peer, spareSockets);
    // The connection must not be kept and closed later: with uWebSockets.js, closing it after its
    // first request could close another connection.
    if (release === undefined) connection.close();
    else connection.onAborted(release);
  };
  server.countConnections(opened, () => limits.closed());
}

/** Throws a RangeError for a value out of range. uWebSockets.js would end the process. */
function checkIdleTimeout({ sockets }: ListenerSpec): void {
  const seconds = sockets?.idleTimeoutS ?? MIN_IDLE_S;
  if (seconds < MIN_IDLE_S || seconds > MAX_IDLE_S)
    throw new RangeError(
      `The idle timeout must be ${MIN_IDLE_S} to ${MAX_IDLE_S} seconds, not ${seconds}`,
    );
}
