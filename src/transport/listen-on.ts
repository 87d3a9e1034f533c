// Makes a server of Node.js listen, in the way that drivers need. Keeps no state.

import type { AddressInfo, Server } from "node:net";

/** Returns the port, `undefined` if the server cannot listen on the address. */
export function listenOn(server: Server, host: string, port: number): Promise<number | undefined> {
  return new Promise((resolve) => {
    server.once("error", () => resolve(undefined));
    server.listen({ host, port, exclusive: true }, () => {
      server.removeAllListeners("error");
      // Node.js reports each connection that it could not accept for lack of file descriptors.
      server.on("error", () => {});
      resolve((server.address() as AddressInfo).port);
    });
  });
}
