// Who reads too slowly is stopped in good order; others notice nothing.

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
  "GET / HTTP/1.1\r\nhost: x\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Numbered frames, so that a gap shows. */
function frame(n: number, size = FRAME_BYTES): Buffer {
  const bytes = Buffer.alloc(size);
  bytes.writeUInt32BE(n);
  return bytes;
}

/** The client got frames 0, 1, 2 … without a gap; returns how many. */
function prefixLength({ binaries }: Client): number {
  const firstGap = binaries.findIndex((bytes, i) => bytes.readUInt32BE() !== i);
  if (firstGap >= 0) throw new Error(`frame ${firstGap} is missing`);
  return binaries.length;
}

async function publishUntilClosed(publish: (bytes: Buffer) => unknown, one: Seen): Promise<number> {
  let count = 0;
  while (one.closed.length === 0) {
    publish(frame(count));
    count += 1;
    await nextTurn();
  }
  return count;
}

t.test("a reader too slow for what is published is ended, others go on", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const fast = await openClient(t, port);
  for (const { connection } of seen) connection.subscribe("topic");
  slow.socket.pause();
  const one = await connectionAt(seen, 0);
  const publish = (bytes: Buffer) => listener.publish("topic", bytes);
  const count = await publishUntilClosed(publish, one);
  t.strictSame(one.closed, [SLOW]);
  publish(frame(count)); // no more for the slow one

  slow.socket.resume();
  await until(() => slow.closed.length === 1);
  t.strictSame(slow.closed, [{ code: SLOW, reason: "slow" }]);
  t.equal(prefixLength(slow), count);
  await until(() => fast.binaries.length === count + 1);
  t.equal(prefixLength(fast), count + 1);
  t.strictSame(seen[1]?.closed, []);
  t.strictSame(one.closed, [SLOW]);
});

t.test("so is one too slow for what another connection publishes", async (t) => {
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

t.test("a connection stopped within its handler hears nothing more", async (t) => {
  const got: string[] = [];
  const { seen, endpoint } = socketEndpoint({
    received({ connection }, data) {
      got.push(data);
      for (let n = 0; n < 4000; n++) connection.send(frame(n));
    },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  slow.socket.pause();
  sendTogether(slow, ["1", "2", "3"]);
  const one = await connectionAt(seen, 0);
  await until(() => one.closed.length > 0);
  t.strictSame(one.closed, [SLOW]);
  t.strictSame(got, ["1"]);
});

t.test("a reader too slow for what it is sent is ended", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  slow.socket.pause();
  const send = (bytes: Buffer) => one.connection.send(bytes);
  const count = await publishUntilClosed(send, one);
  slow.socket.resume();
  await until(() => slow.closed.length === 1);
  t.strictSame(slow.closed, [{ code: SLOW, reason: "slow" }]);
  t.equal(prefixLength(slow), count);
});

t.test("an owner is told once that a reader lags, and again when it lags again", async (t) => {
  const lagBytes = 100_000;
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 100_000_000, lagBytes },
  });
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const fast = await openClient(t, port);
  for (const { connection } of seen) connection.subscribe("topic");
  const one = await connectionAt(seen, 0);
  let count = 0;
  for (let round = 1; round <= 3; round++) {
    slow.socket.pause();
    const before = one.lags;
    // The kernel may take what lags in one go, and more of it then: that is a drain like any
    // other.
    while (one.lags === before || one.told.at(-1) === "drained") {
      const { lags } = one;
      listener.publish("topic", frame(count++));
      t.equal(one.lags, lags, "never within a publish");
      await nextTurn();
    }
    for (let more = 0; more < 50; more++) {
      listener.publish("topic", frame(count++));
      await nextTurn();
    }
    slow.socket.resume();
    await until(() => slow.binaries.length === count);
  }
  for (const bytes of one.lagBytes)
    t.ok(bytes > lagBytes && bytes < 2 * lagBytes, `${bytes} bytes`);
  const twice = one.told.some((what, at) => what === "lags" && one.told[at - 1] === "lags");
  t.notOk(twice, "once until it was drained");
  await until(() => fast.binaries.length === count);
  t.equal(prefixLength(slow), count, "nothing is lost");
  t.equal(seen[1]?.lags, 0);
  t.strictSame(one.closed, []);
});

