// Clients that send one byte a second, and bytes that no honest client sends, on the listener for
// WKProto over TCP and on the WebSocket listener of the same node. JINDOU_TEST_SLOW_CONNECTIONS
// sets the number of slow connections, and JINDOU_TEST_ATTACKS the number of connections with
// hostile bytes. With JINDOU_TEST_QUIET=1 and at least 1000 slow connections, the CPU times are
// compared.

import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import t, { type Test } from "tap";
import { type ChildBroker, type Settings, spawnBroker } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { openWkprotoTcp, TCP_LISTENER, tcpPortOf } from "../support/wkproto-client.ts";
import { MEASURED_SETTINGS, memoryMib, settledMib } from "./child-memory.ts";
import { OPCODES, RawSocket, webSocketFrame } from "./raw-socket.ts";

const CONNECTIONS = volume(10_000, "JINDOU_TEST_SLOW_CONNECTIONS", 100);
const ATTACKS = volume(10_000, "JINDOU_TEST_ATTACKS", 60);
const IS_FULL = CONNECTIONS >= 1000;
const IS_QUIET = process.env.JINDOU_TEST_QUIET === "1";
/** Time between two bytes of a connection. */
const BYTE_MS = IS_FULL ? 1000 : 50;
const BYTES = 10;
/** Number of connections that are opened, or of attacks that run, at the same time. */
const BATCH = 50;
/** Value of `sockets.maxUnauthenticatedPerAddress`. */
const MAX_UNAUTHENTICATED = 256;
/**
 * Maximum ratio of the CPU time over TCP to that over WebSocket. Over TCP each read runs
 * JavaScript, over WebSocket only a complete frame does.
 */
const MAX_CPU_RATIO = 3;
const MAX_CONNECTION_KIB = 16;
const MEMORY_TOLERANCE_MIB = 8;

/** A listener, and how WKProto bytes are sent to it. */
interface Door {
  readonly name: "WebSocket" | "TCP";
  open(broker: ChildBroker): Promise<RawSocket>;
  /** Returns the bytes of a message. */
  wrap(bytes: Uint8Array): Uint8Array;
}

const DOORS: readonly Door[] = [
  {
    name: "WebSocket",
    open: ({ clientPort }) => new RawSocket(clientPort).upgraded(),
    wrap: (bytes) => webSocketFrame(bytes, OPCODES.binary),
  },
  {
    name: "TCP",
    open: (broker) => new RawSocket(tcpPortOf(broker)).connected(),
    wrap: (bytes) => bytes,
  },
];

/** A CONNECT of 16,000 bytes. A slow client sends only its beginning. */
const LONG_CONNECT = Buffer.concat([Buffer.from([0x10, 0x80, 0x7d, 5]), Buffer.alloc(16_000)]);

function startNode(t: Test, settings: Settings): Promise<ChildBroker> {
  return spawnBroker(t, { ...TCP_LISTENER, ...MEASURED_SETTINGS, ...settings });
}

/** Returns the CPU time of the process in milliseconds. */
function cpuMs({ process: { pid } }: ChildBroker): number {
  const [, stat = ""] = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ");
  const fields = stat.split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10; // the unit is 10 ms
}

async function openAll(t: Test, broker: ChildBroker, door: Door): Promise<readonly RawSocket[]> {
  const sockets: RawSocket[] = [];
  t.teardown(() => {
    for (const socket of sockets) socket.kill();
  });
  while (sockets.length < CONNECTIONS) {
    const count = Math.min(BATCH, CONNECTIONS - sockets.length);
    sockets.push(...(await Promise.all(Array.from({ length: count }, () => door.open(broker)))));
  }
  return sockets;
}

/** Sends the bytes of a long CONNECT, one byte on each connection per `BYTE_MS`. */
async function drip(sockets: readonly RawSocket[], door: Door, bytes = BYTES): Promise<void> {
  const message = door.wrap(LONG_CONNECT);
  const startMs = performance.now();
  for (let at = 0; at < bytes; at++) {
    const nextMs = startMs + (at + 1) * BYTE_MS;
    for (const [n, socket] of sockets.entries()) {
      socket.write(message.subarray(at, at + 1));
      if (n % BATCH === 0) await delay(0);
    }
    await delay(Math.max(0, nextMs - performance.now()));
  }
}

t.setTimeout(600_000);

