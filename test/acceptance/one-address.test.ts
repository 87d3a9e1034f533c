// Many clients and hostile peers that connect from one address. Uses its own broker processes with
// the default limits. JINDOU_TEST_CLIENTS sets the number of clients that connect at once, and
// JINDOU_TEST_SLOW_LORIS the number of silent sockets. Each client and each socket needs a file
// descriptor.

import { connect, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import t, { type Test } from "tap";
import { type Broker, spawnBroker, tempFolder } from "../support/broker.ts";
import { measureStalls } from "../support/stalls.ts";
import { volume } from "../support/volume.ts";
import { OPCODES, upgradeRequest, webSocketFrame } from "./raw-socket.ts";

const CLIENTS = volume(10_000, "JINDOU_TEST_CLIENTS");
const SLOW_LORIS = volume(10_000, "JINDOU_TEST_SLOW_LORIS");
const TIMEOUT_MS = 180_000;
/** Value of `sockets.maxUnauthenticatedPerAddress`. */
const MAX_SILENT = 256;
const SETTINGS = { JINDOU_SOCKETS_MAX_UNAUTHENTICATED_PER_ADDRESS: `${MAX_SILENT}` };
/**
 * Maximum time for which a client with a valid token may be kept out. If the processors are busy,
 * the kernel may drop a SYN, and sends it again after a second.
 */
const MAX_WAIT_MS = 2000;
const ADDRESS = "127.0.0.2";

const isLinux = process.platform === "linux";
const skip = isLinux ? false : "needs the loopback addresses of Linux";

t.test(
  `${CLIENTS} clients from one address that connect at the same time after a restart are all accepted`,
  { skip },
  async (t) => {
    const dataPath = await tempFolder(t);
    const before = await spawnBroker(t, SETTINGS, dataPath);
    await registerUsers(before, CLIENTS);
    t.equal(await before.terminate(), 0);
    const broker = await spawnBroker(t, SETTINGS, dataPath);
    const startMs = performance.now();
    const kinds = Array.from({ length: CLIENTS }, (_, n) => ({ connectAs: uidOf(n) }));
    const clients = await openPeers(t, broker.clientPort, kinds);
    await until("all clients are connected or closed", () =>
      clients.every(({ status }) => status === "connected" || status === "closed"),
    );
    t.comment(`${CLIENTS} clients connected within ${since(startMs)} ms`);
    t.equal(clients.filter(({ status }) => status === "connected").length, CLIENTS);
    t.equal(await metric(broker, 'jindou_connections{listener="client"}'), CLIENTS);
    for (const reason of ["max", "address", "descriptors"])
      t.equal(await metric(broker, `jindou_sockets_refused_total{reason="${reason}"}`), 0, reason);
  },
);

t.test(
  `${SLOW_LORIS} silent sockets from one address are closed until at most ${MAX_SILENT} are left, and a client with a valid token connects within two seconds`,
  { skip },
  async (t) => {
    const broker = await spawnBroker(t, {
      ...SETTINGS,
      // Only the limits by address close the silent sockets.
      JINDOU_CLIENT_AUTH_TIMEOUT_MS: "600000",
    });
    await registerUsers(broker, 1);
    const port = broker.clientPort;
    const stalls = measureStalls(t);
    const waits: number[] = [];
    let isOver = false;
    let closedCount = 0;
    const rightClient = async () => {
      while (!isOver) {
        const startMs = performance.now();
        const stalledMs = stalls.totalMs();
        const client = openPeer(port, { connectAs: uidOf(0) });
        await until("the client is connected or closed", () =>
          ["connected", "closed"].includes(client.status),
        );
        if (client.status === "closed") closedCount += 1;
        waits.push(performance.now() - startMs - (stalls.totalMs() - stalledMs));
        client.socket.destroy();
        await delay(20);
      }
    };
    const rightClients = rightClient();
    const kinds = Array.from({ length: SLOW_LORIS }, (_, n) => ({ isUpgraded: n % 2 === 0 }));
    const silent = await openPeers(t, port, kinds);
    const openCount = (isUpgraded: boolean) =>
      silent.filter((peer) => peer.isUpgraded === isUpgraded && peer.status !== "closed").length;
    await until("most upgraded sockets are closed", () => openCount(true) <= MAX_SILENT);
    await until("connections without a request are closed", () => openCount(false) === 0);
    isOver = true;
    await rightClients;
    t.equal(closedCount, 0, "the client with a valid token was never closed");
    t.ok(waits.length > 20, `a client connected ${waits.length} times in the meantime`);
    const longestMs = Math.max(...waits);
    t.ok(longestMs <= MAX_WAIT_MS, `the client waited ${Math.round(longestMs)} ms at most`);
    // The client with a valid token counts as unauthenticated while its token is checked.
    const open = openCount(true);
    t.ok(open > MAX_SILENT - 8 && open <= MAX_SILENT, `${open} upgraded sockets stay open`);
    const displaced = await metric(broker, "jindou_sockets_displaced_total");
    t.equal(
      displaced,
      Math.ceil(SLOW_LORIS / 2) - open,
      "the metrics count the other sockets as closed",
    );
    t.match(
      broker.output(),
      /"reason":"silent","address":"127\.0\.0\.2"/,
      "the log names the reason",
    );
  },
);

// --- Peers ---------------------------------------------------------------------------------------

interface Peer {
  readonly socket: Socket;
  readonly isUpgraded: boolean;
  status: "opening" | "upgraded" | "connected" | "closed";
}

interface PeerKind {
  readonly connectAs?: string;
  readonly isUpgraded?: boolean;
}

/** Number of peers, or of users to register, that are started together. */
const BATCH = 100;

/** Opens a peer of each of these kinds, and closes them at the end of the test. */
async function openPeers(
  t: Test,
  port: number,
  kinds: readonly PeerKind[],
): Promise<readonly Peer[]> {
  const peers: Peer[] = [];
  t.teardown(() => {
    for (const { socket } of peers) socket.destroy();
  });
  for (const kind of kinds) {
    peers.push(openPeer(port, kind));
    if (peers.length % BATCH === 0) await delay(1);
  }
  return peers;
}

/**
 * Opens a TCP connection from `ADDRESS`. Upgrades it if `isUpgraded` is true or `connectAs` is set.
 * Logs in as the user `connectAs` if that is set. Sends nothing else.
 */
function openPeer(
  port: number,
  { connectAs, isUpgraded = connectAs !== undefined }: PeerKind,
): Peer {
  const socket = connect({ host: "127.0.0.1", port, localAddress: ADDRESS });
  const peer: Peer = { socket, isUpgraded, status: "opening" };
  let text = "";
  if (isUpgraded) socket.write(upgradeRequest("jindou.jsonrpc.v1"));
  socket.on("data", (data) => {
    text += data.toString("latin1");
    if (peer.status === "opening" && text.startsWith("HTTP/1.1 101")) {
      peer.status = "upgraded";
      if (connectAs !== undefined) socket.write(connectFrame(connectAs));
    }
    if (text.includes('"result"')) peer.status = "connected";
  });
  socket.on("error", () => undefined); // `close` follows
  socket.on("close", () => {
    peer.status = "closed";
  });
  return peer;
}

const WEB = 1;

function connectFrame(uid: string): Buffer {
  const params = { uid, token: `token-${uid}`, deviceFlag: WEB, deviceId: `device-${uid}` };
  const request = { jsonrpc: "2.0", id: "1", method: "connect", params };
  return webSocketFrame(Buffer.from(JSON.stringify(request)), OPCODES.text);
}

const uidOf = (n: number) => `user-${n}`;

async function registerUsers(broker: Broker, count: number): Promise<void> {
  for (let first = 0; first < count; first += BATCH)
    await Promise.all(
      Array.from({ length: Math.min(BATCH, count - first) }, async (_, i) => {
        const uid = uidOf(first + i);
        const body = { uid, token: `token-${uid}`, device_flag: WEB, device_level: 0 };
        const { status } = await broker.call("/user/token", body);
        if (status !== 200) throw new Error(`/user/token responded ${status}`);
      }),
    );
}

async function metric(broker: Broker, name: string): Promise<number> {
  const { body } = await broker.call("/metrics");
  const line = String(body)
    .split("\n")
    .find((text) => text.startsWith(`${name} `));
  return Number(line?.split(" ").at(-1) ?? 0);
}

function since(startMs: number): number {
  return Math.round(performance.now() - startMs);
}

async function until(condition: string, holds: () => boolean): Promise<void> {
  const deadlineMs = performance.now() + TIMEOUT_MS;
  while (!holds()) {
    if (performance.now() > deadlineMs) throw new Error(`timed out: ${condition}`);
    await delay(5);
  }
}
