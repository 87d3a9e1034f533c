// Interface of a driver: the objects through which the transport uses a network library. Their
// methods are those of uWebSockets.js that the transport needs, so that the library's objects can
// be used without a wrapper for each request and frame.

export interface Driver {
  readonly name: "uws" | "portable";
  /** Name and version of the library, for the log and the metrics. */
  readonly library: string;
  /**
   * Value of the Keep-Alive header, or `undefined` if the driver adds the header itself. A driver
   * with a value must write the value without checks, because the transport appends the lines of
   * other headers to the value.
   */
  readonly keepAlive: string | undefined;
  /**
   * True if the driver reports the first request of each connection. uWebSockets.js does not,
   * because it does not reveal which connection sent a request.
   */
  readonly reportsFirstRequests: boolean;
  /** Maximum size of a request's head. A driver may accept heads that are slightly larger. */
  readonly maxHeadBytes: number;
  /** True if the driver reads the trailer of a chunked body as part of the request. */
  readonly readsTrailers: boolean;
  createServer(tls: Tls | undefined): DriverServer;
}

export interface TlsFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /**
   * Certificate authorities. A client certificate from any other authority is refused, but a client
   * without a certificate is accepted. uWebSockets.js cannot require a certificate, so this setting
   * does not control access.
   */
  readonly caFile: string | undefined;
  readonly passphrase: string | undefined;
}

export interface Tls {
  readonly files: TlsFiles;
  readonly cert: Buffer;
  readonly key: Buffer;
  readonly ca: Buffer | undefined;
}

/** One listening address. Routes, sockets and guards must be registered before `listen`. */
export interface DriverServer {
  get(pattern: string, handler: DriverHandler): unknown;
  head(pattern: string, handler: DriverHandler): unknown;
  post(pattern: string, handler: DriverHandler): unknown;
  put(pattern: string, handler: DriverHandler): unknown;
  patch(pattern: string, handler: DriverHandler): unknown;
  delete(pattern: string, handler: DriverHandler): unknown;
  any(pattern: string, handler: DriverHandler): unknown;
  /** Serves upgrade requests on every path. */
  serveSockets<Data>(behaviour: SocketBehaviour<Data>): void;
  /**
   * Calls `opened` for each accepted connection and `closed` when it closes. If `opened` passes a
   * handler to `onAborted`, the handler is called once: when the connection closes before its first
   * request, or when its first request arrives. A driver that does not report first requests calls
   * the handler only in the first case. A connection that does not send a request is closed.
   * uWebSockets.js closes it within 12 s. The portable driver closes it if the first bytes, the TLS
   * handshake or the head takes longer than 10 s.
   */
  countConnections(opened: (connection: DriverConnection) => void, closed: () => void): void;
  /** Sets the guard for heads that are being received. Has no effect on uWebSockets.js. */
  guardHeads(guard: HeadGuard): void;
  publish(topic: string, frame: Uint8Array | string, isBinary: boolean): unknown;
  numSubscribers(topic: string): number;
  /** Resolves to the port, or to `undefined` if the address cannot be used. */
  listen(host: string, port: number): Promise<number | undefined>;
  stopAccepting(): void;
  /** Closes all connections. Their close events happen before the method returns. */
  close(): void;
}

export type HeadProblem = "malformed" | "too_large" | "no_room";

/** Memory budget for heads that are being received. Also returns the replies to refused heads. */
export interface HeadGuard {
  reserve(bytes: number): boolean;
  release(bytes: number): void;
  refuse(problem: HeadProblem): HeadRefusal;
}

export interface HeadRefusal {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string | Uint8Array;
}

export type DriverHandler = (res: DriverResponse, req: DriverRequest) => void;

export type DriverConnection = Pick<DriverResponse, "getRemoteAddress" | "onAborted" | "close">;

