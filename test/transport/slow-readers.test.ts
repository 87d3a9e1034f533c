// Slow readers are closed without a gap in their frames, and other connections are not affected.

import { GracefulCloses } from "../../src/transport/graceful-closes.ts";
import { t } from "../support/suite.ts";
import {
  type Client,
  connectionAt,
  openClient,
  RawClient,
  type Seen,
  sendTogether,
  socketEndpoint,
  startListener,
  until,
} from "./support.ts";

const SLOW = 4001;
const FRAME_BYTES = 8000;
const UPGRADE =
  "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Returns a numbered frame, so that a gap can be detected. */
function frame(n: number, size = FRAME_BYTES): Buffer {
  const bytes = Buffer.alloc(size);
  bytes.writeUInt32BE(n);
  return bytes;
}

/** Checks that the client received frames 0, 1, 2 … without a gap, and returns their number. */
function prefixLength({ binaries }: Client): number {
  const firstGap = binaries.findIndex((bytes, i) => bytes.readUInt32BE() !== i);
  if (firstGap >= 0) throw new Error(`frame ${firstGap} is missing`);
  return binaries.length;
}

async function publishUntilClosed(
  publish: (bytes: Buffer) => unknown,
  serverSide: Seen,
): Promise<number> {
  let count = 0;
  while (serverSide.closed.length === 0) {
    publish(frame(count));
    count += 1;
    await nextTurn();
  }
  return count;
}

t.test(
  "a reader that is too slow for publications is disconnected, and other readers are not affected",
  async (t) => {
    const { seen, endpoint } = socketEndpoint();
    const { port, listener } = await startListener(t, { sockets: endpoint });
    const slow = await openClient(t, port);
    const fast = await openClient(t, port);
    for (const { connection } of seen) connection.subscribe("topic");
    slow.socket.pause();
    const serverSide = await connectionAt(seen, 0);
    const publish = (bytes: Buffer) => listener.publish("topic", bytes);
    const count = await publishUntilClosed(publish, serverSide);
    t.strictSame(serverSide.closed, [SLOW]);
    publish(frame(count)); // not sent to the slow reader

    slow.socket.resume();
    await until(() => slow.closed.length === 1);
    t.strictSame(slow.closed, [{ code: SLOW, reason: "slow" }]);
    t.equal(prefixLength(slow), count);
    await until(() => fast.binaries.length === count + 1);
    t.equal(prefixLength(fast), count + 1);
    t.strictSame(seen[1]?.closed, []);
    t.strictSame(serverSide.closed, [SLOW]);
  },
);

t.test("a reader that is too slow for publications of another connection is closed", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  await openClient(t, port);
  for (const { connection } of seen) connection.subscribe("topic");
  slow.socket.pause();
  const publish = (bytes: Buffer) => seen[1]?.connection.publish("topic", bytes);
  const count = await publishUntilClosed(publish, await connectionAt(seen, 0));
  slow.socket.resume();
  await until(() => slow.closed.length === 1);
  t.match(slow.closed, [{ code: SLOW }]);
  t.equal(prefixLength(slow), count);
});

