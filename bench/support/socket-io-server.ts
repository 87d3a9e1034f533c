// The peer in the cluster bench: a Socket.IO 4 server with its Redis adapter, set up as in its
// documentation. All sockets are in one room, and the body of every POST is emitted to that room.
// Nothing is checked or stored.
//
// Usage: socket-io-server.ts <redis url> <key> …
// Starts one server for each key and prints their ports as JSON. Servers of several processes with
// the same key form a cluster.

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { createAdapter } from "@socket.io/redis-adapter";
import { Redis } from "ioredis";
import { Server } from "socket.io";
import { servePosts } from "./posts.ts";

/** Starts a server and returns its port. */
async function serve(url: string, key: string): Promise<number> {
  const publisher = new Redis(url);
  const adapter = createAdapter(publisher, publisher.duplicate(), { key });
  const http = createServer();
  const io = new Server(http, { adapter, transports: ["websocket"] });
  io.on("connection", (socket) => socket.join(key));
  servePosts(http, (_path, message) => io.to(key).emit("message", message));
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  return (http.address() as AddressInfo).port; // the server listens on a port
}

const [url = "", ...keys] = process.argv.slice(2);
const ports = await Promise.all(keys.map((key) => serve(url, key)));
process.stdout.write(`${JSON.stringify(ports)}\n`);
