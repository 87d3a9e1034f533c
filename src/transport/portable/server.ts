// One listening address of the portable driver: `node:http` parses requests, and `ws` serves client
// sockets. State: the open connections, responses and sockets of the address.

import {
  createServer,
  type IncomingMessage,
  type Server,
  type ServerOptions,
  ServerResponse,
} from "node:http";
import type { Socket } from "node:net";
import { Server as TcpServer } from "node:net";
import { type ServerOptions as SocketOptions, WebSocketServer } from "ws";
import {
  type DriverConnection,
  type DriverHandler,
  type DriverServer,
  HANDSHAKE_KEY,
  type HeadGuard,
  type SocketBehaviour,
  type Tls,
} from "../driver.ts";
import { readProxyHeader } from "../first-bytes.ts";
import { listenOn } from "../listen-on.ts";
import { parseProxyHeader } from "../proxy-header.ts";
import { TlsHandshakes } from "../tls-handshakes.ts";
import { Topics } from "../topics.ts";
import { TurnEnd } from "../turn-end.ts";
import { PortableConnection } from "./connection.ts";
import { encodeFrame } from "./frames.ts";
import { PortableRequest } from "./request.ts";
import { PortableResponse } from "./response.ts";
import { Routes } from "./routes.ts";
import { PortableSocket } from "./socket.ts";

/**
 * Time limit for each of the following: the first bytes, the TLS handshake, and a complete request
 * head.
 */
const HEAD_MS = 10_000;
/**
 * Time for which idle connections are kept. It is longer than the time for which load balancers and
 * connection pools keep them.
 */
const KEEP_ALIVE_MS = 75_000;
const TICK_MS = 1000;
/** Time within which a peer must reply to a close frame. */
const CLOSE_TIMEOUT_MS = 5000;

const UPGRADE = {};
type SocketListener = (this: Server, socket: Socket) => void;

