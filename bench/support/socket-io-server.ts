// The peer of the cluster bench: one node of Socket.IO 4 with its Redis adapter, doing what its
// documentation says. Every socket is in the room of the bench; a POST is emitted to the room.
// Usage: socket-io-server.ts <redis url> <key> …: a server of its own for each key, which all nodes
// with that key share; prints their ports as JSON. Nothing is checked or stored.

import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { createAdapter } from "@socket.io/redis-adapter";
import { Redis } from "ioredis";
import { Server } from "socket.io";

/** Returns the port it listens on. */
async function serve(url: string, key: string): Promise<number> {
  const publisher = new Redis(url);
  const adapter = createAdapter(publisher, publisher.duplicate(), { key });
  const http = createServer();
  const io = new Server(http, { adapter, transports: ["websocket"] });
  io.on("connection", (socket) => socket.join(key));
  const others = http.listeners("request");
  http.removeAllListeners("request");
  http.on("request", async (request: IncomingMessage, response) => {
    if (request.method !== "POST") {
      for (const other of others) other.call(http, request, response);
      return;
    }
    io.to(key).emit("message", JSON.parse(await text(request)));
    response.end("{}");
  });
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  return (http.address() as AddressInfo).port; // not a pipe
}

const [url = "", ...keys] = process.argv.slice(2);
const ports = await Promise.all(keys.map((key) => serve(url, key)));
process.stdout.write(`${JSON.stringify(ports)}\n`);
