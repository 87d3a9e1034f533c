// A node's client sockets on all of its listeners. Publishes to their topics and limits their
// unread bytes. State: the open connections, and the listeners' servers.

import type { ConnectionContext, SocketConnection } from "./connection.ts";
import type { DriverServer } from "./driver.ts";
import { GracefulCloses } from "./graceful-closes.ts";
import { SlowReaders } from "./slow-readers.ts";
import { TurnEnd } from "./turn-end.ts";
import type { ListenerSpec, SocketEndpoint, TopicPublisher } from "./types.ts";
import { UnreadBytes } from "./unread-bytes.ts";

type TopicServer = Pick<DriverServer, "publish" | "numSubscribers">;

/** Time within which a peer must read its unread bytes while its connection is being closed. */
const CLOSE_TIMEOUT_MS = 5000;

export class ClientSockets implements TopicPublisher {
  readonly endpoint: SocketEndpoint;
  readonly connections = new Set<SocketConnection>();
  readonly #servers: TopicServer[] = [];
  readonly #slowReaders: SlowReaders;
  readonly #shared: Pick<
    ConnectionContext,
    | "turnEnd"
    | "unread"
    | "gracefulCloses"
    | "maxBufferedBytes"
    | "lagBytes"
    | "slowReader"
    | "limits"
    | "onError"
    | "publish"
  >;

  /** Only tests set `closeTimeoutMs`. */
  constructor(
    endpoint: SocketEndpoint,
    { limits, onError }: Pick<ListenerSpec, "limits" | "onError">,
    closeTimeoutMs = CLOSE_TIMEOUT_MS,
  ) {
    this.endpoint = endpoint;
    const { maxBufferedBytes, lagBytes, slowReader } = endpoint;
    const { maxBufferedBytesPerUser: perUser, maxBufferedBytesTotal: total } = endpoint;
    this.#slowReaders = new SlowReaders(this.connections, {
      ...{ lagBytes: Math.min(lagBytes, maxBufferedBytes), totalBytes: total },
      subscribersOf: (topic) => this.#subscribersOf(topic),
    });
    const turnEnd = new TurnEnd();
    this.#shared = {
      turnEnd,
      unread: new UnreadBytes({ perUser, total }, this.connections, turnEnd),
      gracefulCloses: new GracefulCloses(closeTimeoutMs),
      maxBufferedBytes,
      lagBytes,
      slowReader,
      limits,
      onError,
      publish: (topic, frame) => this.publish(topic, frame),
    };
  }

  /** Adds a listener's server. Returns the context for the listener's connections. */
  attach(server: TopicServer, listener: string): ConnectionContext {
    this.#servers.push(server);
    return {
      ...this.#shared,
      listener,
      publishElsewhere: (topic, frame) => this.#publish(topic, frame, server),
      receiving: undefined,
    };
  }

  /** Must be called before the server is closed. */
  detach(server: TopicServer): void {
    const at = this.#servers.indexOf(server);
    if (at >= 0) this.#servers.splice(at, 1);
  }

  publish(topic: string, frame: Uint8Array | string): void {
    this.#publish(topic, frame);
  }

  #publish(topic: string, frame: Uint8Array | string, except?: TopicServer): void {
    const isBinary = typeof frame !== "string";
    for (const server of this.#servers)
      if (server !== except) server.publish(topic, frame, isBinary);
    this.#slowReaders.published(topic, frame);
  }

  #subscribersOf(topic: string): number {
    let count = 0;
    for (const server of this.#servers) count += server.numSubscribers(topic);
    return count;
  }
}
