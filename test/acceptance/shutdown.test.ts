// The orderly shutdown [option drain.timeoutMs]: SIGTERM and SIGINT sent to a busy node, to an idle
// node, during the start, and twice.

import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import { loadConfig } from "../../src/config/load.ts";
import { createLogger } from "../../src/observe/logger.ts";
import { createServer } from "../../src/server.ts";
import { chooseDriver } from "../../src/transport/drivers.ts";
import {
  type BrokerProcess,
  type ChildBroker,
  launchBroker,
  type Settings,
  spawnBroker,
  tempFolder,
} from "../support/broker.ts";
import { HistoryChecker, Reader } from "../support/history-checker.ts";
import { connectNative, openNative } from "../support/native-client.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { measureStalls } from "../support/stalls.ts";
import { connectWkproto, openWkproto } from "../support/wkproto-client.ts";
import { Sender, type Shutdown } from "./crash-load.ts";
import {
  largestShareWithin,
  openCrowd,
  untilStopping,
  watchClosings,
  watchReadiness,
} from "./drain-watch.ts";
import { checkHistory } from "./history-check.ts";
import { disconnectReasonOf, onlineStateOf } from "./logins.ts";

const CROWD = 500;
const DRAIN_MS = 3000;
const DRAINING = CLOSE_REASONS.draining.code;
const KEY = "2:team";
const WITHOUT_TOKENS = { JINDOU_AUTH_CLIENTS: "none" };

const drainWithin = (ms: number) => ({
  ...WITHOUT_TOKENS,
  JINDOU_DRAIN_TIMEOUT_MS: String(ms),
  JINDOU_CLIENT_AUTH_TIMEOUT_MS: "120000", // a tenth of the sockets never send CONNECT and must stay open on a busy machine too
});

/**
 * Starts senders over HTTP and sockets that continue until the node is gone, and the checker of
 * their acknowledgements.
 */
async function startSending(broker: ChildBroker, shutdown: Shutdown) {
  const uids = ["http-0", "http-1", "socket-0", "socket-1"];
  const team = { channel_id: "team", channel_type: GROUP_CHANNEL };
  await broker.call("/channel", { ...team, subscribers: uids });
  const checker = new HistoryChecker();
  const random = new Random(7);
  const channels = [{ id: "team", type: GROUP_CHANNEL }] as const;
  const senders = uids.map((uid) => {
    const kind = uid.startsWith("http") ? "http" : "socket";
    return new Sender(uid, { kind, channels, checker, random });
  });
  for (const sender of senders) await sender.connect(broker);
  const done = Promise.all(senders.map((sender) => sender.run(shutdown)));
  return { checker, senders, done };
}

/**
 * Starts a Redis and a node on it that can accept the clients of another node. Returns the settings
 * of that other node. A node without a successor closes all its sockets at once.
 */
async function startWithSuccessor(t: Test): Promise<Settings> {
  const settings = { JINDOU_REDIS_URL: (await startRedis(t)).url };
  await spawnBroker(t, { ...WITHOUT_TOKENS, ...settings });
  return settings;
}

/**
 * Starts a broker on the same folder, repeats the sends that were not answered, and asserts that
 * every acknowledged message is in history.
 */
async function checkAfterRestart(
  t: Test,
  before: ChildBroker,
  load: Pick<Awaited<ReturnType<typeof startSending>>, "checker" | "senders">,
  settings: Settings = {},
): Promise<void> {
  const { checker, senders } = load;
  const broker = await spawnBroker(t, { ...WITHOUT_TOKENS, ...settings }, before.dataPath);
  for (const sender of senders) {
    await sender.connect(broker);
    await sender.retry();
  }
  const reader = new Reader("history", KEY);
  await checkHistory(broker, { checker, reader });
  t.same(checker.problems.slice(0, 20), [], "every acknowledged message is stored once");
  for (const sender of senders) sender.close();
  await broker.kill();
}

