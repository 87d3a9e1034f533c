// Interface of the transport: the HTTP and socket endpoints that other modules implement, and the
// connections they use. No type of uWebSockets.js appears here.

import type { Driver, HeadProblem, TlsFiles } from "./driver.ts";
import type { BodyBudget } from "./http-body.ts";
import type { SocketLimits } from "./socket-limits.ts";

/**
 * One HTTP call. `remoteAddress`, `scheme` and `isProxied` must be read before the first `await`.
 * All other fields can be read at any time.
 */
export interface HttpRequest {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  /**
   * The peer's address, or the address that a trusted proxy reports. Must be read before the first
   * `await`. If it is read for the first time after the end of the call, it is `""`.
   */
  readonly remoteAddress: string;
  /** Scheme of the URL that the client used, or that a trusted proxy reports. */
  readonly scheme: "http" | "https";
  /**
   * True if a PROXY protocol header with an address preceded the request. Must be read before the
   * first `await`.
   */
  readonly isProxied: boolean;
  /** Non-empty request headers that the endpoint or the route needs. */
  readonly headers: Readonly<Record<string, string>>;
  /** Values of the `:name` segments of the route's path, in order, percent-decoded. */
  readonly params: readonly string[];
  /** The whole body, empty for GET. The handler owns it. */
  readonly body: Uint8Array;
  /**
   * Calls `step` if the peer disconnects before the end of the reply, or at once if the peer has
   * already disconnected. Replaces an earlier `step`. Must be called before the reply.
   */
  onAborted(step: () => void): void;
}

export interface HttpReply {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string | Uint8Array;
}

/**
 * A reply with a streamed body. Its methods must not throw. A peer that reads nothing for 10 s
 * while bytes are waiting is dropped.
 */
export interface HttpStream {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /**
   * Non-empty piece that the peer ignores. If no other piece is queued, it is written after the
   * head and whenever the buffer has room again, because uWebSockets.js sends the rest of its
   * buffer only together with a write.
   */
  readonly filler: string;
  /** Called after the head has been written, unless the peer has disconnected. */
  opened(body: HttpBody): void;
  /** Called when there is room again after `write` returned false. */
  writable(): void;
  /** Called exactly once, even if `opened` was never called. */
  closed(): void;
}

/** The body of an open HttpStream. Methods have no effect after its end. */
export interface HttpBody {
  /**
   * Queues a piece for the end of the turn. The piece must not be empty. Returns false if the
   * caller should wait for `writable`. The piece is still queued in that case, unless the body has
   * ended.
   */
  write(piece: string): boolean;
  end(): void;
}

export interface HttpRoute {
  /** A GET route also serves HEAD, for which `handle` may omit the body. HEAD opens no stream. */
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Pattern. A last segment `*` matches one or more segments, which the handler reads itself. */
  readonly path: string;
  readonly headers?: readonly string[];
  /** True if the route needs no credential. The connection is then closed after the reply. */
  readonly isPublic?: boolean;
  readonly maxBodyBytes?: number;
  /** Checks the caller, before `body` is set. `undefined` admits the caller. Must not throw. */
  admit?(request: HttpRequest): HttpReply | undefined | Promise<HttpReply | undefined>;
  /** Handles the call. Must not throw or reject. */
  handle(request: HttpRequest): HttpReply | HttpStream | Promise<HttpReply | HttpStream>;
}

export interface HttpEndpoint {
  readonly routes: readonly HttpRoute[];
  /** Request headers that the handlers read, in lower case. */
  readonly headers: readonly string[];
  readonly maxBodyBytes: number;
  notFound(request: HttpRequest): HttpReply;
  wrongMethod(request: HttpRequest, allow: string): HttpReply;
  tooLarge(request: HttpRequest): HttpReply;
  malformed(problem: string): HttpReply;
  headTooLarge(): HttpReply;
  busy(): HttpReply;
}

/** One client socket. Methods have no effect after it has closed. */
export interface Connection {
  /** Number that is unique in the process and never reused. */
  readonly id: number;
  readonly remoteAddress: string;
  readonly listener: string;
  /** Counts the connection against the limits of `user` instead of its address's limits. */
  authenticated(user: string): void;
  /**
   * Queues one frame. The frames of an event-loop turn are passed to the driver together at the end
   * of the turn (see `TurnEnd`), and the frame must not be changed before that. A frame that is
   * sent while a frame of this connection is being received is passed to the driver at once. The
   * peer receives frames in this order:
   *
   * - Frames that are sent keep their order, and frames that are published keep theirs.
   * - A frame sent after a publish arrives after that publication.
   * - A frame sent before a `subscribe` arrives before all publications of the topic.
   * - A frame sent before a `flush` arrives before all later publications.
   * - Otherwise, a frame published in the same turn may arrive before a frame that was sent
   *   earlier.
   */
  send(frame: Uint8Array | string): void;
  /** Writes the queued frames without waiting for the end of the turn. */
  flush(): void;
  subscribe(topic: string): void;
  unsubscribe(topic: string): void;
  /** Publishes to all subscribers of `topic`, on all listeners, except this connection. */
  publish(topic: string, frame: Uint8Array | string): void;
  /** Returns the number of sent and published bytes that are still buffered in this process. */
  bufferedBytes(): number;
  /**
   * Sends the queued frames and then, over WebSocket, the close frame. Calls `closed` before it
   * returns. A peer that does not read the remaining bytes within a few seconds is dropped.
   */
  end(code: number, message: string): void;
}