t.test("a reader that lags behind what it is sent is told of", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 100_000_000, lagBytes: 100_000 },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  slow.socket.pause();
  let count = 0;
  while (one.lags === 0) {
    one.connection.send(frame(count++));
    await nextTurn();
  }
  const [found = 0] = one.lagBytes;
  t.ok(found > 100_000 && found < 120_000, `${found} bytes`);
  slow.socket.resume();
  await until(() => slow.binaries.length === count);
  t.ok(one.drains > 0);
});

t.test("who is stopped for reading too slowly is not told to lag", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 8000, lagBytes: 4000 },
  });
  const { port, listener } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  one.connection.subscribe("topic");
  slow.socket.pause();
  for (let n = 0; n < 4000; n++) listener.publish("topic", frame(n));
  await until(() => one.closed.length > 0);
  t.strictSame(one.closed, [SLOW]);
  t.equal(one.lags, 0);
});

t.test("a client that asks and never reads the answers is ended", async (t) => {
  const answer = "x".repeat(FRAME_BYTES);
  const { seen, endpoint } = socketEndpoint({
    received: ({ connection }) => connection.send(answer),
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  slow.socket.pause();
  while (one.closed.length === 0) {
    slow.socket.send("ask");
    await nextTurn();
  }
  t.strictSame(one.closed, [SLOW]);
});

t.test("a burst within one turn ends the reader without a gap", async (t) => {
  const burst = 32_000_000; // more than the kernel takes
  for (const way of ["publish", "send"] as const)
    for (const bytes of [500, 8000, 16_000, 20_000]) {
      const { seen, endpoint } = socketEndpoint({
        endpoint: { maxBufferedBytes: 8000 },
      });
      const { port, listener } = await startListener(t, { sockets: endpoint });
      const slow = await openClient(t, port);
      const one = await connectionAt(seen, 0);
      one.connection.subscribe("topic");
      slow.socket.pause();
      const count = burst / bytes;
      for (let n = 0; n < count; n++)
        if (way === "publish") listener.publish("topic", frame(n, bytes));
        else one.connection.send(frame(n, bytes));
      t.ok(one.connection.bufferedBytes() < 1_000_000, "memory is bounded");
      t.strictSame(one.closed, [], "the owner hears of it after the turn");
      await until(() => one.closed.length > 0);
      t.strictSame(one.closed, [SLOW], `${way} ${bytes}`);
      slow.socket.resume();
      await until(() => slow.closed.length === 1);
      t.match(slow.closed, [{ code: SLOW }]);
      const got = prefixLength(slow);
      t.ok(got > 0 && got < count, `${got} of ${count}`);
      await nextTurn();
      t.strictSame(one.closed, [SLOW]);
    }
});

t.test("a client that pings and never reads the answers is cut off", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { sockets: endpoint });
  const client = new RawClient(t, port);
  client.write(UPGRADE);
  const one = await connectionAt(seen, 0);
  client.socket.pause();
  const ping = Buffer.concat([Buffer.from([0x89, 0xfd]), Buffer.alloc(4 + 125)]);
  const pings = Buffer.concat(Array.from({ length: 1000 }, () => ping));
  let most = 0;
  await until(() => {
    if (client.socket.writableLength === 0) client.write(pings);
    most = Math.max(most, one.connection.bufferedBytes());
    return one.closed.length > 0;
  });
  t.strictSame(one.closed, [SLOW]);
  t.ok(most < 2_000_000, `${most} bytes at most`);
  await until(() => {
    client.write(ping);
    return client.isClosed; // only the server's reset tells a paused socket
  });
});

