// Interface of the transport: the HTTP and socket endpoints that other rooms implement, and the
// connections they get. No type of uWebSockets.js appears here.

import type { BodyBudget } from "./http-body.ts";
import type { SocketLimits } from "./socket-limits.ts";

/** One HTTP call, copied out of the socket: safe to keep across an await. */
export interface HttpRequest {
  readonly method: string;
  readonly path: string;
  /** The raw query string without `?`. */
  readonly query: string;
  /**
   * The peer's address as text. Read it before the first await: it is looked up on the first read,
   * because that costs as much as the rest of the call, and is "" after the call's end.
   */
  readonly remoteAddress: string;
  /** The headers named in `HttpEndpoint.headers` and `HttpRoute.headers`; "" when absent. */
  readonly headers: Readonly<Record<string, string>>;
  /** Values of the `:name` parts of the route's path, in order, percent-decoded. */
  readonly params: readonly string[];
  /** The whole body; empty for GET. Owned by the receiver. */
  readonly body: Uint8Array;
}

export interface HttpReply {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string | Uint8Array;
}

/**
 * A reply with a streamed body. Its methods must not throw. A peer that reads nothing for 10 s
 * while bytes wait is dropped.
 */
export interface HttpStream {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /**
   * A piece without meaning, not empty: a connection that has room again drains on a write only.
   */
  readonly filler: string;
  /** The head is sent, with what is written in this call. Not called when the peer is gone. */
  opened(body: HttpBody): void;
  /** There is room again after a write returned false. */
  writable(): void;
  /** Called exactly once, also when it was never opened. */
  closed(): void;
}

/** The body of an open HttpStream. Methods have no effect after its end. */
export interface HttpBody {
  /** Queues a piece, not empty; a loop turn is one write. False: queued, wait for `writable`. */
  write(piece: string): boolean;
  /** Ends the reply after the queued pieces. */
  end(): void;
}

export interface HttpRoute {
  readonly method: "GET" | "POST";
  /** Exact path, or with `:name` parts. */
  readonly path: string;
  /** Request headers that it reads beside those of the endpoint, lower case. */
  readonly headers?: readonly string[];
  /** Needs no credential: the connection counts as unauthenticated and closes with the answer. */
  readonly isPublic?: boolean;
  /** A lower limit than the endpoint's. */
  readonly maxBodyBytes?: number;
  /**
   * Checks the caller by the headers, before the body: the reply to a refused call, or undefined.
   * Absent: all are admitted. Must not throw or reject. A refused call's connection is closed.
   */
  admit?(request: HttpRequest): HttpReply | undefined | Promise<HttpReply | undefined>;
  /** Must not throw or reject. */
  handle(request: HttpRequest): HttpReply | HttpStream | Promise<HttpReply | HttpStream>;
}

/** What a listener serves over HTTP. */
export interface HttpEndpoint {
  readonly routes: readonly HttpRoute[];
  /** Request headers the handlers read, lower case. */
  readonly headers: readonly string[];
  /** Larger bodies are not buffered and answered with `tooLarge`. */
  readonly maxBodyBytes: number;
  notFound(request: HttpRequest): HttpReply;
  /** `allow` is the value of the Allow header, e.g. "POST". */
  wrongMethod(request: HttpRequest, allow: string): HttpReply;
  tooLarge(request: HttpRequest): HttpReply;
  /** The head is ambiguous or its host invalid; `problem` is an error message. Closes. */
  malformed(problem: string): HttpReply;
  /** The partial bodies of all calls have used up their budget. */
  busy(request: HttpRequest): HttpReply;
}

