// A listener: one address, and the HTTP and socket endpoints that are served on it. `stopAccepting`
// closes the listening socket; `close` also closes all connections.

import {
  App,
  type AppOptions,
  type HttpResponse,
  SSLApp,
  type TemplatedApp,
  type us_listen_socket,
  us_listen_socket_close,
  us_socket_local_port,
} from "uWebSockets.js";
import { networkText } from "./address.ts";
import { ClientAddresses } from "./client-addresses.ts";
import { refuseHttp, serveHttp } from "./http.ts";
import { tlsOptions, whyCannotListen } from "./listen-checks.ts";
import type { Listener, ListenerSpec, TopicPublisher } from "./types.ts";
import { serveSockets } from "./websocket.ts";

/** Exclusive use of the port. Without it, two processes can share a port's connections. */
const EXCLUSIVE_PORT = 1;
const MIN_IDLE_S = 8;
const MAX_IDLE_S = 960;

const CLOSE_TIMEOUT_MS = 5000;

/** Creates a listener, which does nothing until `start`. Only tests set `closeTimeoutMs`. */
export function createListener(
  spec: ListenerSpec,
  { closeTimeoutMs = CLOSE_TIMEOUT_MS }: { readonly closeTimeoutMs?: number } = {},
): Listener {
  const host = spec.host.replace(/^\[(.*)\]$/, "$1");
  let status: "new" | "starting" | "listening" | "stopped" | "closed" = "new";
  let app: TemplatedApp | undefined;
  let listenSocket: us_listen_socket | undefined;
  let sockets: TopicPublisher | undefined;

  function mount(options: AppOptions | undefined): TemplatedApp {
    const mounted = options === undefined ? App() : SSLApp(options);
    countConnections(mounted, spec);
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
    const options = spec.tls && (await tlsOptions(spec.tls));
    if (isClosed()) throw new Error("The listener was closed while it was starting");
    spec.limits.start();
    app = mount(options);
    listenSocket = listen(app, host, spec.port);
    if (listenSocket === undefined) {
      close();
      throw await whyCannotListen(host, spec.port);
    }
    status = "listening";
    return us_socket_local_port(listenSocket);
  }

  function isClosed(): boolean {
    return status === "closed";
  }

  function stopAccepting(): void {
    if (listenSocket === undefined) return;
    us_listen_socket_close(listenSocket);
    listenSocket = undefined;
    status = "stopped";
  }

  function close(): void {
    if (status === "closed") return;
    stopAccepting();
    status = "closed";
    app?.close();
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

function countConnections(app: TemplatedApp, { limits, spareSockets }: ListenerSpec): void {
  const opened = (res: HttpResponse) => {
    const peer = networkText(res.getRemoteAddress());
    const release = limits.accepted(peer, spareSockets);
    // The response must not be kept and closed later: after the first request, closing it could
    // close another connection.
    if (release === undefined) res.close();
    else res.onAborted(release); // called only if the connection closes before its first request
  };
  // This is not `Array.prototype.filter`: it registers a callback for connections that open or
  // close.
  const attach = app.filter.bind(app);
  // Newer releases of uWebSockets.js declare `change` as `Number` instead of `number`.
  attach((res, change) => (Number(change) > 0 ? opened(res) : limits.closed()));
}

function listen(app: TemplatedApp, host: string, port: number): us_listen_socket | undefined {
  let listening: us_listen_socket | undefined;
  // The native function accepts options before its callback, but its types lack that form.
  const native = app.listen as unknown as (
    this: TemplatedApp,
    host: string,
    port: number,
    options: number,
    done: (socket: us_listen_socket | false) => void,
  ) => void;
  native.call(app, host, port, EXCLUSIVE_PORT, (socket) => {
    listening = socket || undefined;
  });
  return listening;
}

/** Throws a RangeError for a value out of range. uWebSockets.js would end the process. */
function checkIdleTimeout({ sockets }: ListenerSpec): void {
  const seconds = sockets?.idleTimeoutS ?? MIN_IDLE_S;
  if (seconds < MIN_IDLE_S || seconds > MAX_IDLE_S)
    throw new RangeError(
      `The idle timeout must be ${MIN_IDLE_S} to ${MAX_IDLE_S} seconds, not ${seconds}`,
    );
}