t.test(
  `${CONNECTIONS} connections that send one byte at a time use at most ${MAX_CPU_RATIO} times as much CPU time over TCP as over WebSocket, and other clients are served at the same time`,
  async (t) => {
    const broker = await startNode(t, {
      JINDOU_CLIENT_AUTH_TIMEOUT_MS: "600000", // keeps all connections open
    });
    await broker.call("/user/token", { uid: "ann", token: "token-ann", device_flag: 0 });
    const client = await openWkprotoTcp(t, { port: tcpPortOf(broker), uid: "ann", deviceFlag: 0 });
    t.match(await client.connect(), { reasonCode: 1 });
    const costs = new Map<Door["name"], number>();
    for (const door of DOORS) {
      const beforeMib = IS_FULL ? await settledMib(broker.process.pid) : 0;
      const sockets = await openAll(t, broker, door);
      const startMs = performance.now();
      const beforeCpuMs = cpuMs(broker);
      const dripping = drip(sockets, door);
      let pings = 0;
      let slowestMs = 0;
      let isOver = false;
      void dripping.finally(() => {
        isOver = true;
      });
      while (!isOver) {
        const sentMs = performance.now();
        await client.ping();
        slowestMs = Math.max(slowestMs, performance.now() - sentMs);
        pings += 1;
        await delay(BYTE_MS / 10);
      }
      await dripping;
      const usedMs = cpuMs(broker) - beforeCpuMs;
      const share = usedMs / (performance.now() - startMs);
      costs.set(door.name, usedMs);
      t.ok(pings > 1, "another client is served in the meantime");
      t.equal(sockets.filter(({ isOver }) => isOver).length, 0, "all connections are still open");
      const perConnectionKib = IS_FULL
        ? (((await settledMib(broker.process.pid)) - beforeMib) * 1024) / CONNECTIONS
        : 0;
      t.ok(perConnectionKib <= MAX_CONNECTION_KIB, "a connection needs little memory");
      t.comment(
        `${door.name}: ${((usedMs * 1000) / (CONNECTIONS * BYTES)).toFixed(1)} µs CPU per byte, ${(100 * share).toFixed(1)} % of a core, ${perConnectionKib.toFixed(1)} KiB per connection, slowest ping ${slowestMs.toFixed(0)} ms`,
      );
      for (const socket of sockets) socket.kill();
      await Promise.all(sockets.map((socket) => socket.cut()));
    }
    const ratio = (costs.get("TCP") ?? 0) / (costs.get("WebSocket") ?? 0);
    t.comment(`TCP uses ${ratio.toFixed(2)} times the CPU time of WebSocket`);
    if (IS_QUIET && IS_FULL) t.ok(ratio <= MAX_CPU_RATIO, `at most ${MAX_CPU_RATIO} times`);
    t.equal(client.closeCode, undefined);
    t.equal(await broker.terminate(), 0);
  },
);

t.test(
  `a node closes slow connections from one address until ${MAX_UNAUTHENTICATED} are left, over TCP and over WebSocket`,
  { skip: IS_FULL ? false : "needs many connections, as in npm run test:full" },
  async (t) => {
    const broker = await startNode(t, {
      JINDOU_SOCKETS_MAX_UNAUTHENTICATED_PER_ADDRESS: `${MAX_UNAUTHENTICATED}`,
      JINDOU_CLIENT_AUTH_TIMEOUT_MS: "600000",
    });
    for (const door of DOORS) {
      const sockets = await openAll(t, broker, door);
      const openCount = () => sockets.filter(({ isOver }) => !isOver).length;
      const dripping = drip(sockets, door);
      while (openCount() > MAX_UNAUTHENTICATED) await delay(50);
      await dripping;
      t.comment(`${door.name}: ${openCount()} of ${CONNECTIONS} connections are left`);
      t.equal(
        openCount(),
        MAX_UNAUTHENTICATED,
        `${door.name}: no more connections are left than the limit allows`,
      );
      for (const socket of sockets) socket.kill();
      await Promise.all(sockets.map((socket) => socket.cut()));
    }
    t.equal(await broker.terminate(), 0);
  },
);

/**
 * Beginnings of packets: lengths of almost 2³² and 2²⁸, a length that never ends, and impossible
 * fields.
 */
const STARTS = ["10", "10ffffffff0f", "10ffffff7f", "1080808080", "1005050100", "101300", "30ff"];

function attackBytes(random: Random, at: number): Buffer {
  const noise = Array.from({ length: random.below(200) }, () => random.below(256));
  return Buffer.concat([Buffer.from(STARTS[at % STARTS.length] ?? "", "hex"), Buffer.from(noise)]);
}

t.test(
  `${ATTACKS} connections with hostile bytes use at most ${MAX_CPU_RATIO} times as much CPU time over TCP as over WebSocket, and leak no memory`,
  async (t) => {
    const broker = await startNode(t, {
      JINDOU_CLIENT_AUTH_TIMEOUT_MS: "1000",
      JINDOU_CLIENT_KEEP_CLOSED: "0", // the list of closed sessions grows up to its limit
      JINDOU_AUTH_TOKEN_ATTEMPTS: "1000000",
    });
    const { pid } = broker.process;
    const attack = async (door: Door, count: number) => {
      const random = new Random(7);
      let next = 0;
      const work = async () => {
        while (next < count) {
          const bytes = attackBytes(random, next++);
          const socket = await door.open(broker);
          socket.write(door.wrap(bytes));
          await socket.cut();
        }
      };
      await Promise.all(Array.from({ length: BATCH }, work));
    };
    const costs = new Map<Door["name"], number>();
    for (const door of DOORS) {
      if (IS_FULL) await attack(door, ATTACKS / 5);
      const warmMib = IS_FULL ? await settledMib(pid) : memoryMib(pid);
      const beforeMs = cpuMs(broker);
      await attack(door, ATTACKS);
      const usedMs = cpuMs(broker) - beforeMs;
      costs.set(door.name, usedMs);
      const limitMib = warmMib + MEMORY_TOLERANCE_MIB;
      const nowMib = IS_FULL ? await settledMib(pid, limitMib) : warmMib;
      t.ok(nowMib <= limitMib, `${door.name}: the memory has not grown`);
      t.comment(
        `${door.name}: ${(usedMs / ATTACKS).toFixed(3)} ms CPU per connection, ${warmMib.toFixed(1)} MiB before, ${nowMib.toFixed(1)} MiB after`,
      );
    }
    const ratio = (costs.get("TCP") ?? 0) / (costs.get("WebSocket") ?? 0);
    t.comment(`TCP uses ${ratio.toFixed(2)} times the CPU time of WebSocket`);
    if (IS_QUIET && IS_FULL) t.ok(ratio <= MAX_CPU_RATIO, `at most ${MAX_CPU_RATIO} times`);
    t.equal((await broker.call("/readyz")).status, 200);
    t.notMatch(broker.output(), /"level":"(error|fatal)"/, "no error was logged");
    t.equal(await broker.terminate(), 0);
  },
);
