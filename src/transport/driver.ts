// Interface of a driver: the objects through which the transport uses a network library. Their
// methods are those of uWebSockets.js that the transport needs, so that its objects need no
// wrapper for each request and frame.

export interface Driver {
  readonly name: "uws" | "portable";
  /** Name and version of the library, for the log and the metrics. */
  readonly library: string;
  /** Value of the header Keep-Alive, `undefined` if the driver sends it by itself. */
  readonly keepAlive: string | undefined;
  createServer(tls: Tls | undefined): DriverServer;
}

export interface TlsFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /**
   * Certificate authorities. A client certificate of others is refused, but a client without one is
   * accepted: uWebSockets.js cannot require one, so this does not control access.
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

/** One listening address. Everything is registered before `listen`. */
export interface DriverServer {
  get(pattern: string, handler: DriverHandler): unknown;
  head(pattern: string, handler: DriverHandler): unknown;
  post(pattern: string, handler: DriverHandler): unknown;
  any(pattern: string, handler: DriverHandler): unknown;
  /** Serves upgrade requests of every path. */
  serveSockets<Data>(behaviour: SocketBehaviour<Data>): void;
  /**
   * Calls `opened` for each accepted connection and `closed` when it closes. A handler passed to
   * `onAborted` by `opened` is called only if it closes before its first request.
   */
  countConnections(opened: (connection: DriverConnection) => void, closed: () => void): void;
  /** Sets the replies to heads that cannot be parsed. Without effect if the library has its own. */
  refuseHeads(reply: (problem: HeadProblem) => HeadRefusal): void;
  publish(topic: string, frame: Uint8Array | string, isBinary: boolean): unknown;
  numSubscribers(topic: string): number;
  /** Resolves to the port, or to `undefined` if the address cannot be used. */
  listen(host: string, port: number): Promise<number | undefined>;
  stopAccepting(): void;
  /** Closes all connections. Their close events happen before the method returns. */
  close(): void;
}

export type HeadProblem = "malformed" | "too_large";

export interface HeadRefusal {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string | Uint8Array;
}

export type DriverHandler = (res: DriverResponse, req: DriverRequest) => void;

export type DriverConnection = Pick<DriverResponse, "getRemoteAddress" | "onAborted" | "close">;

/** Head of a request. Valid only during the handler. */
export interface DriverRequest {
  getUrl(): string;
  /** Returns `undefined` or `""` if there is no query. */
  getQuery(): string | undefined;
  getCaseSensitiveMethod(): string;
  getParameter(index: number): string | undefined;
  /** Calls `record` for each header in the order of the request. Names are in lower case. */
  forEach(record: (name: string, value: string) => void): void;
  /** True if the request is older than HTTP/1.1, which requires a Host header. */
  isHttp10?(): boolean;
}

/** Response to one request. Must not be touched after its end, its abort or its upgrade. */
export interface DriverResponse {
  /** Returns 4 or 16 bytes. Returns no bytes if the address is unknown. */
  getRemoteAddress(): ArrayBuffer;
  /** Returns the address in the PROXY header in the same form. */
  getProxiedRemoteAddress(): ArrayBuffer;
  /** Runs `step`, whose writes are sent together. */
  cork(step: () => void): unknown;
  /** Called if the connection closes before the end of the response. */
  onAborted(handler: () => void): unknown;
  /**
   * Calls `handler` with each chunk, which is valid only during the call, and once with `isLast` if
   * the body is complete.
   */
  onData(handler: (chunk: ArrayBuffer | Uint8Array, isLast: boolean) => void): unknown;
  /** Called when there is room again after `write` returned false. */
  onWritable(handler: (offset: number) => boolean): unknown;
  writeStatus(status: string): unknown;
  writeHeader(name: string, value: string): unknown;
  write(piece: string): boolean;
  end(body?: string | Uint8Array, closesConnection?: boolean): unknown;
  endWithoutBody(): unknown;
  close(): unknown;
  /** Accepts the WebSocket handshake. `open` of the behaviour is called before it returns. */
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
  /** Returns the number of bytes that were sent and that the peer has not read yet. */
  getBufferedAmount(): number;
  cork(step: () => void): unknown;
  subscribe(topic: string): unknown;
  unsubscribe(topic: string): boolean;
  getTopics(): string[];
  /** Publishes to all other subscribers. */
  publish(topic: string, frame: Uint8Array | string, isBinary: boolean): unknown;
  /** Sends a close frame. The close event happens before the method returns. */
  end(code: number, message: string): void;
  /** Closes the connection without a close frame. The close event happens before it returns. */
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

/** Returns the bytes without a copy. */
export function bytesOf(data: ArrayBuffer | Uint8Array): Uint8Array {
  return data instanceof Uint8Array ? data : new Uint8Array(data);
}
