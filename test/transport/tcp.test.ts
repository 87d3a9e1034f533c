// Listeners for clients that send frames over TCP, without WebSocket: frames, order, one write per
// turn, limits, proxies and TLS. Their client sockets share the limits of a listener for
// WebSockets.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect, Socket } from "node:net";
import { mock } from "node:test";
import { connect as connectTls } from "node:tls";
import type { Test } from "tap";
import { ClientSockets } from "../../src/transport/client-sockets.ts";
import type { TcpListenerSpec } from "../../src/transport/types.ts";
import { localProxyHeader, proxyHeader, proxyHeader6 } from "../support/proxy-header.ts";
import { t } from "../support/suite.ts";
import {
  type Behaviour,
  connectionAt,
  HOST,
  lengthFrame,
  openClient,
  RawClient,
  socketEndpoint,
  socketLimits,
  startListener,
  startTcpListener,
  tlsFile,
  until,
} from "./support.ts";

const SLOW = 4001;
const PROXY = "127.0.0.1";
const STRANGER = "127.0.0.2";
const isLinux = process.platform === "linux";
const skip = isLinux ? false : "needs the loopback addresses of Linux";

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Starts a TCP listener whose connections have this behaviour. */
async function serve(t: Test, behaviour: Behaviour = {}, spec: Partial<TcpListenerSpec> = {}) {
  const errors: unknown[] = [];
  const onError = (error: unknown) => errors.push(error);
  const { seen, endpoint } = socketEndpoint(behaviour);
  const { limits = socketLimits() } = spec;
  const clients = new ClientSockets(endpoint, { limits, onError });
  const { listener, port } = await startTcpListener(t, clients, { onError, ...spec, limits });
  return { seen, endpoint, clients, listener, port, errors };
}

t.test("frames that are split at any byte, or share one write, arrive one by one", async (t) => {
  const received: string[] = [];
  const { port } = await serve(t, { received: (_seen, data) => received.push(data) });
  const client = new RawClient(t, port);
  const bytes = Buffer.concat(["one", "", "three"].map(lengthFrame));
  client.write(Buffer.concat([bytes, bytes.subarray(0, 6)]));
  await until(() => received.length === 5);
  for (const byte of bytes.subarray(6)) {
    client.write(Buffer.from([byte]));
    await nextTurn();
  }
  await until(() => received.length === 6);
  t.strictSame(received, ["one", "", "three", "one", "", "three"]);
});

t.test("frames sent to a client in one turn of the event loop are written together", async (t) => {
  const { port, seen, clients } = await serve(t, {
    received({ connection }, data) {
      connection.send(`${data} at once,`);
      void Promise.resolve().then(() => connection.send(`${data} later,`));
      clients.publish("topic", `${data} published,`);
    },
  });
  const client = new RawClient(t, port);
  const { connection } = await connectionAt(seen, 0);
  connection.subscribe("topic");
  await nextTurn();
  const write = mock.method(Socket.prototype, "write");
  t.teardown(() => write.mock.restore());
  client.write(Buffer.concat(["a", "b", "c"].map(lengthFrame)));
  await client.has("c later,");
  await client.has("c published,");
  const byServer = write.mock.calls.filter(
    ({ this: socket }) => (socket as Socket).localPort === port,
  );
  t.ok(
    byServer.length <= 2,
    "the turn has one write, and the published frames have at most one write",
  );
  t.equal(client.text.length, "abc".length * "x at once,x later,x published,".length);
  t.match(client.text, /^a at once,.*a published,.*b at once,.*b published,.*c at once,/);
});

t.test(
  "frames sent and published within a handler arrive in the order they were issued",
  async (t) => {
    const { port, clients } = await serve(t, {
      received({ connection }) {
        connection.send("1");
        connection.subscribe("topic");
        clients.publish("topic", "2");
        connection.send("3");
        clients.publish("topic", "4");
        connection.send("5");
        clients.publish("topic", "6");
      },
    });
    const client = new RawClient(t, port);
    client.write(lengthFrame("go"));
    await until(() => client.text.length === 6);
    t.equal(client.text, "123456");
  },
);

