// Time-outs that need real time, because the native library has its own clock. The tests run
// concurrently and take about 12 s.

import { t } from "../support/suite.ts";
import {
  connectionAt,
  httpEndpoint,
  IS_PORTABLE,
  openClient,
  RawClient,
  socketEndpoint,
  startListener,
  text,
  until,
} from "./support.ts";

const WITHIN_MS = 120_000;
t.jobs = 4;

t.test(
  "a peer that does not answer pings is closed, and a peer that answers pings stays connected",
  {
    buffered: true,
  },
  async (t) => {
    const { seen, endpoint } = socketEndpoint({
      endpoint: { idleTimeoutS: 8 },
    });
    const { port } = await startListener(t, { sockets: endpoint });
    await openClient(t, port, { autoPong: false });
    const lively = await openClient(t, port);
    const dead = await connectionAt(seen, 0);
    await until(() => dead.closed.length > 0, WITHIN_MS);
    t.strictSame(dead.closed, [1006]);
    t.strictSame(lively.closed, []);
  },
);

t.test(
  "a client that keeps sending its body after a 4xx reply is disconnected",
  {
    buffered: true,
  },
  async (t) => {
    const http = httpEndpoint([{ method: "POST", path: "/", handle: () => text("ok") }]);
    const { port } = await startListener(t, { http });
    const clients = ["/", "/unknown"].map((path) => {
      const client = new RawClient(t, port);
      const head = "host: x\r\ncontent-length: 99999999999";
      client.write(`POST ${path} HTTP/1.1\r\n${head}\r\n\r\n`);
      return client;
    });
    const bytes = Buffer.alloc(10_000);
    const sending = setInterval(() => {
      for (const client of clients) client.write(bytes);
    }, 10);
    t.teardown(() => clearInterval(sending));
    for (const client of clients) {
      await client.has("HTTP/1.1 4");
      await client.closed(WITHIN_MS);
    }
    t.pass("both clients were disconnected");
  },
);

t.test(
  "a client that stops in the middle of a request is disconnected",
  {
    buffered: true,
  },
  async (t) => {
    const http = httpEndpoint([{ method: "POST", path: "/", handle: () => text("ok") }]);
    const { port } = await startListener(t, { http });
    const clients = [
      "POST / HTTP/1.1\r\nhost: ",
      "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf",
    ].map((half) => {
      const client = new RawClient(t, port);
      client.write(half);
      return client;
    });
    for (const client of clients) await client.closed(WITHIN_MS);
    t.ok(clients.every(({ text }) => text === ""));
  },
);

/** Maximum time after which uWebSockets.js closes an idle connection. */
const NATIVE_IDLE_MS = 12_500;

t.test(
  IS_PORTABLE
    ? "an idle connection is kept for longer than uWebSockets.js keeps one"
    : "an idle connection is closed, but not before the time that its Keep-Alive header announced",
  { buffered: true },
  async (t) => {
    const http = httpEndpoint([{ method: "GET", path: "/", handle: () => text("ok") }]);
    const { port } = await startListener(t, { http });
    const client = new RawClient(t, port);
    const call = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write(call);
    await client.has("ok");
    if (!IS_PORTABLE) {
      const startMs = performance.now();
      await client.closed(WITHIN_MS);
      t.ok(performance.now() - startMs > 7000);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, NATIVE_IDLE_MS));
    client.received = Buffer.alloc(0);
    client.write(call);
    await client.has("ok");
    t.notOk(client.isClosed);
  },
);