/** Head of a request. Valid only while the handler runs. */
export interface DriverRequest {
  getUrl(): string;
  /** Returns `undefined` or `""` if there is no query. */
  getQuery(): string | undefined;
  getCaseSensitiveMethod(): string;
  getParameter(index: number): string | undefined;
  /** Calls `record` for each header in the order of the request. Names are in lower case. */
  forEach(record: (name: string, value: string) => void): void;
  /** Returns true for an HTTP/1.0 request, which does not require a Host header. */
  isHttp10?(): boolean;
}

/**
 * Response to one request. Must not be used after it has ended, after the connection was aborted,
 * or after `upgrade` was called.
 */
export interface DriverResponse {
  /** Returns 4 or 16 bytes, or no bytes if the address is unknown. */
  getRemoteAddress(): ArrayBuffer;
  /** Returns the address in the PROXY header, in the form of `getRemoteAddress`. */
  getProxiedRemoteAddress(): ArrayBuffer;
  /** Runs `step`, and sends its writes together. */
  cork(step: () => void): unknown;
  /** Calls `handler` if the connection closes before the response has ended. */
  onAborted(handler: () => void): unknown;
  /**
   * Calls `handler` with each chunk, and once with `isLast` when the body is complete. A chunk is
   * valid only during the call.
   */
  onData(handler: (chunk: ArrayBuffer | Uint8Array, isLast: boolean) => void): unknown;
  /** Calls `handler` when there is room again after `write` returned false. */
  onWritable(handler: (offset: number) => boolean): unknown;
  writeStatus(status: string): unknown;
  writeHeader(name: string, value: string): unknown;
  write(piece: string): boolean;
  end(body?: string | Uint8Array, closesConnection?: boolean): unknown;
  endWithoutBody(): unknown;
  close(): unknown;
  /** Accepts the WebSocket handshake. Calls `open` of the behaviour before it returns. */
  upgrade<Data>(
    data: Data,
    key: string,
    subprotocol: string,
    extensions: string,
    context: UpgradeContext,
  ): void;
}

/** Value that `SocketBehaviour.upgrade` passes to `DriverResponse.upgrade`. */
type UpgradeContext = object;

export interface DriverSocket<Data> {
  getUserData(): Data;
  send(frame: Uint8Array | string, isBinary: boolean): unknown;
  /** Returns the number of sent bytes that are still buffered in this process. */
  getBufferedAmount(): number;
  cork(step: () => void): unknown;
  subscribe(topic: string): unknown;
  unsubscribe(topic: string): boolean;
  getTopics(): string[];
  /** Publishes to all other subscribers. */
  publish(topic: string, frame: Uint8Array | string, isBinary: boolean): unknown;
  /**
   * Closes the connection, with a close frame on a WebSocket. The close event happens before the
   * method returns.
   */
  end(code: number, message: string): void;
  /**
   * Closes the connection without a close frame. The close event happens before the method returns.
   */
  close(): unknown;
}

export interface SocketBehaviour<Data> {
  readonly maxFrameBytes: number;
  /** Number of unread bytes above which frames are dropped and `dropped` is called. */
  readonly maxUnreadBytes: number;
  readonly idleTimeoutS: number;
  upgrade(res: DriverResponse, req: DriverRequest, context: UpgradeContext): void;
  open(socket: DriverSocket<Data>): void;
  /** Handles a frame. `data` is valid only during the call. */
  message(socket: DriverSocket<Data>, data: ArrayBuffer | Uint8Array, isBinary: boolean): void;
  drain(socket: DriverSocket<Data>): void;
  ping(socket: DriverSocket<Data>, data: { readonly byteLength: number }): void;
  dropped(socket: DriverSocket<Data>): void;
  /** Called once. `code` is 1006 if the peer sent no close frame. */
  close(socket: DriverSocket<Data>, code: number): void;
}

/** Matches the 16 bytes of a client's Sec-WebSocket-Key in Base64 [RFC 6455 4.1]. */
export const HANDSHAKE_KEY = /^[+/0-9A-Za-z]{22}==$/;

/** Returns the bytes without copying them. */
export function bytesOf(data: ArrayBuffer | Uint8Array): Uint8Array {
  return data instanceof Uint8Array ? data : new Uint8Array(data);
}
