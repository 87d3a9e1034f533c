// The WebSockets of one listener: handles handshakes and driver events. Compression is off, because
// a shared compressor would run once per receiver and payloads are often encrypted anyway.

import { networkOf } from "../lib/network.ts";
import { addressText } from "./address.ts";
import { type ClientAddresses, FORWARDED_FOR, refusalWriter } from "./client-addresses.ts";
import type { ClientSockets } from "./client-sockets.ts";
import { SocketConnection, type SocketData } from "./connection.ts";
import { type DriverServer, HANDSHAKE_KEY } from "./driver.ts";
import { HeadCheck, refuseHead } from "./http-head.ts";
import { BARE_500, writeReplyAlone } from "./http-reply.ts";
import { driverLimit } from "./slow-readers.ts";
import type { HttpReply, ListenerSpec, Upgrade } from "./types.ts";

/** The only version of the WebSocket protocol [RFC 6455 4.1]. */
const VERSION = "13";
const WRONG_VERSION: HttpReply = {
  status: 426,
  headers: { "sec-websocket-version": VERSION },
  body: "",
};
const HEADERS = [
  "origin",
  "upgrade",
  "sec-websocket-key",
  "sec-websocket-protocol",
  "sec-websocket-version",
];

const NO_HEADERS: Upgrade["headers"] = {};

/** Name of the listener in metrics and in the API's lists of connections. */
const LISTENER = "client";

export function serveSockets(
  server: DriverServer,
  clients: ClientSockets,
  spec: Pick<ListenerSpec, "driver" | "http" | "limits" | "onError" | "onHeadRefused"> & {
    readonly addresses: ClientAddresses | undefined;
  },
): void {
  const { limits, onError, addresses } = spec;
  const { endpoint, connections } = clients;
  const context = clients.attach(server, LISTENER);
  const ownNames = addresses === undefined ? HEADERS : [...HEADERS, FORWARDED_FOR];
  const head = new HeadCheck([...ownNames, ...endpoint.headers], spec);
  const forwarded = head.select(endpoint.headers);
  // A driver calls `open` before `res.upgrade` returns, so one variable is enough.
  let upgrading: Upgrade | undefined;

  /**
   * Accepts or refuses an upgrade. Returns the reply to a refused upgrade. For an accepted upgrade,
   * returns the subprotocol, or "" if no subprotocol is used.
   */
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
    maxUnreadBytes: driverLimit(endpoint.maxBufferedBytes),
    idleTimeoutS: endpoint.idleTimeoutS,
    upgrade(res, req, upgradeContext) {
      const peer = addressText(res.getRemoteAddress());
      const network = networkOf(peer);
      if (!spec.driver.reportsFirstRequests) limits.requested(network);
      const path = req.getUrl();
      const refusal = head.refusal(req, path);
      if (refusal !== undefined) return writeReplyAlone(res, refusal);
      const problem = handshakeProblem(head);
      if (problem !== undefined)
        return writeReplyAlone(res, refuseHead("malformed", problem, spec));
      const upgrade: Upgrade = {
        path,
        origin: head.value("origin"),
        subprotocols: namesOf(head.value("sec-websocket-protocol")),
        remoteAddress: addresses?.of(res, head.value(FORWARDED_FOR)) ?? peer,
        headers: forwarded.length === 0 ? NO_HEADERS : head.present(forwarded),
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
}

/**
 * Returns an error message if uWebSockets.js would accept the request as a handshake but a proxy
 * would not [RFC 6455 4.2.1]. Returns `undefined` if the handshake is valid.
 */
function handshakeProblem(head: HeadCheck): string | undefined {
  const asksFor = (header: string, option: string) =>
    namesOf(head.value(header).toLowerCase()).includes(option);
  if (!asksFor("upgrade", "websocket") || !asksFor("connection", "upgrade"))
    return "A WebSocket handshake must have the headers Upgrade: websocket and Connection: Upgrade";
  if (!HANDSHAKE_KEY.test(head.value("sec-websocket-key")))
    return "A WebSocket handshake must have one Sec-WebSocket-Key of 16 bytes in Base64";
  return head.body === "none" ? undefined : "A WebSocket handshake must not have a body";
}

function namesOf(list: string): readonly string[] {
  return list
    .split(",")
    .map((name) => name.trim())
    .filter((name) => name !== "");
}
