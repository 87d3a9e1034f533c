// The server of the peer `ws`. Checks and stores nothing. Started as
// `ws-server.ts publish|answer <frame in hex> <HTTP body>`. Prints its port.
//
//   publish   for every POST, and for every frame on a socket of `/publish`, sends the frame of the
//             command line to all sockets of other paths
//   answer    replies to every frame with the frame of the command line, and to every POST with the
//             body of the command line

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { type WebSocket, WebSocketServer } from "ws";

const [kind, frameHex = "", body = ""] = process.argv.slice(2);
const frame = Buffer.from(frameHex, "hex");
const receivers = new Set<WebSocket>();

function publish(): void {
  for (const socket of receivers) socket.send(frame);
}

const http = createServer(async (request, response) => {
  JSON.parse(await text(request));
  if (kind === "publish") publish();
  response.setHeader("Content-Type", "application/json").end(kind === "publish" ? "{}" : body);
});

new WebSocketServer({ server: http }).on("connection", (socket, { url }) => {
  if (url === "/publish") {
    socket.on("message", publish);
    return;
  }
  receivers.add(socket);
  socket.on("close", () => receivers.delete(socket));
  socket.on("message", () => socket.send(frame));
});

http.listen(0, "127.0.0.1", () => {
  process.stdout.write(`${(http.address() as AddressInfo).port}\n`); // the server listens on a port
});
