// Client sockets of one listener: native events, limits and publishing. State: the open connections.
// Compression is off: a shared compressor would run once per receiver, and payloads are often encrypted anyway.

import type { TemplatedApp } from "uWebSockets.js";
import type { SocketConnection, SocketData } from "./connection.ts";
import { Farewells } from "./farewells.ts";
import { createHandshake } from "./handshake.ts";
import { nativeLimit, SlowReaders } from "./slow-readers.ts";
import type { SocketLimits } from "./socket-limits.ts";
import { TurnEnd } from "./turn-end.ts";
import type {
  HttpEndpoint,
  ListenerSpec,
  SocketEndpoint,
  TopicPublisher,
} from "./types.ts";

export interface SocketParts {
  readonly app: TemplatedApp;
  readonly endpoint: SocketEndpoint;
  /** Words the refusal of a malformed handshake, where there is one. */
  readonly http: Pick<HttpEndpoint, "malformed"> | undefined;
  readonly limits: SocketLimits;
  readonly onError: ListenerSpec["onError"];
  /** How long an ended connection may take to read what it was sent before. */
  readonly farewellMs: number;
}

/** Mounts the endpoint on every path of `app`. */
export function serveSockets(parts: SocketParts): TopicPublisher {
  const { app, endpoint, http, limits, onError, farewellMs } = parts;
  const connections = new Set<SocketConnection>();
  const turnEnd = new TurnEnd();
  const { maxBufferedBytes, lagBytes } = endpoint;
  const slowReaders = new SlowReaders(
    connections,
    Math.min(lagBytes, maxBufferedBytes),
  );

  function publish(topic: string, frame: Uint8Array | string): void {
    app.publish(topic, frame, typeof frame !== "string");
    slowReaders.published(frame);
  }

  const handshake = createHandshake(endpoint, http, {
    turnEnd,
    limits,
    farewells: new Farewells(farewellMs),
    maxBufferedBytes,
    lagBytes,
    slowReader: endpoint.slowReader,
    onError,
    publish,
    published: (frame) => slowReaders.published(frame),
    receiving: undefined,
  });

  app.ws<SocketData>("/*", {
    compression: 0,
    maxPayloadLength: endpoint.maxFrameBytes,
    maxBackpressure: nativeLimit(maxBufferedBytes),
    closeOnBackpressureLimit: true,
    idleTimeout: endpoint.idleTimeoutS,
    sendPingsAutomatically: true,
    upgrade: handshake.upgrade,
    open(socket) {
      const { connection } = socket.getUserData();
      connections.add(connection);
      handshake.opened(connection, socket);
    },
    message(socket, data, isBinary) {
      socket.getUserData().connection.received(data, !isBinary);
    },
    drain: (socket) => socket.getUserData().connection.drained(),
    dropped: (socket) => socket.getUserData().connection.dropped(),
    close(socket, code) {
      const { connection } = socket.getUserData();
      connections.delete(connection);
      limits.closed();
      connection.closed(code);
    },
  });
  return { publish };
}
