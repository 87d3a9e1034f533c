// Replies to callers that use the wrong one of a node's two addresses. Keeps no state.

import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { edgeReply } from "./errors.ts";

export const UPGRADE_HEADERS = ["upgrade"];

export function wantsWebSocket({ headers }: HttpRequest): boolean {
  return headers.upgrade?.toLowerCase() === "websocket";
}

export function notWebSocket(clientsConnectTo: string): HttpReply {
  return edgeReply(
    "not_websocket",
    {},
    `This address is the HTTP API, which accepts no WebSocket connections; clients connect to ${clientsConnectTo}`,
  );
}
