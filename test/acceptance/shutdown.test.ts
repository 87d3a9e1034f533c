// The orderly end [issue 2, line 7; option drain.timeoutMs]: SIGTERM and SIGINT at a busy node, at
// an idle one, while it starts, and twice.

import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import { loadConfig } from "../../src/config/load.ts";
import { createLogger } from "../../src/observe/logger.ts";
import { createServer } from "../../src/server.ts";
import {
  type BrokerProcess,
  type ChildBroker,
  launchBroker,
  spawnBroker,
  tempFolder,
} from "../support/broker.ts";
import { HistoryChecker, Reader } from "../support/history-checker.ts";
import { connectNative, openNative } from "../support/native-client.ts";
import { Random } from "../support/random.ts";
import { measureStalls } from "../support/stalls.ts";
import { type Doom, Sender } from "./crash-load.ts";
import { densest, openCrowd, stopping, watchClosings, watchReadiness } from "./drain-watch.ts";
import { judgeHistory } from "./history-judge.ts";
import { farewellOf, standingOf } from "./logins.ts";

const CROWD = 500;
const DRAIN_MS = 3000;
const DRAINING = CLOSE_REASONS.draining.code;
const KEY = "2:team";
const OPEN = { JINDOU_AUTH_CLIENTS: "none" };

const drainWithin = (ms: number) => ({
  ...OPEN,
  JINDOU_DRAIN_TIMEOUT_MS: String(ms),
  JINDOU_CLIENT_AUTH_TIMEOUT_MS: "120000", // a tenth of the crowd never says CONNECT, and a busy machine is late
});

/**
 * Senders over HTTP and sockets that go on until the node is gone, and the checker of what they
 * were told.
 */
async function startSending(broker: ChildBroker, doom: Doom) {
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
  const done = Promise.all(senders.map((sender) => sender.run(doom)));
  return { checker, senders, done };
}

/**
 * Starts on the same folder, sends again what was not answered, and proves that all of it is in
 * history.
 */
async function judgeAfterRestart(
  t: Test,
  before: ChildBroker,
  sent: Pick<Awaited<ReturnType<typeof startSending>>, "checker" | "senders">,
): Promise<void> {
  const { checker, senders } = sent;
  const broker = await spawnBroker(t, OPEN, before.dataPath);
  for (const sender of senders) {
    await sender.connect(broker);
    await sender.retry();
  }
  const reader = new Reader("history", KEY);
  await judgeHistory(broker, { checker, reader });
  t.same(checker.problems.slice(0, 20), [], "what was acknowledged is stored");
  for (const sender of senders) sender.close();
  await broker.kill();
}

t.test(
  `SIGTERM with ${CROWD} sockets: 503 at once, new ones refused, closings spread over the drain, nothing acknowledged lost, exit 0`,
  async (t) => {
    const broker = await spawnBroker(t, drainWithin(DRAIN_MS));
    const crowd = await openCrowd(broker, CROWD);
    const doom: Doom = { isNear: false, isHere: false };
    const { checker, senders, done } = await startSending(broker, doom);
    const closed = watchClosings(crowd);
    t.equal((await broker.call("/readyz")).status, 200);

    doom.isNear = true;
    const stalls = measureStalls(t);
    const toldAtMs = performance.now();
    const ended = broker.stop("SIGTERM");
    await stopping(broker);
    const before = checker.acknowledgedCount;
    const readiness = watchReadiness(broker);
    await t.rejects(
      connectNative(undefined, { uid: "late", port: broker.clientPort }),
      { code: "http_503" },
      "a new socket is refused",
    );

    const closings = await closed;
    t.ok(checker.acknowledgedCount > before, "the API answers while it drains");
    t.same(await ended, { code: 0, signal: null });
    const answers = await readiness;
    t.ok(answers.length > 0);
    t.notOk(
      answers.some(({ status }) => status !== 503),
      "never ready again",
    );
    t.ok((answers[0]?.atMs ?? 0) < (closings.at(-1)?.atMs ?? 0));

    t.notOk(closings.some(({ code }) => code !== DRAINING));
    t.notOk(closings.some(({ client }) => farewellOf(client) !== "draining"));
    const firstAtMs = closings[0]?.atMs ?? 0;
    const lastAtMs = closings.at(-1)?.atMs ?? 0;
    t.comment(`closed over ${Math.round(lastAtMs - firstAtMs)} ms`);
    const heldUpMs = 10 * stalls.totalMs(); // what came meanwhile is seen at once
    const spreadMs = lastAtMs - firstAtMs + heldUpMs;
    t.ok(spreadMs > DRAIN_MS * 0.4, "spread over the drain");
    const most = densest(closings, DRAIN_MS / 10);
    t.ok(most < 0.6 + heldUpMs / DRAIN_MS, `never many at once: ${most}`);
    const tookMs = performance.now() - toldAtMs;
    t.comment(`exit after ${Math.round(tookMs)} ms`);
    t.ok(tookMs < DRAIN_MS * 3 + 10 * stalls.totalMs(), "and not much longer");
    await done;
    await judgeAfterRestart(t, broker, { checker, senders });
  },
);