t.test("frames that arrive after a client was closed as too slow are ignored", async (t) => {
  const received: string[] = [];
  const { seen, endpoint } = socketEndpoint({
    received({ connection }, data) {
      received.push(data);
      for (let n = 0; n < 4000; n++) connection.send(frame(n));
    },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  slow.socket.pause();
  sendTogether(slow, ["1", "2", "3"]);
  const serverSide = await connectionAt(seen, 0);
  await until(() => serverSide.closed.length > 0);
  t.strictSame(serverSide.closed, [SLOW]);
  t.strictSame(received, ["1"]);
});

t.test("a client that reads its frames too slowly is disconnected", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const serverSide = await connectionAt(seen, 0);
  slow.socket.pause();
  const send = (bytes: Buffer) => serverSide.connection.send(bytes);
  const count = await publishUntilClosed(send, serverSide);
  slow.socket.resume();
  await until(() => slow.closed.length === 1);
  t.strictSame(slow.closed, [{ code: SLOW, reason: "slow" }]);
  t.equal(prefixLength(slow), count);
});

t.test(
  "the owner of a connection is notified once each time that its reader begins to lag",
  async (t) => {
    const lagBytes = 100_000;
    const { seen, endpoint } = socketEndpoint({
      endpoint: { maxBufferedBytes: 100_000_000, lagBytes },
    });
    const { port, listener } = await startListener(t, { sockets: endpoint });
    const slow = await openClient(t, port);
    const fast = await openClient(t, port);
    for (const { connection } of seen) connection.subscribe("topic");
    const serverSide = await connectionAt(seen, 0);
    let count = 0;
    for (let round = 1; round <= 3; round++) {
      slow.socket.pause();
      const before = serverSide.lags;
      // The kernel may accept all unread bytes although the client has not read them. This is
      // reported as a drain like any other.
      while (serverSide.lags === before || serverSide.events.at(-1) === "drained") {
        const { lags } = serverSide;
        listener.publish("topic", frame(count++));
        t.equal(serverSide.lags, lags, "`lagging` is never called within a publish");
        await nextTurn();
      }
      for (let more = 0; more < 50; more++) {
        listener.publish("topic", frame(count++));
        await nextTurn();
      }
      slow.socket.resume();
      await until(() => slow.binaries.length === count);
    }
    for (const bytes of serverSide.lagBytes)
      t.ok(bytes > lagBytes && bytes < 2 * lagBytes, `the reader lags by ${bytes} bytes`);
    const twice = serverSide.events.some(
      (event, at) => event === "lags" && serverSide.events[at - 1] === "lags",
    );
    t.notOk(twice, "`lagging` is called once until the reader has drained");
    await until(() => fast.binaries.length === count);
    t.equal(prefixLength(slow), count, "no frame is lost");
    t.equal(seen[1]?.lags, 0);
    t.strictSame(serverSide.closed, []);
  },
);

t.test("the owner of a connection is notified if its reader lags because of `send`", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 100_000_000, lagBytes: 100_000 },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const serverSide = await connectionAt(seen, 0);
  slow.socket.pause();
  let count = 0;
  while (serverSide.lags === 0) {
    serverSide.connection.send(frame(count++));
    await nextTurn();
  }
  const [unreadBytes = 0] = serverSide.lagBytes;
  t.ok(unreadBytes > 100_000 && unreadBytes < 120_000, `the reader lags by ${unreadBytes} bytes`);
  slow.socket.resume();
  await until(() => slow.binaries.length === count);
  t.ok(serverSide.drains > 0);
});

t.test("a connection that is closed as a slow reader is not reported as lagging", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 8000, lagBytes: 4000 },
  });
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const serverSide = await connectionAt(seen, 0);
  serverSide.connection.subscribe("topic");
  slow.socket.pause();
  for (let n = 0; n < 4000; n++) listener.publish("topic", frame(n));
  await until(() => serverSide.closed.length > 0);
  t.strictSame(serverSide.closed, [SLOW]);
  t.equal(serverSide.lags, 0);
});