/** One client socket. Methods have no effect after it closed. */
export interface Connection {
  /** Unique in the process, never reused. */
  readonly id: number;
  readonly remoteAddress: string;
  /** The peer is authenticated and no longer counts against its address. Safe to call again. */
  authenticated(): void;
  /**
   * Queues one frame. A loop turn is one write: until it ends the frame must not be changed. Order
   * for this receiver: sent frames among themselves; published frames among themselves; a frame
   * sent after a publish comes after it; a frame sent before a `subscribe` comes before the topic's
   * publications. A frame published in the same turn may overtake one sent before.
   */
  send(frame: Uint8Array | string): void;
  subscribe(topic: string): void;
  unsubscribe(topic: string): void;
  /** Publishes to all subscribers of `topic` on this listener except this connection. */
  publish(topic: string, frame: Uint8Array | string): void;
  /** Bytes accepted by `send` and not yet read by the peer. */
  bufferedBytes(): number;
  /**
   * Sends the queue, then the close frame. The owner's `closed` runs before this returns. A peer
   * that does not read the rest within a few seconds is dropped.
   */
  end(code: number, message: string): void;
}

/** Events of one connection, for its owner. */
export interface ConnectionHandler {
  /** `data` is valid during the call only: copy what is kept. `isText`: a text frame, as UTF-8. */
  received(data: Uint8Array, isText: boolean): void;
  /** Bytes left a non-empty buffer; may be called when none did. */
  drained(): void;
  /**
   * The peer has more than `lagBytes` unread. Called at the end of the turn, and again only after
   * they had fallen to half of that.
   */
  lagging(): void;
  /**
   * Called exactly once, for every close. 1006: the peer vanished or violated the protocol. The
   * slow reader's code also when it was dropped.
   */
  closed(code: number): void;
}

export interface Upgrade {
  readonly path: string;
  readonly origin: string;
  /** Names offered in Sec-WebSocket-Protocol, in order. */
  readonly subprotocols: readonly string[];
  readonly remoteAddress: string;
}

/** What a listener serves to client sockets, on any path. */
export interface SocketEndpoint {
  /** A longer frame is a protocol violation: the connection is closed. */
  readonly maxFrameBytes: number;
  /** A connection with more unread bytes is closed with `slowReader`. */
  readonly maxBufferedBytes: number;
  /** A connection with more unread bytes lags; less than maxBufferedBytes. */
  readonly lagBytes: number;
  /** A peer that is silent for longer, pongs included, is closed. Seconds, 8–960. */
  readonly idleTimeoutS: number;
  readonly slowReader: { readonly code: number; readonly message: string };
  /** Refuse with an HTTP status, or accept, optionally naming the chosen subprotocol. */
  accept(
    upgrade: Upgrade,
  ): { readonly status: number } | { readonly subprotocol: string | undefined };
  open(connection: Connection, upgrade: Upgrade): ConnectionHandler;
}

/** Publishes to all subscribers of a topic on a listener; no JavaScript runs per receiver. */
export interface TopicPublisher {
  publish(topic: string, frame: Uint8Array | string): void;
}

export interface TlsFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /**
   * Client certificates not signed by these authorities are refused. A client without a certificate
   * is accepted (uWebSockets.js cannot require one), so this is not access control.
   */
  readonly caFile: string | undefined;
  readonly passphrase: string | undefined;
}

export interface ListenerSpec {
  readonly host: string;
  /** 0 picks a free port. */
  readonly port: number;
  readonly tls: TlsFiles | undefined;
  readonly http: HttpEndpoint | undefined;
  readonly sockets: SocketEndpoint | undefined;
  /** Shared by the listeners of a node. */
  readonly limits: SocketLimits;
  /** Sockets left free for the other listener. */
  readonly spareSockets: number;
  /** For partial bodies; shared by the listeners of a node. */
  readonly bodies: BodyBudget;
  /**
   * A handler threw or rejected against its contract. The call was answered with a bare 500, or the
   * connection closed with 1011.
   */
  onError(error: unknown, where: string): void;
}

export interface Listener extends TopicPublisher {
  /** Resolves with its port. Rejects when it cannot listen on the address. */
  start(): Promise<number>;
  /** Open connections are kept. */
  stopAccepting(): void;
  /** Closes all connections at once. Safe to call twice. */
  close(): void;
}
