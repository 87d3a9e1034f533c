// The client sockets of one listener: handshake, events of the driver, limits and publishing.
// Compression is off, because a shared compressor would run once per receiver and payloads are
// often encrypted.

import { networkOf } from "../lib/network.ts";
import { addressText } from "./address.ts";
import { type ClientAddresses, FORWARDED_FOR, refusalWriter } from "./client-addresses.ts";
import { type ConnectionContext, SocketConnection, type SocketData } from "./connection.ts";
import type { DriverServer } from "./driver.ts";
import { GracefulCloses } from "./graceful-closes.ts";
import { HeadCheck } from "./http-head.ts";
import { BARE_500 } from "./http-reply.ts";
import { driverLimit, SlowReaders } from "./slow-readers.ts";
import { TurnEnd } from "./turn-end.ts";
import type { HttpReply, ListenerSpec, SocketEndpoint, TopicPublisher, Upgrade } from "./types.ts";
import { UnreadBytes } from "./unread-bytes.ts";

/** The only version of the WebSocket protocol [RFC 6455 4.1]. */
const VERSION = "13";
const WRONG_VERSION: HttpReply = {
  status: 426,
  headers: { "sec-websocket-version": VERSION },
  body: "",
};
const HEADERS = ["origin", "sec-websocket-key", "sec-websocket-protocol", "sec-websocket-version"];
const MALFORMED: HttpReply = { status: 400, body: "" };

/** Serves client sockets. A closing peer must read its unread bytes within `closeTimeoutMs`. */
export function serveSockets(
  server: DriverServer,
  endpoint: SocketEndpoint,
  spec: Pick<ListenerSpec, "http" | "limits" | "onError" | "onHeadRefused"> & {
    readonly addresses: ClientAddresses | undefined;
  },
  closeTimeoutMs: number,
): TopicPublisher {
  const { http, limits, onError, addresses } = spec;
  const { maxBufferedBytes, lagBytes, slowReader } = endpoint;
  const connections = new Set<SocketConnection>();
  const { maxBufferedBytesPerUser: perUser, maxBufferedBytesTotal: total } = endpoint;
  const slowReaders = new SlowReaders(connections, {
    ...{ lagBytes: Math.min(lagBytes, maxBufferedBytes), totalBytes: total },
    subscribersOf: (topic) => server.numSubscribers(topic),
  });
  const turnEnd = new TurnEnd();
  const context: ConnectionContext = {
    turnEnd,
    unread: new UnreadBytes({ perUser, total }, connections, turnEnd),
    gracefulCloses: new GracefulCloses(closeTimeoutMs),
    maxBufferedBytes,
    lagBytes,
    slowReader,
    limits,
    onError,
    publish,
    published: (topic, frame) => slowReaders.published(topic, frame),
    receiving: undefined,
  };
  const head = new HeadCheck(addresses === undefined ? HEADERS : [...HEADERS, FORWARDED_FOR]);
  // A driver calls `open` before `res.upgrade` returns, so one variable is enough.
  let upgrading: Upgrade | undefined;

  function publish(topic: string, frame: Uint8Array | string): void {
    server.publish(topic, frame, typeof frame !== "string");
    slowReaders.published(topic, frame);
  }

  /** Returns the refusal, or the subprotocol with which to accept the upgrade ("" means none). */
  function decide(upgrade: Upgrade, version: string): HttpReply | string {
    if (version !== VERSION) return WRONG_VERSION;
    try {
      const answer = endpoint.accept(upgrade);
      if ("status" in answer) return { status: answer.status, body: "" };
      return answer.subprotocol ?? "";
    } catch (error) {
      onError(error, "Could not accept a connection");
      return BARE_500;
    }
  }

  server.serveSockets<SocketData>({
    maxFrameBytes: endpoint.maxFrameBytes,
    maxUnreadBytes: driverLimit(maxBufferedBytes),
    idleTimeoutS: endpoint.idleTimeoutS,
    upgrade(res, req, upgradeContext) {
      const peer = addressText(res.getRemoteAddress());
      const network = networkOf(peer);
      limits.requested(network);
      const problem = head.problem(req);
      if (problem !== undefined) {
        spec.onHeadRefused("malformed");
        return refusalWriter(res, addresses)(res, http?.malformed(problem) ?? MALFORMED);
      }
      const upgrade: Upgrade = {
        path: req.getUrl(),
        origin: head.value("origin"),
        subprotocols: namesOf(head.value("sec-websocket-protocol")),
        remoteAddress: addresses?.of(res, head.value(FORWARDED_FOR)) ?? peer,
      };
      const answer = decide(upgrade, head.value("sec-websocket-version"));
      if (typeof answer !== "string") return refusalWriter(res, addresses)(res, answer);
      const { remoteAddress } = upgrade;
      const connection = new SocketConnection(remoteAddress, context);
      const clientNetwork = remoteAddress === peer ? network : networkOf(remoteAddress);
      if (!connection.enter(clientNetwork)) return void res.close();
      const key = head.value("sec-websocket-key");
      upgrading = upgrade;
      res.upgrade<SocketData>({ connection }, key, answer, "", upgradeContext);
    },
    open(socket) {
      const { connection } = socket.getUserData();
      connections.add(connection);
      const upgrade = upgrading;
      if (upgrade === undefined) throw new Error("A socket was opened without an upgrade");
      upgrading = undefined;
      connection.opened(socket, () => endpoint.open(connection, upgrade));
    },
    message(socket, data, isBinary) {
      socket.getUserData().connection.received(data, !isBinary);
    },
    drain: (socket) => socket.getUserData().connection.drained(),
    ping: (socket, data) => socket.getUserData().connection.pinged(data.byteLength),
    dropped: (socket) => socket.getUserData().connection.drop(),
    close(socket, code) {
      const { connection } = socket.getUserData();
      connections.delete(connection);
      connection.closed(code);
    },
  });
  return { publish };
}

function namesOf(list: string): readonly string[] {
  return list
    .split(",")
    .map((name) => name.trim())
    .filter((name) => name !== "");
}
