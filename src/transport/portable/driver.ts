// The portable driver uses `node:http` and `ws`, and runs on every platform that Node.js supports.
// It is slower than uWebSockets.js, and its parser supports more of HTTP, such as trailers.

import { createRequire } from "node:module";
import type { Driver } from "../driver.ts";
import { PortableServer } from "./server.ts";

export function createPortableDriver(maxHeadBytes: number): Driver {
  const { version } = createRequire(import.meta.url)("ws/package.json") as { version: string };
  return {
    name: "portable",
    library: `node:http ${process.versions.node}, ws ${version}`,
    keepAlive: undefined,
    reportsFirstRequests: true,
    maxHeadBytes,
    readsTrailers: true,
    createServer: (tls) => new PortableServer(tls, maxHeadBytes),
  };
}
