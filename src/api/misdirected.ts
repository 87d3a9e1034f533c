// Replies to clients that try to open a WebSocket at the address of the HTTP API. Keeps no state.

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
