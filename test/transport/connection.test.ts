// One client socket: the order of its frames, its end, and errors of its owner.

import { connect, createServer, type Socket } from "node:net";
import type { Test } from "tap";
import { TurnTask } from "../../src/lib/turn-task.ts";
import { t } from "../support/suite.ts";
import {
  connectionAt,
  HOST,
  IS_PORTABLE,
  openClient,
  sendTogether,
  socketEndpoint,
  startListener,
  tlsFile,
  until,
} from "./support.ts";

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

const numbers = (count: number): string[] => Array.from({ length: count }, (_, i) => `${i}`);

/** Starts a listener and connects a client. `connection` is the server's side of the client. */
async function openPair(t: Test) {
  const { seen, endpoint } = socketEndpoint();
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const { connection } = await connectionAt(seen, 0);
  return { listener, client, connection };
}

t.test("frames arrive in the order they were sent", async (t) => {
  const { client, connection } = await openPair(t);
  const frames = numbers(3000).map((n) => n.padEnd(1 + (Number(n) % 90), "."));
  for (const frame of frames.slice(0, 2000)) connection.send(frame);
  await nextTurn();
  for (const frame of frames.slice(2000)) connection.send(frame);
  await until(() => client.texts.length === frames.length);
  t.strictSame(client.texts, frames);
});