export class PortableServer implements DriverServer {
  readonly #http: Server;
  readonly #tls: TlsHandshakes<PortableConnection> | undefined;
  readonly #parse: SocketListener;
  readonly #routes = new Routes();
  readonly #topics = new Topics(encodeFrame);
  readonly #turnEnd = new TurnEnd();
  readonly #connections = new Set<PortableConnection>();
  /** Connections by the stream that Node.js parses. */
  readonly #byStream = new WeakMap<object, PortableConnection>();
  readonly #greeting = new Set<PortableConnection>();
  readonly #responses = new Set<PortableResponse>();
  readonly #sockets = new Set<{ tick(): void; close(): void }>();
  #opened: (connection: DriverConnection) => void = () => {};
  #closed: () => void = () => {};
  #heads: HeadGuard = {
    reserve: () => true,
    release: () => {},
    refuse: () => ({ status: 400, body: "" }),
  };
  #servesSockets = false;
  #ticks: NodeJS.Timeout | undefined;

  constructor(tls: Tls | undefined, maxHeadBytes: number) {
    // The types of Node.js 20 lack `shouldUpgradeCallback`, and Node.js before 24.9 ignores it.
    const options: ServerOptions & {
      readonly shouldUpgradeCallback: (req: IncomingMessage) => boolean;
    } = {
      shouldUpgradeCallback: (req) => this.#servesSockets && isHandshake(req),
      maxHeaderSize: maxHeadBytes,
      headersTimeout: HEAD_MS,
      keepAliveTimeout: KEEP_ALIVE_MS,
      connectionsCheckingInterval: TICK_MS,
      requireHostHeader: false,
    };
    this.#http = createServer(options);
    this.#http.maxHeadersCount = 0; // headers above the limit would be ignored
    const [parse] = this.#http.listeners("connection");
    this.#http.removeAllListeners("connection");
    this.#parse = parse as SocketListener;
    this.#http.on("connection", (socket: Socket) => this.#accepted(socket));
    this.#http.on("request", (req, res) => this.#requested(req, res, false));
    this.#http.on("checkExpectation", (req, res) => this.#requested(req, res, false));
    this.#http.on("connect", (req: IncomingMessage) => this.#malformed(req.socket));
    this.#http.on("checkContinue", (req, res) => this.#requested(req, res, true));
    this.#http.on("clientError", (error: NodeJS.ErrnoException, stream) =>
      this.#refuse(error, stream),
    );
    const secured = (connection: PortableConnection, stream: Socket) => {
      connection.secured(stream);
      this.#serve(connection, stream);
    };
    this.#tls = tls && new TlsHandshakes(tls, { timeoutMs: HEAD_MS, alpn: ["http/1.1"], secured });
  }

  get(pattern: string, handler: DriverHandler): void {
    this.#routes.add("GET", pattern, handler);
  }

  head(pattern: string, handler: DriverHandler): void {
    this.#routes.add("HEAD", pattern, handler);
  }

  post(pattern: string, handler: DriverHandler): void {
    this.#routes.add("POST", pattern, handler);
  }

  put(pattern: string, handler: DriverHandler): void {
    this.#routes.add("PUT", pattern, handler);
  }

  patch(pattern: string, handler: DriverHandler): void {
    this.#routes.add("PATCH", pattern, handler);
  }

  delete(pattern: string, handler: DriverHandler): void {
    this.#routes.add("DELETE", pattern, handler);
  }

  any(_pattern: string, handler: DriverHandler): void {
    this.#routes.setFallback(handler);
  }

  serveSockets<Data>(behaviour: SocketBehaviour<Data>): void {
    // The types of `ws` lack `closeTimeout`.
    const options: SocketOptions & { readonly closeTimeout: number } = {
      noServer: true,
      clientTracking: false,
      autoPong: false,
      perMessageDeflate: false,
      maxPayload: behaviour.maxFrameBytes,
      closeTimeout: CLOSE_TIMEOUT_MS,
      handleProtocols: ([protocol]) => protocol ?? false,
    };
    const handshakes = new WebSocketServer(options);
    this.#servesSockets = true;
    const sockets = this.#sockets as Set<PortableSocket<Data>>;
    const context = { behaviour, topics: this.#topics, turnEnd: this.#turnEnd, sockets };
    this.#http.on("upgrade", (req: IncomingMessage, stream: Socket, head: Buffer) => {
      const connection = this.#byStream.get(stream);
      // `ws` would not open a socket that its peer has already ended.
      if (connection === undefined || !stream.readable || !stream.writable)
        return void stream.destroy();
      const { response: previous } = connection;
      // Node.js has released the parser, but the stream still belongs to the earlier response.
      if (previous?.hasStream === true)
        return previous.isEnded ? stream.destroySoon() : connection.destroy();
      if (!isHandshake(req)) return this.#parseAgain(req, stream, head);
      const res = new ServerResponse(req);
      res.assignSocket(stream);
      const upgrade = (data: unknown, _key: string, subprotocol: string) => {
        res.detachSocket(stream);
        // `ws` would refuse a list of subprotocols that it cannot parse.
        if (subprotocol === "") delete req.headers["sec-websocket-protocol"];
        else req.headers["sec-websocket-protocol"] = subprotocol;
        handshakes.handleUpgrade(req, stream, head, (ws) =>
          behaviour.open(new PortableSocket(data as Data, { ws, stream }, context)),
        );
      };
      const response = new PortableResponse(
        connection,
        { req, res },
        { expectsContinue: false, upgrade },
      );
      const run = () => behaviour.upgrade(response, new PortableRequest(req), UPGRADE);
      connection.request({ response, run });
    });
  }

  countConnections(opened: (connection: DriverConnection) => void, closed: () => void): void {
    this.#opened = opened;
    this.#closed = closed;
  }

  guardHeads(guard: HeadGuard): void {
    this.#heads = guard;
  }

  publish(topic: string, data: Uint8Array | string, isBinary: boolean): void {
    this.#topics.publish(topic, { data, isBinary });
  }

  numSubscribers(topic: string): number {
    return this.#topics.count(topic);
  }

  async listen(host: string, port: number): Promise<number | undefined> {
    const boundPort = await listenOn(this.#http, host, port);
    if (boundPort !== undefined) this.#ticks = setInterval(() => this.#tick(), TICK_MS).unref();
    return boundPort;
  }

  stopAccepting(): void {
    // `close` of `http.Server` would also close idle connections.
    TcpServer.prototype.close.call(this.#http);
  }

  close(): void {
    clearInterval(this.#ticks);
    for (const socket of this.#sockets) socket.close();
    for (const connection of this.#connections) connection.destroy();
    this.#http.close();
  }

  // --- Connections ---

  #accepted(socket: Socket): void {
    const connection = new PortableConnection(socket, this.#heads);
    this.#connections.add(connection);
    socket.once("close", () => {
      this.#connections.delete(connection);
      this.#greeting.delete(connection);
      connection.closed();
      this.#closed();
    });
    this.#opened(connection);
    if (connection.isClosed) return;
    this.#greeting.add(connection);
    readProxyHeader(socket, parseProxyHeader, (address) => {
      connection.proxiedAddress = address;
      this.#greeting.delete(connection);
      if (this.#tls === undefined) this.#serve(connection, socket);
      else this.#tls.begin(socket, connection);
    });
  }

  #serve(connection: PortableConnection, stream: Socket): void {
    connection.opened();
    this.#byStream.set(stream, connection);
    this.#parse.call(this.#http, stream);
  }

  // --- Requests ---

  #requested(req: IncomingMessage, res: ServerResponse, expectsContinue: boolean): void {
    const connection = this.#byStream.get(req.socket);
    if (connection === undefined) return void req.socket.destroy();
    if (req.httpVersionMajor !== 1) return this.#malformed(req.socket);
    const response = new PortableResponse(connection, { req, res }, { expectsContinue });
    this.#responses.add(response);
    res.once("close", () => this.#responses.delete(response));
    const run = () => {
      const request = new PortableRequest(req);
      const match = this.#routes.find(request.getCaseSensitiveMethod(), request.getUrl());
      request.params = match?.params ?? [];
      match?.handler(response, request);
    };
    connection.request({ response, run });
  }

  /**
   * Parses a request again without its Upgrade header. A server may ignore an upgrade to an unknown
   * protocol, such as HTTP/2 in requests from Java's HTTP client, but Node.js before 24.9 cannot do
   * this.
   */
  #parseAgain(req: IncomingMessage, stream: Socket, rest: Buffer): void {
    const lines = [`${req.method} ${req.url} HTTP/${req.httpVersion}`];
    for (let at = 0; at + 1 < req.rawHeaders.length; at += 2) {
      const [name = "", value] = req.rawHeaders.slice(at, at + 2);
      if (name.toLowerCase() !== "upgrade") lines.push(`${name}: ${value}`);
    }
    const head = Buffer.from(`${lines.join("\r\n")}\r\n\r\n`, "latin1");
    stream.unshift(Buffer.concat([head, rest]));
    this.#parse.call(this.#http, stream);
  }

  #refuse(error: NodeJS.ErrnoException, stream: object): void {
    const connection = this.#byStream.get(stream);
    if (connection === undefined) return;
    const isParseError = error.code?.startsWith("HPE_") === true;
    const isUnanswered = connection.response?.isEnded !== false || connection.response.isUnanswered;
    if (!isParseError || !isUnanswered) return connection.destroy();
    const isTooLarge = error.code === "HPE_HEADER_OVERFLOW";
    connection.refuse(() => this.#heads.refuse(isTooLarge ? "too_large" : "malformed"));
  }

  #malformed(stream: object): void {
    this.#byStream.get(stream)?.refuse(() => this.#heads.refuse("malformed"));
  }

  #tick(): void {
    for (const connection of this.#greeting) {
      connection.greetingS += 1;
      if (connection.greetingS * 1000 >= HEAD_MS) connection.destroy();
    }
    for (const connection of this.#connections)
      if (!connection.chargeHead()) connection.refuse(() => this.#heads.refuse("no_room"));
    for (const response of this.#responses) if (response.tick()) response.close();
    for (const socket of this.#sockets) socket.tick();
  }
}

function isHandshake({ method, headers, httpVersion }: IncomingMessage): boolean {
  return (
    method === "GET" &&
    httpVersion === "1.1" &&
    headers.upgrade?.toLowerCase() === "websocket" &&
    HANDSHAKE_KEY.test(headers["sec-websocket-key"] ?? "")
  );
}