t.test(
  `SIGTERM makes one of two nodes close its ${CROWD} sockets over the drain time and exit with code 0 without losing an acknowledged message`,
  async (t) => {
    const store = await startWithSuccessor(t);
    const broker = await spawnBroker(t, { ...drainWithin(DRAIN_MS), ...store });
    const clients = await openCrowd(broker, CROWD);
    const shutdown: Shutdown = { isBegun: false, isComplete: false };
    const { checker, senders, done } = await startSending(broker, shutdown);
    const closed = watchClosings(clients);
    t.equal((await broker.call("/readyz")).status, 200);

    shutdown.isBegun = true;
    const stalls = measureStalls(t);
    const signalledAtMs = performance.now();
    const ended = broker.stop("SIGTERM");
    await untilStopping(broker);
    const before = checker.acknowledgedCount;
    const readiness = watchReadiness(broker);
    await t.rejects(
      connectNative(undefined, { uid: "late", port: broker.clientPort }),
      { code: "http_503" },
      "a new socket is refused during the drain",
    );

    const closings = await closed;
    t.ok(checker.acknowledgedCount > before, "messages are acknowledged during the drain");
    t.same(await ended, { code: 0, signal: null });
    const readyz = await readiness;
    t.ok(readyz.length > 0);
    t.notOk(
      readyz.some(({ status }) => status !== 503),
      "/readyz responds with 503 from the beginning of the drain",
    );
    t.ok((readyz[0]?.atMs ?? 0) < (closings.at(-1)?.atMs ?? 0));

    t.notOk(closings.some(({ code }) => code !== DRAINING));
    t.notOk(closings.some(({ client }) => disconnectReasonOf(client) !== "draining"));
    const firstAtMs = closings[0]?.atMs ?? 0;
    const lastAtMs = closings.at(-1)?.atMs ?? 0;
    t.comment(`closed over ${Math.round(lastAtMs - firstAtMs)} ms`);
    const stallMs = 10 * stalls.totalMs(); // closings during a stall of this process are seen at once
    const spreadMs = lastAtMs - firstAtMs + stallMs;
    t.ok(spreadMs > DRAIN_MS * 0.4, "the closings are spread over the drain");
    const share = largestShareWithin(closings, DRAIN_MS / 10);
    t.ok(
      share < 0.6 + stallMs / DRAIN_MS,
      `the largest share of sockets that is closed at once is ${share}`,
    );
    const tookMs = performance.now() - signalledAtMs;
    t.comment(`exit after ${Math.round(tookMs)} ms`);
    t.ok(tookMs < DRAIN_MS * 3 + 10 * stalls.totalMs(), "the process exits soon after the drain");
    await done;
    await checkAfterRestart(t, broker, { checker, senders }, store);
  },
);

t.test(
  "a node with one listener for API and clients answers API calls and refuses sockets during the drain",
  async (t) => {
    const { clientPort: port, ...free } = await freePort(t);
    await free.kill();
    const address = `127.0.0.1:${port}`;
    const broker = await spawnBroker(t, {
      ...drainWithin(DRAIN_MS),
      ...(await startWithSuccessor(t)),
      JINDOU_API_LISTEN: address,
      JINDOU_CLIENT_LISTEN: address,
    });
    const clients = await openCrowd(broker, 30);
    const closed = watchClosings(clients);
    const ended = broker.stop("SIGTERM");
    await untilStopping(broker);
    t.equal((await broker.call("/readyz")).status, 503);
    t.equal((await broker.call("/healthz")).status, 200);
    await t.rejects(openNative(undefined, { uid: "late", port }), {
      code: "http_503",
    });
    t.notOk((await closed).some(({ code }) => code !== DRAINING));
    t.same(await ended, { code: 0, signal: null });
  },
);

/** Starts a broker only to find a free port. */
const freePort = (t: Test) => spawnBroker(t);

t.test(
  "a draining node closes WKProto clients without a DISCONNECT, which they would take for a kick",
  async (t) => {
    const broker = await spawnBroker(t, drainWithin(500));
    const options = { port: broker.clientPort, uid: "wk" };
    const connected = await connectWkproto(t, options);
    const unconnected = await openWkproto(t, { ...options, uid: "wk-2" });
    await connected.ping();
    const before = connected.received.length;
    t.same(await broker.stop("SIGTERM"), { code: 0, signal: null });
    t.equal(await connected.closed(), DRAINING);
    t.equal(await unconnected.closed(), DRAINING);
    t.same(connected.received.slice(before), []);
    t.same(unconnected.received, []);
  },
);

t.test("SIGINT makes a node drain, like SIGTERM", async (t) => {
  const broker = await spawnBroker(t, drainWithin(500));
  const closed = watchClosings(await openCrowd(broker, 20));
  t.same(await broker.stop("SIGINT"), { code: 0, signal: null });
  t.notOk((await closed).some(({ code }) => code !== DRAINING));
});