export interface ConnectionHandler {
  /** Handles a frame. `data` is valid only during the call. Text is UTF-8. */
  received(data: Uint8Array, isText: boolean): void;
  /**
   * Called for a WebSocket ping with a payload of `bytes` bytes. The transport itself sends the
   * pong.
   */
  pinged(bytes: number): void;
  /** Called when the peer may have read bytes from a non-empty buffer. */
  drained(): void;
  /**
   * Called at the end of a turn if the peer has more than `lagBytes` unread bytes. Called again
   * only if the number of unread bytes has since fallen to half of `lagBytes` or less.
   */
  lagging(): void;
  /**
   * Called exactly once. Code 1006 means that the connection ended without a close frame, or that
   * the peer violated the protocol. For a slow reader, the code is that of `slowReader`, even if
   * the peer was dropped.
   */
  closed(code: number): void;
}

export interface Upgrade {
  readonly path: string;
  readonly origin: string;
  readonly subprotocols: readonly string[];
  readonly remoteAddress: string;
  /** Non-empty handshake headers that the endpoint needs. */
  readonly headers: Readonly<Record<string, string>>;
}

export interface SocketEndpoint {
  /** Handshake headers that `open` needs, in lower case. */
  readonly headers: readonly string[];
  /**
   * Maximum size of a frame. A larger frame ends the connection, with the code 1009 if possible.
   */
  readonly maxFrameBytes: number;
  /** Number of unread bytes above which a connection is closed with `slowReader`. */
  readonly maxBufferedBytes: number;
  /**
   * Number of unread bytes, summed over a user's connections, above which the connection with the
   * most unread bytes is dropped.
   */
  readonly maxBufferedBytesPerUser: number;
  readonly maxBufferedBytesTotal: number;
  /** Number of unread bytes above which a connection lags. Less than `maxBufferedBytes`. */
  readonly lagBytes: number;
  /** Seconds, from 8 to 960, after which a peer that sends neither data nor pongs is closed. */
  readonly idleTimeoutS: number;
  readonly slowReader: { readonly code: number; readonly message: string };
  accept(
    upgrade: Upgrade,
  ): { readonly status: number } | { readonly subprotocol: string | undefined };
  open(connection: Connection, upgrade: Upgrade): ConnectionHandler;
}

/**
 * Publishes to all subscribers of a topic on all listeners. With uWebSockets.js, no JavaScript runs
 * per receiver.
 */
export interface TopicPublisher {
  publish(topic: string, frame: Uint8Array | string): void;
}

export interface ListenerSpec {
  readonly driver: Driver;
  readonly host: string;
  /** Port to listen on. 0 selects a free port. */
  readonly port: number;
  readonly tls: TlsFiles | undefined;
  readonly http: HttpEndpoint | undefined;
  readonly limits: SocketLimits;
  readonly trustedProxies: readonly string[];
  readonly spareSockets: number;
  readonly bodies: BodyBudget;
  onHeadRefused(problem: HeadProblem): void;
  /** Reports a handler that threw or rejected although its contract forbids this. */
  onError(error: unknown, message: string): void;
}

/** Divides the bytes that a client sends on one connection into frames. */
export interface Framer {
  /**
   * Returns the frames that are complete after these bytes, in order. If the bytes after them are
   * not the start of a frame, or if the next frame is too large, the first of these bytes are
   * returned as the last item, which the owner of the connection must refuse. A frame is valid
   * until the next frame is read.
   */
  frames(bytes: Uint8Array): Iterable<Uint8Array>;
}

/** Listener for clients that send frames over TCP, without WebSocket. */
export interface TcpListenerSpec
  extends Pick<
    ListenerSpec,
    "host" | "port" | "tls" | "limits" | "trustedProxies" | "spareSockets" | "onError"
  > {
  /** Name of the listener, and of the subprotocol that its clients speak. */
  readonly name: string;
  /**
   * Seconds after which a peer that sends nothing is closed. Over TCP, the server sends no pings.
   */
  readonly idleTimeoutS: number;
  createFramer(): Framer;
}

export interface Listener {
  /**
   * Resolves to the port. Rejects if the listener cannot listen, or if it was started or closed
   * before.
   */
  start(): Promise<number>;
  /** Stops accepting connections. Open connections are kept. */
  stopAccepting(): void;
  /** Stops accepting connections and closes all open connections at once. Safe to call twice. */
  close(): void;
}