t.test("a client that sends requests and never reads the replies is closed", async (t) => {
  const answer = "x".repeat(FRAME_BYTES);
  const { seen, endpoint } = socketEndpoint({
    received: ({ connection }) => connection.send(answer),
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const serverSide = await connectionAt(seen, 0);
  slow.socket.pause();
  while (serverSide.closed.length === 0) {
    slow.socket.send("ask");
    await nextTurn();
  }
  t.strictSame(serverSide.closed, [SLOW]);
});

t.test("a reader that is too slow for a burst is closed without a gap in its frames", async (t) => {
  const burst = 32_000_000; // more than the buffers of the kernel hold
  for (const way of ["publish", "send"] as const)
    for (const bytes of [500, 8000, 16_000, 20_000]) {
      const { seen, endpoint } = socketEndpoint({
        endpoint: { maxBufferedBytes: 8000 },
      });
      const { port, listener } = await startListener(t, { sockets: endpoint });
      const slow = await openClient(t, port);
      const serverSide = await connectionAt(seen, 0);
      serverSide.connection.subscribe("topic");
      slow.socket.pause();
      const count = burst / bytes;
      for (let n = 0; n < count; n++)
        if (way === "publish") listener.publish("topic", frame(n, bytes));
        else serverSide.connection.send(frame(n, bytes));
      t.ok(serverSide.connection.bufferedBytes() < 1_000_000, "the buffer stays small");
      t.strictSame(serverSide.closed, [], "the owner is notified after the turn");
      await until(() => serverSide.closed.length > 0);
      t.strictSame(
        serverSide.closed,
        [SLOW],
        `the reader of frames of ${bytes} bytes (${way}) is closed as slow`,
      );
      slow.socket.resume();
      await until(() => slow.closed.length === 1);
      t.match(slow.closed, [{ code: SLOW }]);
      const received = prefixLength(slow);
      t.ok(
        received > 0 && received < count,
        `the reader receives the first ${received} of ${count} frames`,
      );
      await nextTurn();
      t.strictSame(serverSide.closed, [SLOW]);
    }
});

t.test("a client that sends pings and never reads the pongs is dropped", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const client = new RawClient(t, port);
  client.write(UPGRADE);
  const serverSide = await connectionAt(seen, 0);
  client.socket.pause();
  const ping = Buffer.concat([Buffer.from([0x89, 0xfd]), Buffer.alloc(4 + 125)]);
  const pings = Buffer.concat(Array.from({ length: 1000 }, () => ping));
  let maxBytes = 0;
  await until(() => {
    if (client.socket.writableLength === 0) client.write(pings);
    maxBytes = Math.max(maxBytes, serverSide.connection.bufferedBytes());
    return serverSide.closed.length > 0;
  });
  t.strictSame(serverSide.closed, [SLOW]);
  t.ok(maxBytes < 2_000_000, `${maxBytes} bytes are unread at most`);
  await until(() => {
    client.write(ping);
    return client.isClosed; // a paused socket notices only the server's reset
  });
});

t.test(
  "a peer that reads in time after `end` gets all earlier frames and the close code",
  async (t) => {
    const { seen, endpoint } = socketEndpoint({
      endpoint: { maxBufferedBytes: 100_000_000 },
    });
    const { port } = await startListener(t, { sockets: endpoint });
    const slow = await openClient(t, port);
    const serverSide = await connectionAt(seen, 0);
    slow.socket.pause();
    for (let n = 0; n < 2000; n++) serverSide.connection.send(frame(n));
    await nextTurn();
    t.ok(serverSide.connection.bufferedBytes() > 0);
    serverSide.connection.end(4200, "kicked");
    t.strictSame(serverSide.closed, [4200]);
    slow.socket.resume();
    await until(() => slow.closed.length === 1);
    t.strictSame(slow.closed, [{ code: 4200, reason: "kicked" }]);
    t.equal(prefixLength(slow), 2000);
    t.strictSame(serverSide.closed, [4200]);
  },
);

t.test("an ended connection receives no more frames from its peer", async (t) => {
  const received: string[] = [];
  const { seen, endpoint } = socketEndpoint({
    received: (_one, data) => received.push(data),
    endpoint: { maxBufferedBytes: 100_000_000 },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const serverSide = await connectionAt(seen, 0);
  slow.socket.pause();
  for (let n = 0; n < 2000; n++) serverSide.connection.send(frame(n));
  await nextTurn();
  serverSide.connection.end(4200, "kicked");
  slow.socket.send("still here");
  slow.socket.resume();
  await until(() => slow.closed.length === 1);
  t.strictSame(received, []);
});

t.test("a peer that does not read after `end` is dropped after the close time-out", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 100_000_000 },
  });
  const { port } = await startListener(t, { sockets: endpoint }, { closeTimeoutMs: 50 });
  const slow = new RawClient(t, port);
  slow.write(UPGRADE);
  const serverSide = await connectionAt(seen, 0);
  slow.socket.pause();
  for (let n = 0; n < 4000; n++) serverSide.connection.send(frame(n));
  await nextTurn();
  t.ok(serverSide.connection.bufferedBytes() > 0);
  serverSide.connection.end(4200, "kicked");
  // Keeps the connection active, as an attacker would.
  const ping = Buffer.from([0x89, 0x80, 0, 0, 0, 0]);
  await until(() => {
    slow.write(ping);
    return slow.isClosed; // a paused socket notices only the server's reset
  });
  t.strictSame(serverSide.closed, [4200]);
});

t.test("ended connections that do not drain are closed in order of their deadlines", async (t) => {
  const calls: string[] = [];
  const socket = (name: string, bytes: () => number) => ({
    getBufferedAmount: bytes,
    getTopics: () => ["a", "b"],
    unsubscribe: (topic: string) => calls.push(`${name} leaves ${topic}`) > 0,
    end: (code: number) => calls.push(`${name} ends ${code}`),
    close: () => calls.push(`${name} closes`),
  });
  let unread = 5;
  const empty = socket("empty", () => 0);
  const draining = socket("draining", () => unread);
  const gone = socket("gone", () => 9);
  const [stuck, stuckToo] = [socket("stuck", () => 9), socket("too", () => 9)];
  const closes = new GracefulCloses(500); // longer than a stall of a busy machine
  closes.add(empty, 1, "");
  t.strictSame(calls.splice(0), ["empty ends 1"]);
  for (const serverSide of [draining, gone, stuck]) closes.add(serverSide, 2, "");
  calls.length = 0;
  closes.drained(draining);
  closes.drained(empty);
  t.strictSame(calls, []);
  unread = 0;
  closes.drained(draining);
  closes.drained(draining);
  t.strictSame(calls.splice(0), ["draining ends 2"]);
  closes.closed(gone);
  await new Promise((resolve) => setTimeout(resolve, 5));
  closes.add(stuckToo, 2, "");
  t.strictSame(calls.splice(0), ["too leaves a", "too leaves b"]);
  await until(() => calls.length === 2);
  t.strictSame(calls, ["stuck closes", "too closes"]);
});

