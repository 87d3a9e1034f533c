// The WebSocket handshake: asks the endpoint, refuses or upgrades, and hands the new connection over. State: the upgrade under way, between
// two native events that follow each other in one call.

import type {
  HttpResponse,
  HttpRequest as NativeRequest,
  us_socket_context_t,
  WebSocket,
} from "uWebSockets.js";
import { addressText, networkText } from "./address.ts";
import {
  type ConnectionSurroundings,
  SocketConnection,
  type SocketData,
} from "./connection.ts";
import { HeadCheck } from "./http-head.ts";
import { BARE_500, writeReplyAndClose } from "./http-reply.ts";
import type {
  HttpEndpoint,
  HttpReply,
  SocketEndpoint,
  Upgrade,
} from "./types.ts";

/** The only version there is [RFC 6455 4.1]. */
const VERSION = "13";
const WRONG_VERSION: HttpReply = {
  status: 426,
  headers: { "sec-websocket-version": VERSION },
  body: "",
};

const MALFORMED: HttpReply = { status: 400, body: "" };

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
  http: Pick<HttpEndpoint, "malformed"> | undefined,
  around: ConnectionSurroundings,
): Handshake {
  const head = new HeadCheck();
  const { limits } = around;
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
      const network = networkText(res.getRemoteAddress());
      limits.requested(network);
      const problem = head.problem(req);
      if (problem !== undefined)
        return writeReplyAndClose(res, http?.malformed(problem) ?? MALFORMED);
      const upgrade = readUpgrade(res, req);
      const answer = decide(upgrade, req.getHeader("sec-websocket-version"));
      if (typeof answer !== "string") return writeReplyAndClose(res, answer);
      const release = limits.held(network);
      if (release === undefined) return void res.close();
      const { remoteAddress } = upgrade;
      const connection = new SocketConnection(remoteAddress, release, around);
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
