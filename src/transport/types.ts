// What other rooms see of the transport: HTTP endpoints and socket endpoints they hand in, connections they are handed.
// No type of uWebSockets.js appears here, so nothing outside this room can depend on it.

import type { BodyBudget } from "./body-budget.ts";
import type { SocketLimits } from "./socket-limits.ts";

/** One HTTP call, copied out of the socket: safe to keep across an await. */
export interface HttpRequest {
  readonly method: string;
  readonly path: string;
  /** The raw query string without `?`. */
  readonly query: string;
  /**
   * Textual address of the peer. Looked up when first read, because that costs as much as the rest of the call together: read it before the
   * first await. Once the peer is gone or answered, an address that was never read is "".
   */
  readonly remoteAddress: string;
  /** Only headers named in `HttpEndpoint.headers` and `HttpRoute.headers` are kept; names are lower case, an absent one is "". */
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
 * A reply whose body comes piece by piece for as long as it takes. None of its methods may throw. A peer that takes nothing for 10 s although
 * something waits for it is cut off.
 */
export interface HttpStream {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** A piece that says nothing, not empty. It is written when a full connection has room again: what waits there only moves with a write. */
  readonly filler: string;
  /** The head goes out, with what is written in here. Not called when the peer went before. */
  opened(body: HttpBody): void;
  /** After a write that answered false: there is room again. */
  writable(): void;
  /** Exactly once, whoever ended it, also when it was never opened. */
  closed(): void;
}

/** Where an open HttpStream writes. Methods are harmless after its end. */
export interface HttpBody {
  /** Queues one piece, not empty; the pieces of one loop turn leave in one write. False: taken, but no more until `writable`. */
  write(piece: string): boolean;
  /** Ends the reply behind what was written. */
  end(): void;
}

export interface HttpRoute {
  readonly method: "GET" | "POST";
  /** Exact path, or with `:name` parts. */
  readonly path: string;
  /** Request headers it reads beside those of the endpoint, lower case. */
  readonly headers?: readonly string[];
  /** Anyone may call it: the connection closes with the answer, so that it counts as unauthenticated no longer than the call takes. */
  readonly isPublic?: boolean;
  /** A lower limit than the endpoint's. */
  readonly maxBodyBytes?: number;
  /**
   * Judges who calls, by the headers, before any of the body is waited for: the reply that refuses the call, or undefined. Absent: all may.
   * Must not throw and must not reject. A refused call's connection is closed.
   */
  admit?(
    request: HttpRequest,
  ): HttpReply | undefined | Promise<HttpReply | undefined>;
  /** Must not throw and must not reject. */
  handle(
    request: HttpRequest,
  ): HttpReply | HttpStream | Promise<HttpReply | HttpStream>;
}

/** Everything one listener serves over HTTP. */
export interface HttpEndpoint {
  readonly routes: readonly HttpRoute[];
  /** Request headers the handlers read, lower case. */
  readonly headers: readonly string[];
  /** Larger bodies are answered with `tooLarge` without being buffered. */
  readonly maxBodyBytes: number;
  notFound(request: HttpRequest): HttpReply;
  /** `allow` is the value of the Allow header, e.g. "POST". */
  wrongMethod(request: HttpRequest, allow: string): HttpReply;
  tooLarge(request: HttpRequest): HttpReply;
  /** The head of a request is ambiguous or names no valid host; `problem` is a sentence. The connection is closed. */
  malformed(problem: string): HttpReply;
  /** The half-received bodies of all calls take all there is for them. */
  busy(request: HttpRequest): HttpReply;
}

/** One client socket. Methods are harmless after it closed. */
export interface Connection {
  /** Unique in the process, never reused. */
  readonly id: number;
  readonly remoteAddress: string;
  /** The peer has shown who it is: from now on the socket does not count against its address. Safe to call again. */
  authenticated(): void;
  /**
   * Queues one frame. Frames of one loop turn leave in one write, so until the turn ends the frame must not be changed.
   * Order for this receiver: sent frames among themselves; published frames among themselves; a frame sent after a publish comes after it;
   * a frame sent before a `subscribe` comes before everything published to that topic. A frame published later in the same turn than a
   * sent one may overtake it.
   */
  send(frame: Uint8Array | string): void;
  /** From now on gets what is published under `topic`. */
  subscribe(topic: string): void;
  unsubscribe(topic: string): void;
  /** Publishes to all subscribers of `topic` on this listener but this connection, which need not be one. */
  publish(topic: string, frame: Uint8Array | string): void;
  /** Bytes accepted by `send` and not yet taken by the peer. */
  bufferedBytes(): number;
  /**
   * Sends what is queued, then the close frame. The owner's `closed` runs before this returns. A peer that does not read what is left within
   * a few seconds is cut off.
   */
  end(code: number, message: string): void;
}

/** The life of one connection, as its owner sees it. */
export interface ConnectionHandler {
  /** `data` is only valid during the call: copy what is kept. `isText` tells a text frame (string payload as UTF-8). */
  received(data: Uint8Array, isText: boolean): void;
  /** Bytes left the buffer after it had been non-empty; may come when none did. */
  drained(): void;
  /**
   * More than `lagBytes` wait to be read by the peer. Told once, at the end of the turn in which that was found; again only after they had
   * fallen to half of that.
   */
  lagging(): void;
  /** Called exactly once, whoever closed it. 1006: the peer vanished or broke the protocol; the slow reader's code also when it was cut off. */
  closed(code: number): void;
}

export interface Upgrade {
  readonly path: string;
  readonly origin: string;
  /** Names offered in Sec-WebSocket-Protocol, in order. */
  readonly subprotocols: readonly string[];
  readonly remoteAddress: string;
}

/** Everything one listener serves to client sockets (on any path). */
export interface SocketEndpoint {
  /** Frames above are a protocol violation: the connection is closed. */
  readonly maxFrameBytes: number;
  /** Above so many unread bytes a connection is closed with `slowReader`. */
  readonly maxBufferedBytes: number;
  /** Above so many unread bytes, fewer than maxBufferedBytes, the owner of a connection is told that it lags. */
  readonly lagBytes: number;
  /** A peer that neither sends nor answers pings for so long is closed. Seconds, 8–960. */
  readonly idleTimeoutS: number;
  readonly slowReader: { readonly code: number; readonly message: string };
  /** Refuse with an HTTP status, or accept, optionally naming the chosen subprotocol. */
  accept(
    upgrade: Upgrade,
  ): { readonly status: number } | { readonly subprotocol: string | undefined };
  open(connection: Connection, upgrade: Upgrade): ConnectionHandler;
}

/** Publishes to every connection of a listener that subscribed to `topic`; costs no JavaScript per receiver. */
export interface TopicPublisher {
  publish(topic: string, frame: Uint8Array | string): void;
}

export interface TlsFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /**
   * A client certificate that none of these authorities signed is refused. A client without any certificate still gets in (uWebSockets.js
   * cannot insist on one), so this is no access control.
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
  /** Which connections are taken; listeners of a node share it. */
  readonly limits: SocketLimits;
  /** Sockets that this listener leaves free for the other one. */
  readonly spareSockets: number;
  /** For half-received bodies; listeners of a node share it. */
  readonly bodies: BodyBudget;
  /** A handler threw or rejected against its contract: a bug. The call was answered with a bare 500, the connection closed with 1011. */
  onError(error: unknown, where: string): void;
}

export interface Listener extends TopicPublisher {
  /** The port it listens on. Rejects with a sentence when the address cannot be had. */
  start(): Promise<number>;
  /** Stops accepting; open connections go on. */
  stopAccepting(): void;
  /** Closes everything at once. Safe to call twice. */
  close(): void;
}
