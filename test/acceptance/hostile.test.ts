// Hostile bytes on client sockets. Whatever is sent is answered with an error or a close code from
// the broker's own tables. The broker keeps serving and its memory does not grow. Uses its own
// broker process. JINDOU_TEST_FRAMES and JINDOU_TEST_CONNECTS set the counts.

import { setTimeout as delay } from "node:timers/promises";
import t, { type Test } from "tap";
import { CLOSE_REASONS, ERRORS } from "../../src/broker/errors.ts";
import { spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { volume } from "../support/volume.ts";
import { Attacker, connectFrame, isAllowedEnding } from "./attacker.ts";
import { MEASURED_SETTINGS, settledMib } from "./child-memory.ts";
import {
  falseLengthsAndNesting,
  MAX_FRAME_BYTES,
  randomFrame,
  truncations,
  wrongTypes,
} from "./hostile-frames.ts";
import { BROKER_CODES, OPCODES, RawSocket, webSocketFrame } from "./raw-socket.ts";

const FRAMES = volume(100_000, "JINDOU_TEST_FRAMES");
const CONNECTS = volume(10_000, "JINDOU_TEST_CONNECTS");
/** Size of the warm-up as a share of `FRAMES` and `CONNECTS`. */
const WARM_UP = 0.15;
const ATTACKERS = 8;
const BATCH = 25;
const TIMEOUT_MS = 120_000;
const TEXT_REFUSED = CLOSE_REASONS.protocol_error.code;

/**
 * Allowed growth of the broker's memory, in MiB, from the warm-up to the end of the test. The
 * measured growth was 3 to 6 MiB, even with five times the frames and connections, and was mostly
 * compiled code. With JINDOU_TEST_VOLUME=full, a leak of 1000 bytes per connection or of 100 bytes
 * per frame exceeds the bound.
 */
const MEMORY_TOLERANCE_MIB = 8;

const broker = await spawnBroker(t, {
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
  JINDOU_AUTH_TOKEN_ATTEMPTS: "1000000", // random frames contain wrong tokens
  JINDOU_CLIENT_KEEP_CLOSED: "0", // the list of closed sessions grows up to its limit
  ...MEASURED_SETTINGS,
});
const { clientPort: port } = broker;
const { pid } = broker.process;
const fuzzers = Array.from({ length: ATTACKERS }, (_, i) => `fuzzer-${i}`);
for (const uid of fuzzers) await broker.call("/user/token", { uid, token: "t", device_flag: 0 });
// The user and group that the frames of test/wire/native-samples.ts use, so that some of the
// hostile frames are valid.
await broker.call("/user/token", {
  uid: "bob",
  token: "secret",
  device_flag: 2,
});
await broker.call("/channel", {
  channel_id: "team",
  channel_type: 2,
  subscribers: [...fuzzers, "bob"],
});

let warmMib = Number.NaN;

t.test("the broker survives random frames and dropped connections", async (t) => {
  await fuzz(t, FRAMES * WARM_UP);
  await openAndDrop(CONNECTS * WARM_UP);
  warmMib = await settledMib(pid);
});

t.test("a truncated frame is answered with an error code and ends the connection", async (t) => {
  for (const [attacker, codes] of [
    [stranger(), ["malformed_frame", "not_connected"]], // only a CONNECT is read before the login
    [loggedIn(), ["malformed_frame"]],
  ] as const) {
    const endings = new Map<unknown, number>();
    for (const frame of truncations()) {
      const ending = await attacker.sendAll([frame]);
      endings.set(ending, (endings.get(ending) ?? 0) + 1);
    }
    t.same([...endings.keys()], [CLOSE_REASONS.protocol_error.code], "the connection is closed");
    t.same([...attacker.errors.keys()].sort(), codes, "the client gets no other error code");
  }
});

t.test(
  "a hostile value in any field of any operation is answered with an error or a close code",
  async (t) => {
    for (const attacker of [stranger(), loggedIn()]) {
      const forbidden = new Set<unknown>();
      for (const frame of wrongTypes()) {
        const outcome = await attacker.sendAll([frame]);
        if (!isAllowedEnding(outcome)) forbidden.add(outcome);
      }
      t.same(
        [...forbidden],
        [],
        "every connection stays open or ends with one of the broker's close codes",
      );
      assertErrors(t, attacker, ["bad_request", "bad_id"]);
      attacker.stop();
    }
  },
);

t.test(
  "a frame with a false length, deep nesting or a huge size is answered with an error or ends the connection",
  async (t) => {
    for (const attacker of [stranger(), loggedIn()]) {
      for (const frame of falseLengthsAndNesting()) {
        const outcome = await attacker.sendAll([frame]);
        t.ok(isAllowedEnding(outcome), `the connection ends with ${outcome}`);
      }
      assertErrors(t, attacker, ["malformed_frame"]);
      attacker.stop();
    }
    const tooBig = await new RawSocket(port).upgraded();
    tooBig.send(new Uint8Array(MAX_FRAME_BYTES + 1));
    t.notOk(
      BROKER_CODES.has(await tooBig.ended()),
      "a frame over the limit closes the connection with 1009 or without a close frame",
    );
  },
);

t.test(
  `the broker survives ${FRAMES} random frames while slow clients hold connections open`,
  async (t) => {
    const slowClients = runSlowClients(t);
    await fuzz(t, FRAMES);
    const slowestMs = await slowClients;
    t.comment(`the last slow client was disconnected after ${slowestMs.toFixed(0)} ms`);
  },
);

t.test("an invalid WebSocket frame or a text that is not JSON ends the connection", async (t) => {
  const empty = new Uint8Array(0);
  const huge = webSocketFrame(empty, OPCODES.binary);
  const broken: Readonly<Record<string, Uint8Array>> = {
    "not masked": Buffer.from([0x82, 2, 0x92, 6, 6, 0, 0, 0]),
    "reserved bits": webSocketFrame(empty, OPCODES.binary, 0xf0),
    "reserved opcode": webSocketFrame(empty, 3),
    "continuation without a start": webSocketFrame(empty, OPCODES.continuation),
    "fragmented ping": webSocketFrame(empty, OPCODES.ping, 0),
    "long ping": webSocketFrame(new Uint8Array(126), OPCODES.ping),
    "length of 2^63": Buffer.concat([Buffer.from([0x82, 0xff, 0x80]), Buffer.alloc(15)]),
    "close with half a code": webSocketFrame(new Uint8Array(1), OPCODES.close),
    "close with a reserved code": webSocketFrame(Buffer.from([3, 237]), OPCODES.close),
    "text that is not UTF-8": webSocketFrame(Buffer.from([0xc3]), OPCODES.text),
    text: webSocketFrame(Buffer.from("hello"), OPCODES.text),
    "a message within a message": Buffer.concat([webSocketFrame(empty, OPCODES.binary, 0), huge]),
    HTTP: Buffer.from("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
  };
  for (const [name, bytes] of Object.entries(broken)) {
    const socket = await new RawSocket(port).upgraded();
    socket.write(bytes);
    const ending = await socket.ended();
    t.ok(
      ["cut", 1005, TEXT_REFUSED].includes(ending),
      `${name}: the connection ends with ${ending}`,
    );
  }
});

t.test(
  "a client that floods the broker with WebSocket pings still gets a reply to its next operation",
  async (t) => {
    const socket = await new RawSocket(port).upgraded();
    socket.send(connectFrame({ uid: "fuzzer-0", token: "t" }));
    await socket.frame();
    const ping = webSocketFrame(new Uint8Array(125), OPCODES.ping);
    for (let i = 0; i < 10_000; i++) socket.write(ping);
    const pingOperation = new Uint8Array([0x92, 6, 9]);
    socket.send(pingOperation);
    t.ok(await socket.frame(), "a protocol ping after the flood is answered");
    socket.kill();
  },
);

t.test(
  `${CONNECTS} connections that are dropped at any stage of the handshake leave no user online`,
  async (t) => {
    await openAndDrop(CONNECTS);
    await until("all connections are closed", async () => (await metric("connections")) === 0);
    const { body } = await broker.call("/user/onlinestatus", fuzzers);
    t.same(
      body.filter(({ online }: { online: number }) => online === 1),
      [],
    );
  },
);

t.test(
  "the broker serves normal clients after the attacks in this file, and its memory has not grown",
  async (t) => {
    const [alice, bob] = await Promise.all(
      (["fuzzer-0", "fuzzer-1"] as const).map((uid) =>
        connectNative(t, { port, uid, token: "t", timeoutMs: TIMEOUT_MS }),
      ),
    );
    const receipt = await alice?.send({ type: 1, id: "fuzzer-1" }, "hello");
    t.equal((await bob?.nextMessage())?.messageId, receipt?.messageId, "the message is delivered");
    const limitMib = warmMib + MEMORY_TOLERANCE_MIB;
    const nowMib = await settledMib(pid, limitMib);
    t.comment(`${warmMib.toFixed(1)} MiB after the warm-up, ${nowMib.toFixed(1)} MiB now`);
    t.ok(nowMib <= limitMib, "the memory has not grown");
    t.notMatch(broker.output(), /"level":"(error|fatal)"/, "no error was logged");
    t.equal(await broker.terminate(), 0);
  },
);

/** Sends random frames until the broker has received `frames` of them. */
async function fuzz(t: Test, frames: number): Promise<void> {
  const target = (await metric("frames_received_total")) + frames;
  let seed = 0;
  let isDone = false;
  const forbidden = new Set<unknown>();
  const attackers = [stranger(), ...fuzzers.map((_, i) => loggedIn(i))];
  const work = async (attacker: Attacker) => {
    for (let round = 1; !isDone; round++) {
      const batch = Array.from({ length: BATCH }, () => randomFrame(++seed));
      const outcome = await attacker.sendAll(batch);
      if (!isAllowedEnding(outcome)) forbidden.add(outcome);
      if (round % 20 === 0) isDone ||= (await metric("frames_received_total")) >= target;
    }
    attacker.stop();
  };
  await Promise.all(attackers.map(work));
  t.same(
    [...forbidden],
    [],
    "every connection stays open or ends with one of the broker's close codes",
  );
  for (const attacker of attackers) assertErrors(t, attacker, ["malformed_frame"]);
}

/** Opens connections and drops each at one of four stages of the handshake and login. */
async function openAndDrop(connects: number): Promise<void> {
  let remaining = connects;
  const work = async (uid: string) => {
    while (remaining-- > 0) {
      const socket = new RawSocket(port);
      if (remaining % 4 === 0) await socket.connected();
      else {
        await socket.upgraded();
        if (remaining % 4 > 1) socket.send(connectFrame({ uid, token: "t" }));
        if (remaining % 4 > 2) await socket.frame();
      }
      socket.kill();
    }
  };
  await Promise.all([...fuzzers, ...fuzzers].map(work));
}

/**
 * Opens connections that send too little, too slowly or nothing. Returns the time in milliseconds
 * after which the broker had closed them all.
 */
async function runSlowClients(t: Test): Promise<number> {
  const startMs = performance.now();
  const timers = new Set<NodeJS.Timeout>();
  const drip = (socket: RawSocket, text: string) =>
    timers.add(setInterval(() => socket.write(text), 300));
  const many = Array.from({ length: 25 });
  const silent = many.map(() => new RawSocket(port));
  const dripping = many.map(() => new RawSocket(port));
  for (const socket of dripping) {
    socket.write("GET / HTTP/1.1\r\n");
    drip(socket, "a: b\r\n");
  }
  const unauthenticated = many.map(() => new RawSocket(port).upgraded());
  const halfClosed = many.map(async () => {
    const socket = await new RawSocket(port, {
      allowHalfOpen: true,
    }).upgraded();
    socket.endWriting();
    return socket;
  });
  const unfinished = many.map(async () => {
    const socket = await new RawSocket(port).upgraded();
    socket.write(webSocketFrame(new Uint8Array(100), OPCODES.binary).subarray(0, 20));
    return socket;
  });
  const upgraded = await Promise.all([...unauthenticated, ...unfinished]);
  const endings = await Promise.all(upgraded.map((socket) => socket.ended()));
  t.same([...new Set(endings)], [CLOSE_REASONS.auth_timeout.code]);
  const half = await Promise.all(halfClosed);
  await Promise.all([...silent, ...dripping, ...half].map((socket) => socket.cut()));
  for (const timer of timers) clearInterval(timer);
  return performance.now() - startMs;
}

function stranger(): Attacker {
  return new Attacker(port);
}

function loggedIn(i = 0): Attacker {
  return new Attacker(port, { uid: `fuzzer-${i}`, token: "t" });
}

/**
 * Asserts that the attacker received only codes of the error table, no code that reports a fault of
 * the broker, and all `expected` codes. If an expected code is missing, the attack did not happen.
 */
function assertErrors(t: Test, { errors }: Attacker, expected: readonly string[]) {
  const faults = ["internal", "unavailable", "overloaded"];
  const codes = [...errors.keys()];
  t.same(
    codes.filter((code) => faults.includes(code) || !Object.hasOwn(ERRORS, code)),
    [],
    "every error is the client's fault and in the error table",
  );
  for (const code of expected) t.ok(errors.has(code), `${code} is among the errors`);
}

/** Returns the sum of all series of a metric. */
async function metric(name: string): Promise<number> {
  const { body } = await broker.call("/metrics");
  const series = [...body.matchAll(new RegExp(`^jindou_${name}(?:\\{.*\\})? (\\d+)$`, "gm"))];
  if (series.length === 0) throw new Error(`there is no metric ${name}`);
  return series.reduce((sum, [, value]) => sum + Number(value), 0);
}

async function until(condition: string, holds: () => Promise<boolean>) {
  const deadlineMs = performance.now() + TIMEOUT_MS;
  while (!(await holds())) {
    if (performance.now() > deadlineMs) throw new Error(`timed out waiting until ${condition}`);
    await delay(50);
  }
}