t.test("a publication reaches the subscribers on all listeners, except its sender", async (t) => {
  const { seen, endpoint, clients, port } = await serve(t);
  const { listener, port: webPort } = await startListener(t, { sockets: endpoint }, { clients });
  const tcp = [new RawClient(t, port)];
  await connectionAt(seen, 0);
  tcp.push(new RawClient(t, port));
  await connectionAt(seen, 1);
  const web = [await openClient(t, webPort), await openClient(t, webPort)];
  const connections = seen.map(({ connection }) => connection);
  t.same(
    connections.map((connection) => connection.listener),
    ["frames", "frames", "client", "client"],
  );
  for (const connection of connections) connection.subscribe("topic");
  for (const [at, connection] of connections.entries()) connection.publish("topic", `${at}`);
  clients.publish("topic", "all");
  const received = () => [
    ...tcp.map((client) => client.text),
    ...web.map(({ texts }) => texts.join("")),
  ];
  await until(() => received().every((text) => text.endsWith("all")));
  t.same(received(), ["123all", "023all", "013all", "012all"]);
  connections[1]?.unsubscribe("topic");
  listener.close();
  clients.publish("topic", ".");
  await tcp[0]?.has(".");
  t.equal(tcp[1]?.text, "023all", "a client that unsubscribed gets nothing more");
});

t.test("a client that reads too slowly is closed, and its frames have no gap", async (t) => {
  for (const way of ["send", "publish"] as const) {
    const { seen, clients, port } = await serve(t);
    const slow = new RawClient(t, port);
    const side = await connectionAt(seen, 0);
    const fast = new RawClient(t, port);
    await connectionAt(seen, 1);
    for (const { connection } of seen) connection.subscribe("topic");
    slow.socket.pause();
    const frame = (n: number) => `${String(n).padStart(7, "0")} ${"x".repeat(8000)}\n`;
    let count = 0;
    for (; side.closed.length === 0; count++) {
      if (way === "send") for (const { connection } of seen) connection.send(frame(count));
      else clients.publish("topic", frame(count));
      await nextTurn();
    }
    t.same(side.closed, [SLOW], `${way}: the slow client is closed`);
    t.ok(side.lags >= 1, "the client was reported as lagging before");
    await until(() => fast.received.length === count * frame(0).length);
    slow.socket.resume();
    await slow.closed();
    const numbers = slow.text.match(/\d{7}/g)?.map(Number) ?? [];
    t.same(numbers, [...numbers.keys()], "no frame is missing");
  }
});

t.test("a user's budget of unread bytes covers the user's clients on all listeners", async (t) => {
  const limits = { maxBufferedBytes: 4_000_000, maxBufferedBytesPerUser: 3_000_000 };
  const { seen, endpoint, clients, port } = await serve(t, { endpoint: limits });
  const { port: webPort } = await startListener(t, { sockets: endpoint }, { clients });
  const tcp = new RawClient(t, port);
  await connectionAt(seen, 0);
  const web = await openClient(t, webPort);
  for (const { connection } of seen) {
    connection.authenticated("alice");
    connection.subscribe("topic");
  }
  tcp.socket.pause();
  web.socket.pause();
  await until(() => {
    clients.publish("topic", "x".repeat(50_000));
    return seen.some(({ closed }) => closed.length > 0);
  });
  t.same(
    seen.flatMap(({ closed }) => closed),
    [SLOW],
    "the client with more unread bytes is dropped",
  );
});

t.test("a client is closed if it sends nothing for the idle time", async (t) => {
  const minutes = 10;
  mock.timers.enable({ apis: ["setInterval"] });
  t.teardown(() => mock.timers.reset());
  const { seen, port } = await serve(
    t,
    { received: ({ connection }, data) => connection.send(data) },
    { idleTimeoutS: 180 },
  );
  const pinging = new RawClient(t, port);
  const silent = new RawClient(t, port);
  await until(() => seen.length === 2);
  for (let minute = 1; minute <= minutes; minute++) {
    mock.timers.tick(60_000);
    pinging.write(lengthFrame(`${minute}.`));
    await pinging.has(`${minute}.`);
    const isSilentClosed = seen.some(({ closed }) => closed.length > 0);
    t.equal(isSilentClosed, minute > 3, `the silent client after ${minute} minutes`);
  }
  t.ok(silent.isClosed);
  t.notOk(pinging.isClosed, "a client that sends something every minute stays connected");
});

