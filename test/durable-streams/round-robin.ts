// A proxy that sends each request to the next of several nodes, and passes replies on as they
// arrive.

import { once } from "node:events";
import { createServer, request } from "node:http";
import type { AddressInfo } from "node:net";
import type { Test } from "tap";

/** Starts the proxy. Returns its address, `http://127.0.0.1:<port>`. */
export async function startRoundRobin(t: Test, ports: readonly number[]): Promise<string> {
  let count = 0;
  const server = createServer((incoming, reply) => {
    const port = ports[count % ports.length];
    count += 1;
    const { method, url: path, headers } = incoming;
    const forwarded = request({ host: "127.0.0.1", port, method, path, headers }, (answer) => {
      reply.writeHead(answer.statusCode ?? 502, answer.headers);
      reply.flushHeaders();
      answer.pipe(reply);
      answer.on("error", () => reply.destroy());
    });
    forwarded.on("error", () => reply.destroy());
    reply.on("close", () => forwarded.destroy());
    incoming.pipe(forwarded);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  const { port } = server.address() as AddressInfo; // the server listens on TCP
  return `http://127.0.0.1:${port}`;
}
