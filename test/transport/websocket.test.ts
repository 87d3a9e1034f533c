// The handshake, the frames and the limits of client sockets.

import type { Upgrade } from "../../src/transport/types.ts";
import { t } from "../support/suite.ts";
import {
  connectionAt,
  HOST,
  httpEndpoint,
  openClient,
  RawClient,
  socketEndpoint,
  startListener,
  text,
  until,
} from "./support.ts";

const KEY = "dGhlIHNhbXBsZSBub25jZQ==";
const upgradeRequest = (extra: string): string =>
  `GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n${extra}\r\n\r\n`;

t.test("the endpoint receives the upgrade and chooses the subprotocol", async (t) => {
  const upgrades: Upgrade[] = [];
  const { endpoint } = socketEndpoint({
    endpoint: {
      headers: ["x-service", "x-absent"],
      accept(upgrade) {
        upgrades.push(upgrade);
        return { subprotocol: upgrade.subprotocols[1] };
      },
    },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const url = `ws://${HOST}:${port}/some/path`;
  const { WebSocket } = await import("ws");
  const headers = { "X-Service": "app", "x-other": "not named by the endpoint" };
  const socket = new WebSocket(url, ["one", "two"], { origin: "https://a.b", headers });
  t.teardown(() => socket.terminate());
  await until(() => socket.readyState === WebSocket.OPEN);
  t.equal(socket.protocol, "two");
  t.strictSame(upgrades, [
    {
      path: "/some/path",
      origin: "https://a.b",
      subprotocols: ["one", "two"],
      remoteAddress: HOST,
      headers: { "x-service": "app" },
    },
  ]);
});

t.test("subprotocols in several header lines are offered together", async (t) => {
  const upgrades: Upgrade[] = [];
  const { endpoint } = socketEndpoint({
    endpoint: {
      accept(upgrade) {
        upgrades.push(upgrade);
        return { subprotocol: upgrade.subprotocols.at(-1) };
      },
    },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const client = new RawClient(t, port);
  const lines = ["one, two", "three"].map((names) => `sec-websocket-protocol: ${names}`);
  const handshake = [`sec-websocket-key: ${KEY}`, "sec-websocket-version: 13", ...lines];
  client.write(upgradeRequest(`${handshake.join("\r\n")}\r\n`));
  await client.has("\r\n\r\n");
  t.match(client.text, /^HTTP\/1.1 101 /);
  t.match(client.text, /sec-websocket-protocol: three\r\n/i);
  t.strictSame(upgrades[0]?.subprotocols, ["one", "two", "three"]);
});

t.test("a client that offers no subprotocol gets no subprotocol", async (t) => {
  const upgrades: Upgrade[] = [];
  const { endpoint } = socketEndpoint({
    endpoint: {
      accept(upgrade) {
        upgrades.push(upgrade);
        return { subprotocol: undefined };
      },
    },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  t.equal(client.socket.protocol, "");
  t.match(upgrades, [{ origin: "", subprotocols: [] }]);
});

t.test("a refused upgrade is answered with the status that the endpoint chose", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { accept: () => ({ status: 403 }) },
  });
  const { port, errors } = await startListener(t, { sockets: endpoint });
  await t.rejects(openClient(t, port), /403/);
  t.strictSame(seen, []);
  t.strictSame(errors, []);
});

t.test("an upgrade with a WebSocket version other than 13 is answered with 426", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const client = new RawClient(t, port);
  client.write(upgradeRequest(`sec-websocket-key: ${KEY}\r\nsec-websocket-version: 8`));
  await client.closed();
  t.match(client.text, /^HTTP\/1.1 426 /);
  t.match(client.text, /sec-websocket-version: 13\r\n/);
  t.strictSame(seen, []);
});

t.test("an upgrade without a valid key is handled as an ordinary call", async (t) => {
  const { endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  for (const key of ["", "sec-websocket-key: short"]) {
    const client = new RawClient(t, port);
    client.write(upgradeRequest(`sec-websocket-version: 13\r\n${key || "a: b"}`));
    await client.closed();
    t.match(client.text, /^HTTP\/1.1 426 /);
  }
});

t.test("a listener that serves only sockets answers every call with 426", async (t) => {
  const { endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  for (const method of ["GET", "POST", "OPTIONS"]) {
    const response = await fetch(`http://${HOST}:${port}/x`, { method });
    t.equal(response.status, 426);
    t.equal(response.headers.get("upgrade"), "websocket");
  }
  const huge = new RawClient(t, port);
  huge.write("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n");
  await huge.closed();
  t.match(huge.text, /^HTTP\/1.1 426 /);
});

t.test("a listener that serves only HTTP answers an upgrade with 404", async (t) => {
  const { port } = await startListener(t, { http: httpEndpoint([]) });
  const client = new RawClient(t, port);
  client.write(upgradeRequest(`sec-websocket-key: ${KEY}\r\nsec-websocket-version: 13`));
  await client.has("none GET /");
  t.match(client.text, /^HTTP\/1.1 404 /);
});

t.test("one listener can serve HTTP calls and sockets", async (t) => {
  const { endpoint } = socketEndpoint({
    received: ({ connection }, data) => connection.send(data),
  });
  const route = { method: "GET", path: "/a", handle: () => text("a") } as const;
  const http = httpEndpoint([route]);
  const { port } = await startListener(t, { http, sockets: endpoint });
  const client = await openClient(t, port);
  client.socket.send("hello");
  await until(() => client.texts.length === 1);
  t.equal(await (await fetch(`http://${HOST}:${port}/a`)).text(), "a");
  t.equal((await fetch(`http://${HOST}:${port}/b`)).status, 404);
});

t.test("text frames stay text and binary frames stay binary, in both directions", async (t) => {
  const received: [string, boolean][] = [];
  const { endpoint } = socketEndpoint({
    received({ connection }, data, isText) {
      received.push([data, isText]);
      const bytes = Buffer.from(`__${data}__`);
      connection.send(isText ? data : bytes.subarray(2, -2));
    },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  client.socket.send("tëxt 信");
  client.socket.send(Buffer.from("bytes"));
  client.socket.send("");
  await until(() => client.texts.length + client.binaries.length === 3);
  t.strictSame(received, [
    ["tëxt 信", true],
    ["bytes", false],
    ["", true],
  ]);
  t.strictSame(client.texts, ["tëxt 信", ""]);
  t.strictSame(client.binaries.map(String), ["bytes"]);
});

t.test("each connection has its own id and the address of its peer", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const other = await startListener(t, { sockets: endpoint });
  await openClient(t, port);
  await openClient(t, port);
  await openClient(t, other.port);
  const connections = seen.map(({ connection }) => connection);
  t.equal(new Set(connections.map(({ id }) => id)).size, 3);
  t.ok(connections.every(({ remoteAddress }) => remoteAddress === HOST));
});

t.test("a frame over `maxFrameBytes` closes only its connection", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    received: ({ connection }, data) => connection.send(`${data.length}`),
    endpoint: { maxFrameBytes: 1000 },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const fine = await openClient(t, port);
  const greedy = await openClient(t, port);
  greedy.socket.send("x".repeat(1000));
  await until(() => greedy.texts.length === 1);
  greedy.socket.send("x".repeat(1001));
  await until(() => greedy.closed.length === 1);
  t.match(seen[1], { closed: [1006] });
  fine.socket.send("hello");
  await until(() => fine.texts.length === 1);
  t.strictSame(fine.closed, []);
});

t.test("`closed` is called once with the peer's close code", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const polite = await openClient(t, port);
  const silent = await openClient(t, port);
  const gone = await openClient(t, port);
  polite.socket.close(4321, "bye");
  silent.socket.close();
  gone.socket.terminate();
  await until(() => seen.every(({ closed }) => closed.length > 0));
  await until(() => polite.closed.length === 1);
  t.strictSame(
    seen.map(({ closed }) => closed),
    [[4321], [1005], [1006]],
  );
});

t.test("text that is not UTF-8 closes the connection", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  client.socket.send(Buffer.from([0xff, 0xfe]), { binary: false });
  const serverSide = await connectionAt(seen, 0);
  await until(() => serverSide.closed.length > 0);
  t.strictSame(serverSide.closed, [1006]);
});

t.test("a published frame reaches the subscribers of its topic", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const inA = await openClient(t, port);
  const inB = await openClient(t, port);
  seen[0]?.connection.subscribe("a");
  seen[1]?.connection.subscribe("b");
  listener.publish("a", "to a");
  listener.publish("b", Buffer.from("to b"));
  listener.publish("nobody", "to nobody");
  await until(() => inA.texts.length + inB.binaries.length === 2);
  t.strictSame([inA.texts, inA.binaries], [["to a"], []]);
  t.strictSame([inB.texts, inB.binaries.map(String)], [[], ["to b"]]);
});

t.test(
  "a connection does not receive its own publications, whether it is subscribed or not",
  async (t) => {
    const { seen, endpoint } = socketEndpoint();
    const { port } = await startListener(t, { sockets: endpoint });
    const [member, other, stranger] = [
      await openClient(t, port),
      await openClient(t, port),
      await openClient(t, port),
    ];
    seen[0]?.connection.subscribe("a");
    seen[1]?.connection.subscribe("a");
    seen[0]?.connection.publish("a", "from the member");
    seen[2]?.connection.publish("a", "from the stranger");
    seen[2]?.connection.subscribe("b");
    seen[2]?.connection.publish("a", "from a member of b");
    for (const { connection } of seen) connection.send("last");
    await until(() => [member, other, stranger].every(({ texts }) => texts.includes("last")));
    const fromStranger = ["from the stranger", "from a member of b", "last"];
    t.strictSame(other.texts, ["from the member", ...fromStranger]);
    t.strictSame(member.texts, fromStranger);
    t.strictSame(stranger.texts, ["last"]);
  },
);

t.test("an error in a handler closes its connection and is reported", async (t) => {
  const bug = new Error("bug");
  const fail = (): never => {
    throw bug;
  };
  const { seen, endpoint } = socketEndpoint({ received: fail });
  const { port, errors } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  client.socket.send("one");
  client.socket.send("two");
  await until(() => client.closed.length === 1);
  t.match(client.closed, [{ code: 1011 }]);
  t.strictSame(seen[0]?.closed, [1011]);
  t.match(errors, [{ error: bug }]);
  t.equal(errors.length, 1);
});

t.test(
  "an error in `accept` causes status 500, and an error in `open` causes close code 1011",
  async (t) => {
    const bug = new Error("bug");
    const fail = (): never => {
      throw bug;
    };
    const refusing = socketEndpoint({ endpoint: { accept: fail } });
    const first = await startListener(t, { sockets: refusing.endpoint });
    await t.rejects(openClient(t, first.port), /500/);
    t.match(first.errors, [{ error: bug }]);

    const failing = socketEndpoint({ endpoint: { open: fail } });
    const second = await startListener(t, { sockets: failing.endpoint });
    const client = await openClient(t, second.port);
    await until(() => client.closed.length === 1);
    t.match(client.closed, [{ code: 1011 }]);
    t.match(second.errors, [{ error: bug }]);
  },
);

t.test("errors in `drained` and `closed` are reported", async (t) => {
  const [inDrained, inClosed] = [new Error("drained"), new Error("closed")];
  const { endpoint } = socketEndpoint({
    endpoint: {
      open(connection) {
        connection.send("hello");
        return {
          received: () => undefined,
          pinged: () => undefined,
          drained() {
            throw inDrained;
          },
          lagging: () => undefined,
          closed() {
            throw inClosed;
          },
        };
      },
    },
  });
  const { port, errors } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  await until(() => client.closed.length === 1);
  t.match(client.closed, [{ code: 1011 }]);
  t.match(errors, [{ error: inDrained }, { error: inClosed }]);
  t.equal((await fetch(`http://${HOST}:${port}/`)).status, 426);
});
