// Makes a Node.js server listen on an address that no other process can share. Keeps no state.

import type { AddressInfo, Server } from "node:net";

/** Returns the port, or `undefined` if the server cannot listen on the address. */
export function listenOn(server: Server, host: string, port: number): Promise<number | undefined> {
  return new Promise((resolve) => {
    server.once("error", () => resolve(undefined));
    server.listen({ host, port, exclusive: true }, () => {
      server.removeAllListeners("error");
      // Node.js emits an error for each connection that it cannot accept for lack of file
      // descriptors. Without this handler, the error would end the process.
      server.on("error", () => {});
      resolve((server.address() as AddressInfo).port);
    });
  });
}