t.test("a client whose connection is ended receives its queued frames first", async (t) => {
  const { seen, port } = await serve(t, {
    received({ connection }) {
      connection.send("last");
      connection.end(4200, "kicked");
      connection.send("too late");
    },
  });
  const client = new RawClient(t, port);
  client.write(Buffer.concat([lengthFrame("a"), lengthFrame("b")]));
  await client.closed();
  t.equal(client.text, "last");
  t.same(
    seen.map(({ closed }) => closed),
    [[4200]],
  );
  const other = new RawClient(t, port);
  const side = await connectionAt(seen, 1);
  other.socket.destroy();
  await until(() => side.closed.length > 0);
  t.same(side.closed, [1006], "a client that vanished is reported with 1006");
});

t.test("a listener that stops accepting keeps its connections until it is closed", async (t) => {
  const { seen, port, listener } = await serve(t, {
    received: ({ connection }, data) => connection.send(data),
  });
  const client = new RawClient(t, port);
  await connectionAt(seen, 0);
  listener.stopAccepting();
  const late = connect({ port, host: HOST });
  await t.rejects(once(late, "connect"), { code: "ECONNREFUSED" });
  client.write(lengthFrame("hello"));
  await client.has("hello");
  listener.close();
  t.same(
    seen.map(({ closed }) => closed),
    [[1006]],
  );
  await client.closed();
});

t.test("TCP connections over the socket limits are closed", async (t) => {
  const refused: string[] = [];
  const limits = socketLimits({
    ...{ capacity: () => 4, maxUnauthenticatedPerAddress: 1 },
    onRefused: (reason) => refused.push(reason),
  });
  const { seen, port } = await serve(t, {}, { limits });
  t.teardown(() => limits.stop());
  const clients = [new RawClient(t, port), new RawClient(t, port), new RawClient(t, port)];
  await until(() => seen.length === 3);
  const fourth = new RawClient(t, port);
  await fourth.closed();
  t.same(refused, ["address"], "three quarters of all sockets may be silent");
  for (const client of clients) client.write(lengthFrame("x"));
  await until(() => limits.open === 3);
  const others = [new RawClient(t, port), new RawClient(t, port)];
  await until(() => others.some(({ isClosed }) => isClosed));
  t.same(refused, ["address", "max"]);
  for (const client of [...clients, ...others]) client.socket.destroy();
  await until(() => limits.open === 0);
});

t.test(
  "the address of a client behind a trusted proxy is taken from the PROXY header of version 1 or 2",
  { skip },
  async (t) => {
    const { seen, port } = await serve(
      t,
      { received: ({ connection }) => connection.send(`<${connection.remoteAddress}>`) },
      { trustedProxies: [PROXY, "10.0.0.0/8"] },
    );
    const cases: readonly (readonly [string, Buffer | string, string])[] = [
      ["version 1", "PROXY TCP4 203.0.113.7 10.0.0.1 5000 5100\r\n", "203.0.113.7"],
      ["version 1, IPv6", "PROXY TCP6 2001:db8::1 ::1 5000 5100\r\n", "2001:db8::1"],
      ["version 1, unknown", "PROXY UNKNOWN ffff:: ::1 1 2\r\n", PROXY],
      ["version 2", proxyHeader("203.0.113.8"), "203.0.113.8"],
      ["version 2, IPv6", proxyHeader6("20010db8000000000000000000000002"), "2001:db8::2"],
      ["version 2, local", localProxyHeader(), PROXY],
      ["no header", "", PROXY],
    ];
    for (const [name, header, address] of cases) {
      const bytes = Buffer.concat([Buffer.from(header), lengthFrame("hi")]);
      const whole = new RawClient(t, port);
      whole.write(bytes);
      await whole.has(`<${address}>`);
      const cut = new RawClient(t, port);
      for (const byte of bytes) {
        cut.write(Buffer.from([byte]));
        await nextTurn();
      }
      await cut.has(`<${address}>`);
      t.pass(name);
    }
    const opened = seen.length;
    for (const header of [
      "PROXY TCP4 203.0.113.7\r\n",
      "PROXY TCP4 2001:db8::1 ::1 1 2\r\n",
      "PROXY UDP4 203.0.113.7 10.0.0.1 1 2\r\n",
      `PROXY ${"x".repeat(200)}`,
      Buffer.concat([proxyHeader("203.0.113.8").subarray(0, 12), Buffer.from([0x55, 0x11, 0, 0])]),
    ]) {
      const client = new RawClient(t, port);
      client.write(Buffer.from(header));
      await client.closed();
    }
    t.equal(seen.length, opened, "a malformed header closes the connection");
  },
);