t.test("text and binary frames of one turn keep their order", async (t) => {
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

t.test("replies sent within a handler keep their order", async (t) => {
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

/**
 * Reason to skip a test on the portable driver. Its library `ws` delivers all frames of one packet
 * before any promise continues.
 */
const skip = IS_PORTABLE ? "the frames of one packet are handled in one turn" : false;

t.test("a frame sent outside a handler arrives before later replies", { skip }, async (t) => {
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

t.test(
  "a client's replies stay in order, and so do the frames that another connection queues for the client",
  async (t) => {
    const { seen, endpoint } = socketEndpoint({
      received(sender, data) {
        // Frames of both clients may be handled in one turn. The handler of one client's frame then
        // queues a frame for the other client before the other client's reply is written directly.
        const other = seen.find((side) => side !== sender);
        other?.connection.send(`for you ${data}`);
        sender.connection.send(`mine ${data}`);
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
  },
);

t.test(
  "frames sent and published within a handler arrive in the order they were issued",
  async (t) => {
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
  },
);

t.test("frames sent before a subscribe arrive before the publications of the topic", async (t) => {
  const { listener, client, connection } = await openPair(t);
  listener.publish("topic", "before: not for it");
  for (const n of numbers(40)) connection.send(n);
  connection.subscribe("topic");
  for (const n of numbers(40)) listener.publish("topic", `p${n}`);
  await until(() => client.texts.length === 80);
  t.strictSame(client.texts, [...numbers(40), ...numbers(40).map((n) => `p${n}`)]);
});

t.test("frames sent before a flush arrive before later publications", async (t) => {
  const { listener, client, connection } = await openPair(t);
  connection.subscribe("topic");
  for (const n of numbers(40)) {
    connection.send(n);
    connection.flush();
    listener.publish("topic", `p${n}`);
  }
  await until(() => client.texts.length === 80);
  t.strictSame(
    client.texts,
    numbers(40).flatMap((n) => [n, `p${n}`]),
  );
});

t.test("a frame sent after a publish arrives after the publication", async (t) => {
  const { listener, client, connection } = await openPair(t);
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

t.test("a frame published before an unsubscribe still arrives", async (t) => {
  const { listener, client, connection } = await openPair(t);
  connection.subscribe("topic");
  listener.publish("topic", "before");
  connection.unsubscribe("topic");
  listener.publish("topic", "after");
  connection.unsubscribe("never subscribed");
  connection.send("last");
  await until(() => client.texts.includes("last"));
  t.strictSame(client.texts, ["before", "last"]);
});

t.test("all frames sent or published before `end` arrive before the close frame", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const serverSide = await connectionAt(seen, 0);
  serverSide.connection.subscribe("topic");
  listener.publish("topic", "published");
  serverSide.connection.send("sent");
  serverSide.connection.end(4200, "enough");
  t.strictSame(serverSide.closed, [4200], "`closed` is called before `end` returns");
  serverSide.connection.send("too late");
  listener.publish("topic", "too late");
  await until(() => client.closed.length === 1);
  t.strictSame(client.texts, ["published", "sent"]);
  t.strictSame(client.closed, [{ code: 4200, reason: "enough" }]);
  await nextTurn();
  t.strictSame(serverSide.closed, [4200]);
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

t.test("methods of a closed connection have no effect", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, errors } = await startListener(t, { sockets: endpoint });
  const client = await openClient(t, port);
  const serverSide = await connectionAt(seen, 0);
  serverSide.connection.send("queued when it closes");
  client.socket.terminate();
  await until(() => serverSide.closed.length === 1);
  serverSide.connection.send("x");
  serverSide.connection.flush();
  serverSide.connection.subscribe("topic");
  serverSide.connection.publish("topic", "x");
  serverSide.connection.unsubscribe("topic");
  serverSide.connection.end(4000, "again");
  await nextTurn();
  t.equal(serverSide.connection.bufferedBytes(), 0);
  t.strictSame(serverSide.closed, [1006]);
  t.strictSame(errors, []);
});

t.test(
  "a connection counts its unread bytes and notifies its owner when they are read",
  async (t) => {
    const { seen, endpoint } = socketEndpoint({
      endpoint: { maxBufferedBytes: 100_000_000 },
    });
    const { port } = await startListener(t, { sockets: endpoint });
    const client = await openClient(t, port);
    const serverSide = await connectionAt(seen, 0);
    t.equal(serverSide.connection.bufferedBytes(), 0);
    serverSide.connection.send("four");
    serverSide.connection.send("fünf");
    t.equal(serverSide.connection.bufferedBytes(), 9);
    await until(() => serverSide.drains > 0);
    t.equal(serverSide.connection.bufferedBytes(), 0);

    client.socket.pause();
    const frame = Buffer.alloc(1_000_000);
    for (let i = 0; i < 20; i++) serverSide.connection.send(frame);
    await nextTurn();
    const buffered = serverSide.connection.bufferedBytes();
    t.ok(buffered > 1_000_000, `${buffered} bytes are unread`);
    const drains = serverSide.drains;
    client.socket.resume();
    await until(() => serverSide.connection.bufferedBytes() === 0);
    t.ok(serverSide.drains > drains);
    await until(() => client.binaries.length === 20);
  },
);

/**
 * Starts a TCP relay in front of `port` that counts the TLS application records sent by the server.
 */
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

t.test("frames of one turn are sent in one write", async (t) => {
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
  t.equal(relay.records() - before, 1, "64 queued frames are sent in one TLS record");

  client.socket.send("go");
  await until(() => client.texts.length === 128);
  t.equal(relay.records() - before, 2, "replies within a handler are sent in one TLS record");
});

t.test(
  "frames that a connection publishes before and after its end reach the other subscribers",
  async (t) => {
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
  },
);

/** Keeps the event loop busy until a scheduled task is overdue. */
function blockUntilOverdue(): void {
  const endMs = performance.now() + 6;
  while (performance.now() < endMs);
}

t.test(
  "an overdue task runs right after a client has disconnected, before the iteration of the event loop ends",
  async (t) => {
    const order: string[] = [];
    const task = new TurnTask(() => order.push("task"));
    const { seen, endpoint } = socketEndpoint({
      closed() {
        setImmediate(() => order.push("end of the iteration"));
        task.schedule();
        blockUntilOverdue();
      },
    });
    const { port } = await startListener(t, { sockets: endpoint });
    const client = await openClient(t, port);
    await connectionAt(seen, 0);
    client.socket.terminate();
    await until(() => order.length === 2);
    t.strictSame(order, ["task", "end of the iteration"]);
  },
);

t.test("no overdue task runs inside the call that closes a connection", async (t) => {
  const { connection } = await openPair(t);
  let runs = 0;
  const task = new TurnTask(() => {
    runs += 1;
  });
  task.schedule();
  blockUntilOverdue();
  connection.end(4000, "bye");
  t.equal(runs, 0);
  await nextTurn();
  t.equal(runs, 1);
});