t.test("an ended reader that reads in time gets everything and the code", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 100_000_000 },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  slow.socket.pause();
  for (let n = 0; n < 2000; n++) one.connection.send(frame(n));
  await nextTurn();
  t.ok(one.connection.bufferedBytes() > 0);
  one.connection.end(4200, "kicked");
  t.strictSame(one.closed, [4200]);
  slow.socket.resume();
  await until(() => slow.closed.length === 1);
  t.strictSame(slow.closed, [{ code: 4200, reason: "kicked" }]);
  t.equal(prefixLength(slow), 2000);
  t.strictSame(one.closed, [4200]);
});

t.test("an ended connection hears nothing of its peer any more", async (t) => {
  const got: string[] = [];
  const { seen, endpoint } = socketEndpoint({
    received: (_one, data) => got.push(data),
    endpoint: { maxBufferedBytes: 100_000_000 },
  });
  const { port } = await startListener(t, { sockets: endpoint });
  const slow = await openClient(t, port);
  const one = await connectionAt(seen, 0);
  slow.socket.pause();
  for (let n = 0; n < 2000; n++) one.connection.send(frame(n));
  await nextTurn();
  one.connection.end(4200, "kicked");
  slow.socket.send("still here");
  slow.socket.resume();
  await until(() => slow.closed.length === 1);
  t.strictSame(got, []);
});

t.test("an ended reader that never reads is cut off in time", async (t) => {
  const { seen, endpoint } = socketEndpoint({
    endpoint: { maxBufferedBytes: 100_000_000 },
  });
  const tuning = { closeTimeoutMs: 50 };
  const { port } = await startListener(t, { sockets: endpoint }, tuning);
  const slow = new RawClient(t, port);
  slow.write(UPGRADE);
  const one = await connectionAt(seen, 0);
  slow.socket.pause();
  for (let n = 0; n < 4000; n++) one.connection.send(frame(n));
  await nextTurn();
  t.ok(one.connection.bufferedBytes() > 0);
  one.connection.end(4200, "kicked");
  const ping = Buffer.from([0x89, 0x80, 0, 0, 0, 0]); // keeps it lively, as an attacker would
  await until(() => {
    slow.write(ping);
    return slow.isClosed; // only the server's reset tells a paused socket
  });
  t.strictSame(one.closed, [4200]);
});

t.test("graceful closes end in the order of their deadlines", async (t) => {
  const said: string[] = [];
  const socket = (name: string, bytes: () => number) => ({
    getBufferedAmount: bytes,
    getTopics: () => ["a", "b"],
    unsubscribe: (topic: string) => said.push(`${name} leaves ${topic}`) > 0,
    end: (code: number) => said.push(`${name} ends ${code}`),
    close: () => said.push(`${name} closes`),
  });
  let left = 5;
  const empty = socket("empty", () => 0);
  const draining = socket("draining", () => left);
  const gone = socket("gone", () => 9);
  const [stuck, stuckToo] = [socket("stuck", () => 9), socket("too", () => 9)];
  const closes = new GracefulCloses(30);
  closes.add(empty, 1, "");
  t.strictSame(said.splice(0), ["empty ends 1"]);
  for (const one of [draining, gone, stuck]) closes.add(one, 2, "");
  said.length = 0;
  closes.drained(draining);
  closes.drained(empty);
  t.strictSame(said, []);
  left = 0;
  closes.drained(draining);
  closes.drained(draining);
  t.strictSame(said.splice(0), ["draining ends 2"]);
  closes.closed(gone);
  await new Promise((resolve) => setTimeout(resolve, 5));
  closes.add(stuckToo, 2, "");
  t.strictSame(said.splice(0), ["too leaves a", "too leaves b"]);
  await until(() => said.length === 2);
  t.strictSame(said, ["stuck closes", "too closes"]);
});