t.test(
  "if a node's connections have more than maxBufferedBytesTotal unread bytes, only the connections with the most unread bytes are closed",
  async (t) => {
    const maxBufferedBytesTotal = 2_000_000;
    const { seen, endpoint } = socketEndpoint({
      endpoint: { maxBufferedBytes: 8_000_000, lagBytes: 100_000, maxBufferedBytesTotal },
    });
    const { port } = await startListener(t, { sockets: endpoint });
    const clients = [await openClient(t, port), await openClient(t, port)];
    const [large, small] = [await connectionAt(seen, 0), await connectionAt(seen, 1)];
    for (const { socket } of clients) socket.pause();
    let mostBytes = 0;
    const send = async ({ connection }: Seen, until: () => boolean) => {
      for (let n = 0; !until(); n++) {
        connection.send(frame(n));
        await nextTurn();
        const bytes = seen.reduce((sum, side) => sum + side.connection.bufferedBytes(), 0);
        mostBytes = Math.max(mostBytes, bytes);
      }
    };
    await send(small, () => small.connection.bufferedBytes() > 500_000);
    await send(large, () => large.closed.length > 0);
    t.strictSame(large.closed, [SLOW], "the connection with the most unread bytes is closed");
    t.strictSame(small.closed, [], "the other connection stays open");
    t.ok(mostBytes <= maxBufferedBytesTotal + 2 * FRAME_BYTES, `${mostBytes} bytes were unread`);
    for (const { socket } of clients) socket.resume();
    await until(() => small.connection.bufferedBytes() === 0);
  },
);

t.test(
  "after the login, the unread bytes of a user's connections are limited together",
  async (t) => {
    const maxBufferedBytesPerUser = 1_000_000;
    const { seen, endpoint } = socketEndpoint({
      endpoint: { maxBufferedBytes: 8_000_000, lagBytes: 100_000, maxBufferedBytesPerUser },
    });
    const { port } = await startListener(t, { sockets: endpoint });
    const sides: Seen[] = [];
    for (const [at, user] of ["eve", "eve", "eve", "bob"].entries()) {
      (await openClient(t, port)).socket.pause();
      const side = await connectionAt(seen, at);
      side.connection.authenticated(user);
      sides.push(side);
    }
    const isClosed = ({ closed }: Seen) => closed.length > 0;
    for (let n = 0; !sides.some(isClosed); n++) {
      for (const { connection } of sides) connection.send(frame(n));
      await nextTurn();
      const bytes = sides.slice(0, 3).map(({ connection }) => connection.bufferedBytes());
      const sum = bytes.reduce((a, b) => a + b, 0);
      if (sum > maxBufferedBytesPerUser + 4 * FRAME_BYTES) t.fail(`${sum} bytes are unread`);
    }
    await nextTurn();
    const eves = sides.slice(0, 3);
    t.ok(
      eves.some(isClosed) && !eves.every(isClosed),
      "only some of the user's sockets are closed",
    );
    t.notOk(sides.slice(3).some(isClosed), "another user's socket stays open");
  },
);

t.test("unread data for 20 readers stays below 1.5 times maxBufferedBytesTotal", async (t) => {
  const READERS = 20;
  const maxBufferedBytesTotal = 2_000_000;
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 8_000_000, lagBytes: 100_000, maxBufferedBytesTotal },
  });
  const { port, listener } = await startListener(t, { sockets: endpoint });
  for (let at = 0; at < READERS; at++) {
    (await openClient(t, port)).socket.pause();
    (await connectionAt(seen, at)).connection.subscribe("topic");
  }
  let mostBytes = 0;
  for (let n = 0; seen.every(({ closed }) => closed.length === 0); n++) {
    listener.publish("topic", frame(n));
    await nextTurn();
    const bytes = seen.reduce((sum, { connection }) => sum + connection.bufferedBytes(), 0);
    mostBytes = Math.max(mostBytes, bytes);
  }
  const bound = maxBufferedBytesTotal * 1.25 + 2 * READERS * FRAME_BYTES;
  t.ok(mostBytes <= bound, `${mostBytes} bytes were unread, at most ${bound}`);
});
