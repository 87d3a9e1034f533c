// One client socket: the order of what it is sent, its end, and errors of its owner.

import { connect, createServer, type Socket } from "node:net";
import type { Test } from "tap";
import { t } from "../support/suite.ts";
import {
  connectionAt,
  HOST,
  openClient,
  sendTogether,
  socketEndpoint,
  startListener,
  tlsFile,
  until,
} from "./support.ts";

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

const numbers = (count: number): string[] => Array.from({ length: count }, (_, i) => `${i}`);

t.test("frames arrive in the order they were sent", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const { connection } = await connectionAt(seen, 0);
  const frames = numbers(3000).map((n) => n.padEnd(1 + (Number(n) % 90), "."));
  for (const frame of frames.slice(0, 2000)) connection.send(frame);
  await nextTurn();
  for (const frame of frames.slice(2000)) connection.send(frame);
  await until(() => client.texts.length === frames.length);
  t.strictSame(client.texts, frames);
});

t.test("text and bytes of one turn keep their order", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const order: string[] = [];
  client.socket.on("message", (data, isBinary) => order.push(`${isBinary ? "b" : "t"}${data}`));
  const { connection } = await connectionAt(seen, 0);
  connection.send("1");
  connection.send(Buffer.from("2"));
  connection.send("3");
  await until(() => order.length === 3);
  t.strictSame(order, ["t1", "b2", "t3"]);
});

t.test("answers from within a handler keep their place", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    received: ({ connection }, data) => connection.send(`answer ${data}`),
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const { connection } = await connectionAt(seen, 0);
  client.socket.on("message", (data) => {
    if (String(data) === "answer 1") connection.send("from elsewhere");
  });
  for (const n of numbers(100)) client.socket.send(n);
  await until(() => client.texts.length === 101);
  t.strictSame(
    client.texts.filter((frame) => frame.startsWith("answer")),
    numbers(100).map((n) => `answer ${n}`),
  );
});

t.test("a frame queued in this turn goes before a straight answer", async (t) => {
  const { endpoint } = socketEndpoint({
    received({ connection }, data) {
      if (data === "1") queueMicrotask(() => connection.send("queued"));
      else connection.send("straight");
    },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  sendTogether(client, ["1", "2"]);
  await until(() => client.texts.length === 2);
  t.strictSame(client.texts, ["queued", "straight"]);
});

t.test("what another connection queued goes before a straight answer", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    received(one, data) {
      // Both clients' frames may be handled in one turn: the first queues for the second, which
      // then answers straight.
      const other = seen.find((it) => it !== one);
      other?.connection.send(`for you ${data}`);
      one.connection.send(`mine ${data}`);
    },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const first = await openClient(t, port);
  const second = await openClient(t, port);
  for (const n of numbers(50)) {
    first.socket.send(n);
    second.socket.send(n);
  }
  await until(() => first.texts.length + second.texts.length === 200);
  for (const { texts } of [first, second])
    for (const kind of ["for you", "mine"])
      t.strictSame(
        texts.filter((frame) => frame.startsWith(kind)),
        numbers(50).map((n) => `${kind} ${n}`),
      );
});

t.test("within a handler, sends and publishes arrive as issued", async (t) => {
  const { endpoint } = socketEndpoint({
    received({ connection }) {
      connection.send("1");
      connection.subscribe("topic");
      listener.publish("topic", "2");
      connection.send("3");
      listener.publish("topic", "4");
      connection.send("5");
      listener.publish("topic", "6");
    },
  });
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  client.socket.send("go");
  await until(() => client.texts.length === 6);
  t.strictSame(client.texts, ["1", "2", "3", "4", "5", "6"]);
});

t.test("what was sent comes before what is published after a subscribe", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const { connection } = await connectionAt(seen, 0);
  listener.publish("topic", "before: not for it");
  for (const n of numbers(40)) connection.send(n);
  connection.subscribe("topic");
  for (const n of numbers(40)) listener.publish("topic", `p${n}`);
  await until(() => client.texts.length === 80);
  t.strictSame(client.texts, [...numbers(40), ...numbers(40).map((n) => `p${n}`)]);
});

t.test("what is sent after a publish arrives after it", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const { connection } = await connectionAt(seen, 0);
  connection.subscribe("topic");
  for (const n of numbers(40)) {
    listener.publish("topic", `p${n}`);
    connection.send(n);
  }
  await until(() => client.texts.length === 80);
  const { texts } = client;
  for (const n of numbers(40)) t.ok(texts.indexOf(`p${n}`) < texts.indexOf(n));
  t.strictSame(
    texts.filter((frame) => frame.startsWith("p")),
    numbers(40).map((n) => `p${n}`),
  );
});

t.test("what was published before an unsubscribe still comes", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const { connection } = await connectionAt(seen, 0);
  connection.subscribe("topic");
  listener.publish("topic", "before");
  connection.unsubscribe("topic");
  listener.publish("topic", "after");
  connection.unsubscribe("never subscribed");
  connection.send("last");
  await until(() => client.texts.includes("last"));
  t.strictSame(client.texts, ["before", "last"]);
});