t.test(
  "one listener for both: during the drain the API answers there and sockets are refused",
  async (t) => {
    const { clientPort: port, ...free } = await freePort(t);
    await free.kill();
    const address = `127.0.0.1:${port}`;
    const broker = await spawnBroker(t, {
      ...drainWithin(DRAIN_MS),
      JINDOU_API_LISTEN: address,
      JINDOU_CLIENT_LISTEN: address,
    });
    const crowd = await openCrowd(broker, 30);
    const closed = watchClosings(crowd);
    const ended = broker.stop("SIGTERM");
    await stopping(broker);
    t.equal((await broker.call("/readyz")).status, 503);
    t.equal((await broker.call("/healthz")).status, 200);
    await t.rejects(openNative(undefined, { uid: "late", port }), {
      code: "http_503",
    });
    t.notOk((await closed).some(({ code }) => code !== DRAINING));
    t.same(await ended, { code: 0, signal: null });
  },
);

/** A broker only to learn a port that is free. */
const freePort = (t: Test) => spawnBroker(t);

t.test("SIGINT drains like SIGTERM", async (t) => {
  const broker = await spawnBroker(t, drainWithin(500));
  const closed = watchClosings(await openCrowd(broker, 20));
  t.same(await broker.stop("SIGINT"), { code: 0, signal: null });
  t.notOk((await closed).some(({ code }) => code !== DRAINING));
});

t.test(
  "a second SIGTERM ends the drain at once with 1, and what was acknowledged is stored all the same",
  async (t) => {
    const broker = await spawnBroker(t, drainWithin(60_000));
    await openCrowd(broker, 20);
    const doom: Doom = { isNear: false, isHere: false };
    const { checker, senders, done } = await startSending(broker, doom);
    doom.isNear = true;
    const started = performance.now();
    broker.process.kill("SIGTERM");
    await stopping(broker);
    // One that follows so soon that it may be an echo of the first is none.
    const again = setInterval(() => broker.process.kill("SIGTERM"), 100);
    const exit = await broker.exited;
    clearInterval(again);
    t.same(exit, { code: 1, signal: null });
    t.ok(performance.now() - started < 20_000, "long before the drain is over");
    await done;
    await judgeAfterRestart(t, broker, { checker, senders });
  },
);

t.test("a drain with nobody connected takes no time", async (t) => {
  const broker = await spawnBroker(t, drainWithin(60_000));
  const started = performance.now();
  t.equal(await broker.terminate(), 0);
  t.ok(performance.now() - started < 20_000, "nothing is waited for");
});

t.test("clients that do not read do not hold the end up", async (t) => {
  const broker = await spawnBroker(t, {
    ...drainWithin(1000),
    JINDOU_CLIENT_MAX_BUFFERED_BYTES: String(64 * 1024 * 1024),
    JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
    JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
  });
  const port = broker.clientPort;
  const reader = await connectNative(t, { uid: "reader", port });
  const sender = await connectNative(t, { uid: "sender", port });
  reader.pause();
  const to = { id: "reader", type: 1 } as const;
  const text = "x".repeat(50_000);
  for (let no = 0; no < 400; no++) await sender.send(to, text);
  t.equal((await standingOf(broker, "reader")).connections, 2);
  t.equal(await broker.terminate(), 0);
});

/** Resolves when the node holds its data folder: signals are heeded, and the start is not over. */
async function holdsFolder({ dataPath }: BrokerProcess): Promise<void> {
  const untilMs = Date.now() + 60_000;
  while (!existsSync(join(dataPath, "heartbeat")))
    if (Date.now() > untilMs) throw new Error("it does not open its folder");
    else await pause(1);
}

t.test(
  "a signal while it starts ends it with 0 and leaves a folder that the next start takes",
  async (t) => {
    for (const signal of ["SIGTERM", "SIGINT"] as const) {
      const start = await launchBroker(t);
      await holdsFolder(start);
      t.same(await start.stop(signal), { code: 0, signal: null }, signal);
      const next = await spawnBroker(t, {}, start.dataPath);
      t.equal(await next.terminate(), 0);
    }
  },
);

t.test(
  "closing at any moment of a start lets the start get to its end, and then closes everything",
  async (t) => {
    const path = await tempFolder(t);
    const config = loadConfig({
      env: {
        JINDOU_API_LISTEN: "127.0.0.1:0",
        JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
        JINDOU_STORE_PATH: path,
      },
    });
    for (const delayMs of [0, 0, 5, 10, 20, 40, 60, 80, 100, 150]) {
      const server = createServer(config, {
        logger: createLogger({ level: "error" }),
        version: "test",
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
  "a signal at any moment of a start ends it: before it is heeded by the signal itself, then with 0",
  async (t) => {
    const random = new Random(3);
    let path: string | undefined;
    for (let round = 0; round < 8; round++) {
      const start = await launchBroker(t, {}, path);
      path = start.dataPath;
      await pause(random.below(900));
      const { code, signal } = await start.stop("SIGTERM");
      t.ok(code === 0 || signal === "SIGTERM", `${code} ${signal}`);
    }
    const broker = await spawnBroker(t, {}, path);
    t.equal((await broker.call("/readyz")).status, 200);
  },
);
