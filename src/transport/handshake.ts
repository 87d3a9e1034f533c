// The WebSocket handshake: asks the endpoint, refuses or upgrades, and hands the new connection over. State: the upgrade under way, between
// two native events that follow each other in one call.

import type {
  HttpResponse,
  HttpRequest as NativeRequest,
  us_socket_context_t,
  WebSocket,
} from "uWebSockets.js";
import { addressText } from "./address.ts";
import {
  type ConnectionSurroundings,
  SocketConnection,
  type SocketData,
} from "./connection.ts";
import { BARE_500, writeReplyAndClose } from "./http-reply.ts";
import type { HttpReply, SocketEndpoint, Upgrade } from "./types.ts";

/** The only version there is [RFC 6455 4.1]. */
const VERSION = "13";
const WRONG_VERSION: HttpReply = {
  status: 426,
  headers: { "sec-websocket-version": VERSION },
  body: "",
};

export interface Handshake {
  /** The native upgrade event. */
  readonly upgrade: (
    res: HttpResponse,
    req: NativeRequest,
    context: us_socket_context_t,
  ) => void;
  /** The native open event, which comes within the one above. */
  opened(connection: SocketConnection, socket: WebSocket<SocketData>): void;
}

export function createHandshake(
  endpoint: SocketEndpoint,
  around: ConnectionSurroundings,
): Handshake {
  let arriving: Upgrade | undefined;

  function decide(upgrade: Upgrade, version: string): HttpReply | string {
    if (version !== VERSION) return WRONG_VERSION;
    try {
      const answer = endpoint.accept(upgrade);
      if ("status" in answer) return { status: answer.status, body: "" };
      return answer.subprotocol ?? "";
    } catch (error) {
      around.onError(error, "A connection could not be accepted");
      return BARE_500;
    }
  }

  return {
    upgrade(res, req, context) {
      const upgrade = readUpgrade(res, req);
      const answer = decide(upgrade, req.getHeader("sec-websocket-version"));
      if (typeof answer !== "string") return writeReplyAndClose(res, answer);
      const connection = new SocketConnection(upgrade.remoteAddress, around);
      const data: SocketData = { connection };
      const key = req.getHeader("sec-websocket-key");
      arriving = upgrade;
      res.upgrade(data, key, answer, "", context);
    },

    opened(connection, socket) {
      const upgrade = arriving;
      if (upgrade === undefined) throw new Error("opened without an upgrade");
      arriving = undefined;
      connection.opened(socket, () => endpoint.open(connection, upgrade));
    },
  };
}

function readUpgrade(res: HttpResponse, req: NativeRequest): Upgrade {
  return {
    path: req.getUrl(),
    origin: req.getHeader("origin"),
    subprotocols: req
      .getHeader("sec-websocket-protocol")
      .split(",")
      .map((name) => name.trim())
      .filter((name) => name !== ""),
    remoteAddress: addressText(res.getRemoteAddress()),
  };
}