t.test(
  "a second SIGTERM ends the drain at once with exit code 1, and no acknowledged message is lost",
  async (t) => {
    const store = await startWithSuccessor(t);
    const broker = await spawnBroker(t, { ...drainWithin(60_000), ...store });
    await openCrowd(broker, 20);
    const shutdown: Shutdown = { isBegun: false, isComplete: false };
    const { checker, senders, done } = await startSending(broker, shutdown);
    shutdown.isBegun = true;
    const started = performance.now();
    broker.process.kill("SIGTERM");
    await untilStopping(broker);
    // A node ignores a second signal that follows at once, because it may be an echo of the first,
    // so the test repeats the signal.
    const timer = setInterval(() => broker.process.kill("SIGTERM"), 100);
    const exit = await broker.exited;
    clearInterval(timer);
    t.same(exit, { code: 1, signal: null });
    t.ok(performance.now() - started < 20_000, "the process exits long before the drain time");
    await done;
    await checkAfterRestart(t, broker, { checker, senders }, store);
  },
);

t.test("a node without connections exits at once on SIGTERM", async (t) => {
  const broker = await spawnBroker(t, drainWithin(60_000));
  const started = performance.now();
  t.equal(await broker.terminate(), 0);
  t.ok(performance.now() - started < 20_000, "the process does not wait for the drain time");
});

t.test("a node with a client that does not read exits with code 0 on SIGTERM", async (t) => {
  const broker = await spawnBroker(t, {
    ...drainWithin(1000),
    JINDOU_CLIENT_MAX_BUFFERED_BYTES: String(64 * 1024 * 1024),
    JINDOU_CLIENT_MAX_BUFFERED_BYTES_PER_USER: String(64 * 1024 * 1024),
    JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
    JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
  });
  const port = broker.clientPort;
  const reader = await connectNative(t, { uid: "reader", port });
  const sender = await connectNative(t, { uid: "sender", port });
  reader.pause();
  const channel = { id: "reader", type: 1 } as const;
  const text = "x".repeat(50_000);
  for (let no = 0; no < 400; no++) await sender.send(channel, text);
  t.equal((await onlineStateOf(broker, "reader")).connections, 2);
  t.equal(await broker.terminate(), 0);
});

/**
 * Resolves when the node has locked its data folder. From then on signals are handled, although the
 * start is not complete yet.
 */
async function untilFolderLocked({ dataPath }: BrokerProcess): Promise<void> {
  const untilMs = Date.now() + 60_000;
  while (!existsSync(join(dataPath, "heartbeat")))
    if (Date.now() > untilMs) throw new Error("the node did not lock its folder in time");
    else await pause(1);
}

t.test(
  "SIGTERM or SIGINT during the start ends the node with exit code 0, and the next start can use its data folder",
  async (t) => {
    for (const signal of ["SIGTERM", "SIGINT"] as const) {
      const start = await launchBroker(t);
      await untilFolderLocked(start);
      t.same(
        await start.stop(signal),
        { code: 0, signal: null },
        `${signal} ends the start with exit code 0`,
      );
      const next = await spawnBroker(t, {}, start.dataPath);
      t.equal(await next.terminate(), 0);
    }
  },
);

t.test(
  "a server that is closed during its start completes the start and then stops serving the API",
  async (t) => {
    const path = await tempFolder(t);
    const config = loadConfig({
      env: {
        JINDOU_API_LISTEN: "127.0.0.1:0",
        JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
        JINDOU_STORE_PATH: path,
      },
    });
    const { driver } = await chooseDriver(config.transport);
    for (const delayMs of [0, 0, 5, 10, 20, 40, 60, 80, 100, 150]) {
      const server = await createServer(config, {
        logger: createLogger({ level: "error" }, process.stdout),
        droppedLogLines: () => 0,
        newestErrors: () => [],
        version: "test",
        transport: driver,
        announcePassword: () => undefined,
        onUnfit: () => undefined,
      });
      const starting = server.start();
      await pause(delayMs);
      const closing = server.close();
      const { apiPort } = await starting;
      await closing;
      await t.rejects(fetch(`http://127.0.0.1:${apiPort}/healthz`));
    }
  },
);

t.test(
  "SIGTERM at any point during a start ends the process, by the signal or with exit code 0",
  async (t) => {
    const random = new Random(3);
    let path: string | undefined;
    for (let round = 0; round < 8; round++) {
      const start = await launchBroker(t, {}, path);
      path = start.dataPath;
      await pause(random.below(900));
      const { code, signal } = await start.stop("SIGTERM");
      t.ok(
        code === 0 || signal === "SIGTERM",
        `the start ended with code ${code} and signal ${signal}`,
      );
    }
    const broker = await spawnBroker(t, {}, path);
    t.equal((await broker.call("/readyz")).status, 200);
  },
);