t.test(
  "a PROXY header from a peer that is not a trusted proxy is passed on as a frame",
  { skip },
  async (t) => {
    const received: string[] = [];
    const { seen, port } = await serve(
      t,
      { received: (_seen, data) => received.push(data) },
      { trustedProxies: [PROXY] },
    );
    const client = new RawClient(t, port, HOST, STRANGER);
    client.write("PROXY TCP4 203.0.113.7 10.0.0.1 5000 5100\r\n".padEnd(81));
    await until(() => received.length === 1);
    t.match(received[0], /^ROXY TCP4/);
    t.equal(seen[0]?.connection.remoteAddress, STRANGER);
  },
);

t.test("clients can be served over TLS, even after a PROXY header", { skip }, async (t) => {
  const files = { certFile: tlsFile("cert.pem"), keyFile: tlsFile("key.pem") };
  const { seen, port, errors } = await serve(
    t,
    { received: ({ connection }) => connection.send(`<${connection.remoteAddress}>`) },
    {
      tls: { ...files, caFile: tlsFile("cert.pem"), passphrase: undefined },
      trustedProxies: [PROXY],
    },
  );
  const ca = readFileSync(tlsFile("cert.pem"));
  const address = async (header: string, own: object = {}) => {
    const plain = connect({ port, host: HOST });
    plain.write(header);
    const socket = connectTls({ socket: plain, ca, ...own });
    t.teardown(() => plain.destroy());
    socket.on("error", () => {});
    socket.write(lengthFrame("hi"));
    const outcome = await Promise.race([
      once(socket, "data").then(([data]) => String(data)),
      once(socket, "close").then(() => "closed"),
    ]);
    socket.destroy();
    return outcome;
  };
  t.equal(await address(""), `<${PROXY}>`);
  t.equal(await address("PROXY TCP4 203.0.113.7 10.0.0.1 5000 5100\r\n"), "<203.0.113.7>");
  const foreign = {
    cert: readFileSync(tlsFile("other-cert.pem")),
    key: readFileSync(tlsFile("other-key.pem")),
  };
  t.equal(await address("", foreign), "closed", "a client certificate of another CA is refused");
  const plain = new RawClient(t, port);
  plain.write(lengthFrame("hello without TLS"));
  await plain.closed();
  t.equal(seen.length, 2, "a client without TLS is refused");
  t.same(errors, []);
});

t.test("a connection whose handler throws is closed with the code 1011", async (t) => {
  const { seen, clients, port } = await serve(t, {
    received() {
      throw new Error("a bug");
    },
  });
  t.ok(clients);
  const client = new RawClient(t, port);
  client.write(lengthFrame("hi"));
  await client.closed();
  t.same(
    seen.map(({ closed }) => closed),
    [[1011]],
  );
});

t.test("connections that the endpoint does not accept are closed", async (t) => {
  const { seen, port } = await serve(t, { endpoint: { accept: () => ({ status: 503 }) } });
  const client = new RawClient(t, port);
  await client.closed();
  t.equal(seen.length, 0);
});