t.test("everything sent or published goes out before the close frame", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  one.connection.subscribe("topic");
  listener.publish("topic", "published");
  one.connection.send("sent");
  one.connection.end(4200, "enough");
  t.strictSame(one.closed, [4200], "closed is told before end returns");
  one.connection.send("too late");
  listener.publish("topic", "too late");
  await until(() => client.closed.length === 1);
  t.strictSame(client.texts, ["published", "sent"]);
  t.strictSame(client.closed, [{ code: 4200, reason: "enough" }]);
  await nextTurn();
  t.strictSame(one.closed, [4200]);
});

t.test("a connection can be ended in its handler and while it opens", async (t) => {
  const inHandler = socketEndpoint({
    received({ connection }) {
      connection.send("going");
      connection.end(4001, "in handler");
    },
  });
  const first = await startListener(t, { sockets: inHandler.endpoint });
  const talker = await openClient(t, first.port);
  talker.socket.send("1");
  talker.socket.send("2");
  await until(() => talker.closed.length === 1);
  t.strictSame(talker.closed, [{ code: 4001, reason: "in handler" }]);
  t.strictSame(talker.texts, ["going"]);
  t.strictSame(inHandler.seen[0]?.closed, [4001]);

  const inOpen = socketEndpoint({
    opened: ({ connection }) => connection.end(4002, "in open"),
  });
  const second = await startListener(t, { sockets: inOpen.endpoint });
  const comer = await openClient(t, second.port);
  await until(() => comer.closed.length === 1);
  t.strictSame(comer.closed, [{ code: 4002, reason: "in open" }]);
  t.strictSame(inOpen.seen[0]?.closed, [4002]);
});

t.test("methods of a closed connection are harmless", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, errors } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  one.connection.send("queued when it closes");
  client.socket.terminate();
  await until(() => one.closed.length === 1);
  one.connection.send("x");
  one.connection.subscribe("topic");
  one.connection.publish("topic", "x");
  one.connection.unsubscribe("topic");
  one.connection.end(4000, "again");
  await nextTurn();
  t.equal(one.connection.bufferedBytes(), 0);
  t.strictSame(one.closed, [1006]);
  t.strictSame(errors, []);
});

t.test("what waits is counted, and its leaving told", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 100_000_000 },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  t.equal(one.connection.bufferedBytes(), 0);
  one.connection.send("four");
  one.connection.send("fünf");
  t.equal(one.connection.bufferedBytes(), 9);
  await until(() => one.drains > 0);
  t.equal(one.connection.bufferedBytes(), 0);

  client.socket.pause();
  const frame = Buffer.alloc(1_000_000);
  for (let i = 0; i < 20; i++) one.connection.send(frame);
  await nextTurn();
  const buffered = one.connection.bufferedBytes();
  t.ok(buffered > 1_000_000, `${buffered} bytes wait`);
  const drains = one.drains;
  client.socket.resume();
  await until(() => one.connection.bufferedBytes() === 0);
  t.ok(one.drains > drains);
  await until(() => client.binaries.length === 20);
});

/** A TCP relay in front of `port`; counts the TLS application records that come back through it. */
async function countRecords(
  t: Test,
  port: number,
): Promise<{ readonly port: number; records(): number }> {
  let records = 0;
  let pending = Buffer.alloc(0);
  const count = (data: Buffer): void => {
    pending = Buffer.concat([pending, data]);
    while (pending.length >= 5 && pending.length >= 5 + pending.readUInt16BE(3)) {
      if (pending[0] === 23) records += 1;
      pending = pending.subarray(5 + pending.readUInt16BE(3));
    }
  };
  const sockets: Socket[] = [];
  const relay = createServer((client) => {
    const server = connect(port, HOST);
    server.on("data", count);
    client.pipe(server).pipe(client);
    for (const socket of [client, server]) sockets.push(socket.on("error", () => undefined));
  });
  await new Promise<void>((resolve) => relay.listen(0, HOST, resolve));
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    relay.close();
  });
  const address = relay.address();
  if (address === null || typeof address === "string") throw new Error();
  return { port: address.port, records: () => records };
}

t.test("frames of one turn leave in one write", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    received({ connection }) {
      for (const n of numbers(64)) connection.send(`straight ${n}`);
    },
  });
  const tls = {
    certFile: tlsFile("cert.pem"),
    keyFile: tlsFile("key.pem"),
    caFile: undefined,
    passphrase: undefined,
  };
  const { port } = await startListener(t, { sockets: endpoint, tls });
  const relay = await countRecords(t, port);
  const client = await openClient(t, relay.port, {
    url: `wss://${HOST}:${relay.port}/`,
    rejectUnauthorized: false,
  });
  const { connection } = await connectionAt(seen, 0);

  const before = relay.records();
  for (const n of numbers(64)) connection.send(n);
  await until(() => client.texts.length === 64);
  t.equal(relay.records() - before, 1, "queued frames");

  client.socket.send("go");
  await until(() => client.texts.length === 128);
  t.equal(relay.records() - before, 2, "answers within a handler");
});

t.test("what a connection publishes after its end still reaches the others", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  await openClient(t, port);
  const other = await openClient(t, port);
  const { connection: sender } = await connectionAt(seen, 0);
  const { connection } = await connectionAt(seen, 1);
  sender.subscribe("room");
  connection.subscribe("room");
  sender.publish("room", "before");
  sender.end(4001, "too slow");
  sender.publish("room", "after");
  await until(() => other.texts.length === 2);
  t.strictSame(other.texts, ["before", "after"]);
});
