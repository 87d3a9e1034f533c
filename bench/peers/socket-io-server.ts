// The server of the peer `socket.io`. Checks and stores nothing. Prints its port. `POST /publish` and
// the event `publish` are emitted to the room of all sockets, `POST /answer` is answered, and the
// event `send` is acknowledged.

import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { Server } from "socket.io";

const http = createServer();
const io = new Server(http, { transports: ["websocket"] });
io.on("connection", (socket) => {
  void socket.join("everyone");
  socket.on("publish", (message: object) => socket.to("everyone").emit("message", message));
  socket.on("send", ({ client_msg_no }: Record<string, string>, acknowledge) =>
    acknowledge({ client_msg_no }),
  );
});
const originalListeners = http.listeners("request");
http.removeAllListeners("request");
http.on("request", async (request: IncomingMessage, response) => {
  if (request.method !== "POST") {
    for (const listener of originalListeners) listener.call(http, request, response);
    return;
  }
  const message = JSON.parse(await text(request));
  if (request.url === "/publish") io.to("everyone").emit("message", message);
  response.end("{}");
});
http.listen(0, "127.0.0.1", () => {
  process.stdout.write(`${(http.address() as AddressInfo).port}\n`); // never a string: no pipe
});
