// The server of the peer `socket.io`. Checks and stores nothing. Prints its port. Emits the body of
// a `POST /publish` to all sockets, and the content of an event `publish` to all other sockets.
// Replies to a `POST /answer`, and acknowledges an event `send`.

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Server } from "socket.io";
import { servePosts } from "../support/posts.ts";

const http = createServer();
const io = new Server(http, { transports: ["websocket"] });
io.on("connection", (socket) => {
  void socket.join("everyone");
  socket.on("publish", (message: object) => socket.to("everyone").emit("message", message));
  socket.on("send", ({ client_msg_no }: Record<string, string>, acknowledge) =>
    acknowledge({ client_msg_no }),
  );
});
servePosts(http, (path, message) => {
  if (path === "/publish") io.to("everyone").emit("message", message);
});
http.listen(0, "127.0.0.1", () => {
  process.stdout.write(`${(http.address() as AddressInfo).port}\n`); // the server listens on a port
});
