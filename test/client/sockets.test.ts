// Sockets that fail without a close event, or whose peer never answers. One test runs the built
// package, which `npm test` builds first.

import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import {
  connect,
  type JindouError,
  type SocketConstructor,
  type SocketLike,
} from "../../src/client/index.ts";
import { run } from "../support/run.ts";
import { t } from "../support/suite.ts";
import { connectTo, ScriptedServer } from "./scripted.ts";

const PACKAGE = fileURLToPath(new URL("../../dist-client/", import.meta.url));
const ACCEPT_SUFFIX = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** A socket whose connection cannot be established, as Node.js 22 reports it. */
class ErrorOnlySocket implements SocketLike {
  binaryType = "";
  onopen: SocketLike["onopen"] = null;
  onmessage: SocketLike["onmessage"] = null;
  onclose: SocketLike["onclose"] = null;
  onerror: SocketLike["onerror"] = null;

  constructor() {
    setImmediate(() => this.onerror?.({ message: "non-101 status code" }));
  }

  send(): void {}

  close(): void {}
}

const LONG_CONNECT = { connectMs: 600_000 };

t.test(
  "a WebSocket's error event without a close event ends a connection attempt at once",
  async (t) => {
    const server = new ScriptedServer();
    let failures = 3;
    const webSocket = new Proxy(server.webSocket, {
      construct: (real, [url, protocols]) =>
        failures-- > 0 ? new ErrorOnlySocket() : new real(url, protocols),
    });
    const client = connectTo(t, server, { webSocket, timeouts: LONG_CONNECT });
    const errors: JindouError[] = [];
    client.on("error", (error) => errors.push(error));
    await client.ready();
    t.equal(errors.length, 3);
    t.match(errors[0], {
      code: "connection_lost",
      message: /ws:\/\/nowhere \(non-101 status code\)/,
    });
  },
);

t.test("the platform's own WebSocket reports a refused connection at once", async (t) => {
  const { WebSocket: platformClass } = globalThis as { WebSocket?: SocketConstructor };
  if (platformClass === undefined) {
    t.pass("this Node.js has no WebSocket of its own");
    return;
  }
  const client = connect({
    ...{ url: "ws://127.0.0.1:1", uid: "amy", webSocket: platformClass },
    ...{ timeouts: LONG_CONNECT, reconnect: { minMs: 600_000 } },
  });
  t.teardown(() => client.close());
  const error = await new Promise<JindouError>((resolve) => client.on("error", resolve));
  t.equal(error.code, "connection_lost");
});

/** Starts a server that opens WebSockets and never answers. Returns its port and open sockets. */
async function startSilentServer(t: Test) {
  const sockets = new Set<object>();
  let opened = 0;
  const server = createServer((_request, response) => response.writeHead(404).end());
  server.on("upgrade", ({ headers }, socket) => {
    opened += 1;
    sockets.add(socket);
    socket.on("error", () => undefined).on("end", () => socket.destroy());
    socket.on("close", () => sockets.delete(socket));
    socket.resume();
    const key = `${headers["sec-websocket-key"]}${ACCEPT_SUFFIX}`;
    const accept = createHash("sha1").update(key).digest("base64");
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\nSec-WebSocket-Protocol: ${headers["sec-websocket-protocol"]}\r\n\r\n`,
    );
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.teardown(() => server.close().closeAllConnections());
  return { port: (server.address() as AddressInfo).port, sockets, opened: () => opened };
}

const ATTEMPTS = `
const client = connect({
  url: process.argv[2], uid: "amy", timeouts: { connectMs: 100 }, reconnect: { minMs: 1, maxMs: 1 },
});
let errors = 0;
client.on("error", () => {
  errors += 1;
  if (errors === 3) client.close().then(() => console.log("closed"));
});
`;

t.test(
  "after `close`, a silent server keeps neither the client's sockets nor the process alive",
  async (t) => {
    const { port, sockets, opened } = await startSilentServer(t);
    for (const [name, head] of [
      ["attempts.mjs", `import { connect } from "${PACKAGE}index.js";`],
      ["attempts.cjs", `const { connect } = require("${PACKAGE}index.cjs");`],
    ] as const) {
      const { output, exitCode } = await run(t, name, head + ATTEMPTS, [`ws://127.0.0.1:${port}`]);
      t.equal(output, "closed\n", name);
      t.equal(exitCode, 0);
    }
    t.equal(opened(), 6);
    while (sockets.size > 0) await new Promise((resolve) => setTimeout(resolve, 5));
  },
);

t.test(
  "the error for a connection to the API's port says that the port is not for clients",
  async (t) => {
    const api = createServer((_request, response) => response.writeHead(404).end());
    api.listen(0, "127.0.0.1");
    await once(api, "listening");
    t.teardown(() => api.close());
    const url = `ws://127.0.0.1:${(api.address() as AddressInfo).port}`;
    const client = connect({ url, uid: "amy", reconnect: { minMs: 600_000 } });
    t.teardown(() => client.close());
    const error = await new Promise<JindouError>((resolve) => client.on("error", resolve));
    t.match(error, { code: "connection_lost" });
    t.ok(error.message.includes(url), error.message);
    t.match(error.message, /404.*not of the API/);
  },
);
