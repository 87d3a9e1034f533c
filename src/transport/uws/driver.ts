// Driver that uses uWebSockets.js, which does fan-out and parsing in C++. The library is imported
// only here, and only when the driver is loaded.

import type {
  AppOptions,
  HttpResponse,
  TemplatedApp,
  us_listen_socket,
  WebSocketBehavior,
} from "uWebSockets.js";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import type {
  Driver,
  DriverConnection,
  DriverHandler,
  DriverServer,
  SocketBehaviour,
  Tls,
} from "../driver.ts";

type Library = Pick<
  typeof import("uWebSockets.js"),
  "App" | "SSLApp" | "us_listen_socket_close" | "us_socket_local_port"
>;

const require = createRequire(import.meta.url);

const PINNED = "uWebSockets.js";

/**
 * Packages of the library: the newest release, which is used if it is installed and loads, and the
 * release in the lock file.
 */
const PACKAGES: readonly { readonly name: string; load(): Library | Promise<Library> }[] = [
  // `require` is used, because the package wraps a CommonJS module in an ES module. With `import`,
  // Node.js 20 ends the process if the binary does not load, even if the error is caught.
  { name: "@btc-vision/uwebsockets.js", load: () => require("@btc-vision/uwebsockets.js") },
  { name: PINNED, load: () => import("uWebSockets.js") },
];

/**
 * Flag for exclusive use of the port. Without it, two processes could listen on the same port and
 * share its connections.
 */
const EXCLUSIVE_PORT = 1;

const HEAD_VARIABLE = "UWS_HTTP_MAX_HEADERS_SIZE";
/**
 * The library's limit on the size of a request head, as a multiple of the driver's limit. If a head
 * exceeds the library's limit, the library itself replies in HTML, and no metric counts the reply.
 * If a head exceeds only the driver's limit, the transport refuses the request.
 */
const LIBRARY_LIMIT = 5 / 4;

/** Value of the Keep-Alive header. The library closes an idle connection after 8 to 12 s. */
const KEEP_ALIVE = "timeout=7";

/**
 * Loads the library. The first call in a process sets the library's maximum head size for the whole
 * process. Throws the error of the last package if no package loads.
 */
export async function loadUws(maxHeadBytes: number): Promise<Driver> {
  process.env[HEAD_VARIABLE] = String(Math.ceil(maxHeadBytes * LIBRARY_LIMIT));
  let failure: unknown;
  for (const { name, load } of PACKAGES)
    try {
      return createUwsDriver(await load(), { package: packageOf(name), maxHeadBytes });
    } catch (error) {
      failure = error;
    }
  throw failure;
}

/** Returns the real name and the version of the package that is installed under `name`. */
function packageOf(name: string): string {
  const file = name === PINNED ? import.meta.resolve(name) : pathToFileURL(require.resolve(name));
  for (let folder = new URL(".", file); ; folder = new URL("..", folder))
    try {
      const { name, version } = JSON.parse(readFileSync(new URL("package.json", folder), "utf8"));
      return `${name} ${version}`;
    } catch {
      if (folder.pathname === "/") return name; // the package has no package.json
    }
}

function createUwsDriver(
  library: Library,
  facts: { readonly package: string; readonly maxHeadBytes: number },
): Driver {
  return {
    name: "uws",
    library: facts.package,
    keepAlive: KEEP_ALIVE,
    reportsFirstRequests: false,
    maxHeadBytes: facts.maxHeadBytes,
    readsTrailers: false,
    createServer: (tls) => new UwsServer(library, tls),
  };
}

class UwsServer implements DriverServer {
  readonly #library: Library;
  readonly #app: TemplatedApp;
  #listenSocket: us_listen_socket | undefined;
  #closed: () => void = () => {};

  constructor(library: Library, tls: Tls | undefined) {
    this.#library = library;
    this.#app = tls === undefined ? library.App() : library.SSLApp(tlsOptions(tls));
  }

  get(pattern: string, handler: DriverHandler): void {
    this.#app.get(pattern, handler);
  }

  head(pattern: string, handler: DriverHandler): void {
    this.#app.head(pattern, handler);
  }

  post(pattern: string, handler: DriverHandler): void {
    this.#app.post(pattern, handler);
  }

  put(pattern: string, handler: DriverHandler): void {
    this.#app.put(pattern, handler);
  }

  patch(pattern: string, handler: DriverHandler): void {
    this.#app.patch(pattern, handler);
  }

  delete(pattern: string, handler: DriverHandler): void {
    this.#app.del(pattern, handler);
  }

  any(pattern: string, handler: DriverHandler): void {
    this.#app.any(pattern, handler);
  }

  serveSockets<Data>(behaviour: SocketBehaviour<Data>): void {
    const native: WebSocketBehavior<Data> = {
      compression: 0,
      maxPayloadLength: behaviour.maxFrameBytes,
      maxBackpressure: behaviour.maxUnreadBytes,
      closeOnBackpressureLimit: true,
      idleTimeout: behaviour.idleTimeoutS,
      sendPingsAutomatically: true,
      upgrade: (res, req, context) => behaviour.upgrade(res, req, context),
      open: (socket) => behaviour.open(socket),
      message: (socket, data, isBinary) => behaviour.message(socket, data, isBinary),
      drain: (socket) => behaviour.drain(socket),
      ping: (socket, data) => behaviour.ping(socket, data),
      dropped: (socket) => behaviour.dropped(socket),
      close: (socket, code) => {
        this.#closed(); // `filter` does not report the close of a client socket
        behaviour.close(socket, code);
      },
    };
    this.#app.ws<Data>("/*", native);
  }

  countConnections(opened: (connection: DriverConnection) => void, closed: () => void): void {
    this.#closed = closed;
    // This is not `Array.prototype.filter`: it registers a callback for connections that open or
    // close.
    const attach = this.#app.filter.bind(this.#app);
    // Newer releases of uWebSockets.js declare `change` as `Number` instead of `number`.
    attach((res: HttpResponse, change) => (Number(change) > 0 ? opened(res) : closed()));
  }

  /**
   * Does nothing, because the library itself reads heads and replies to heads that it cannot parse.
   */
  guardHeads(): void {}

  publish(topic: string, frame: Uint8Array | string, isBinary: boolean): void {
    this.#app.publish(topic, frame, isBinary);
  }

  numSubscribers(topic: string): number {
    return this.#app.numSubscribers(topic);
  }

  async listen(host: string, port: number): Promise<number | undefined> {
    // The library's function accepts options before its callback, but its types lack that form.
    const listen = this.#app.listen as unknown as (
      this: TemplatedApp,
      host: string,
      port: number,
      options: number,
      done: (socket: us_listen_socket | false) => void,
    ) => void;
    listen.call(this.#app, host, port, EXCLUSIVE_PORT, (socket) => {
      this.#listenSocket = socket || undefined;
    });
    if (this.#listenSocket === undefined) return undefined;
    return this.#library.us_socket_local_port(this.#listenSocket);
  }

  stopAccepting(): void {
    if (this.#listenSocket === undefined) return;
    this.#library.us_listen_socket_close(this.#listenSocket);
    this.#listenSocket = undefined;
  }

  close(): void {
    this.stopAccepting();
    this.#app.close();
  }
}

function tlsOptions({ files }: Tls): AppOptions {
  const { certFile, keyFile, caFile, passphrase } = files;
  return {
    cert_file_name: certFile,
    key_file_name: keyFile,
    ...(caFile ? { ca_file_name: caFile } : {}),
    ...(passphrase === undefined ? {} : { passphrase }),
  };
}
