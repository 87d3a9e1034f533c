// Reconnecting: which close codes allow it, and how long the client waits.

import type { Test } from "tap";
import { CLOSE_REASONS, ERRORS } from "../../src/broker/errors.ts";
import { reconnectDelayMs, reconnectTiming, refusedDelayMs } from "../../src/client/connector.ts";
import { RETRYABLE } from "../../src/client/errors.ts";
import { connect, type SocketConstructor, type SocketLike } from "../../src/client/index.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { t } from "../support/suite.ts";
import { acknowledge, connectTo, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

type Connect = Extract<Operation, { readonly kind: "connect" }>;

t.test("the range of a close code determines whether and when the client reconnects", async (t) => {
  for (const [name, { code }] of Object.entries(CLOSE_REASONS)) {
    const expected = code < 4100 ? "at_once" : code < 4200 ? "pause" : "never";
    t.equal(reconnectTiming(code), expected, name);
  }
  for (const code of [1000, 1001, 1006, 1011, 1013, 4300])
    t.equal(reconnectTiming(code), "pause", `the client pauses after close code ${code}`);
});

t.test(
  "the first reconnect delay is random, and each later delay doubles up to the maximum and is half random",
  async (t) => {
    const bounds = { minMs: 100, maxMs: 1000 };
    const longest = (attempt: number) => reconnectDelayMs(attempt, bounds, () => 1);
    const shortest = (attempt: number) => reconnectDelayMs(attempt, bounds, () => 0);
    t.same([0, 1, 2, 3, 4, 5, 99].map(longest), [100, 200, 400, 800, 1000, 1000, 1000]);
    t.same([0, 1, 2, 3, 4, 99].map(shortest), [0, 100, 200, 400, 500, 500]);
  },
);

t.test("the SDK and the server agree on which error codes allow a retry", async (t) => {
  const codes = Object.entries(ERRORS).filter(([, { retry }]) => retry);
  const retryable = Object.keys(ERRORS).filter((code) => RETRYABLE.has(code));
  t.same(
    codes.map(([code]) => code),
    retryable,
  );
  t.ok(retryable.length > 0);
});

t.test(
  "a refused connection is retried after 50 to 150 ms at first, and the delay grows up to the maximum",
  async (t) => {
    const bounds = { minMs: 500, maxMs: 30_000 };
    const range = (attempt: number) =>
      [0, 1].map((random) => Math.round(refusedDelayMs(attempt, bounds, () => random)));
    t.same(range(0), [50, 150], "first delay");
    t.same(range(1), [100, 300], "second delay");
    for (const attempt of [2, 5, 11]) t.same(range(attempt), [200, 600], `delay ${attempt}`);
    t.same(range(12), [400, 1200], "the delay doubles again if the server stays away");
    t.same(range(99), [10_000, 30_000], "the delay ends at maxMs");
  },
);

/** Records the delays of the client's timers that are at most `maxMs`, until the test ends. */
function recordDelays(t: Test, maxMs: number): readonly number[] {
  const delays: number[] = [];
  const original = globalThis.setTimeout;
  const recording = (run: () => void, ms = 0) => {
    if (ms <= maxMs) delays.push(ms);
    return original(run, ms);
  };
  globalThis.setTimeout = Object.assign(recording, original);
  t.teardown(() => {
    globalThis.setTimeout = original;
  });
  return delays;
}

/** Limits of the pauses, in milliseconds. The pauses double five times. */
const RECONNECT = { minMs: 1, maxMs: 32 };
const ATTEMPTS = 9;

class RefusingSocket implements SocketLike {
  binaryType = "";
  onopen: SocketLike["onopen"] = null;
  onmessage: SocketLike["onmessage"] = null;
  onclose: SocketLike["onclose"] = null;
  onerror: SocketLike["onerror"] = null;
  static opened = 0;

  constructor() {
    RefusingSocket.opened += 1;
    setImmediate(() => this.onclose?.({ code: 1006 }));
  }

  send(): void {}
  close(): void {}
}

for (const [name, script] of [
  ["the server refuses the session", (socket: ScriptedSocket) => socket.end(4102)],
  [
    "each session is lost soon after its login",
    (socket: ScriptedSocket, connect: Connect) => {
      acknowledge(connect, socket);
      socket.end(1006);
    },
  ],
] as const)
  t.test(`the pause between connection attempts grows while ${name}`, async (t) => {
    const delays = recordDelays(t, RECONNECT.maxMs);
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") script(socket, operation);
    });
    const client = connectTo(t, server, { reconnect: RECONNECT });
    client.on("error", () => undefined);
    await server.socket(ATTEMPTS);
    await client.close();
    t.ok((delays[0] ?? 0) <= 1, "the first pause is short");
    for (let n = 1; n < ATTEMPTS; n++) {
      const fullMs = Math.min(RECONNECT.maxMs, 2 ** n);
      const delay = delays[n] ?? 0;
      t.ok(delay >= fullMs / 2 && delay <= fullMs, `pause ${n} is ${delay} ms`);
    }
  });

t.test("the pause between connection attempts grows while no server accepts them", async (t) => {
  const delays = recordDelays(t, RECONNECT.maxMs);
  const client = connect({
    ...{ url: "ws://nowhere", uid: "me", reconnect: RECONNECT },
    webSocket: RefusingSocket,
  });
  client.on("error", () => undefined);
  while (RefusingSocket.opened < 20) await new Promise((resolve) => setImmediate(resolve));
  await client.close();
  const longestMs = Math.max(...delays.slice(17, 19));
  t.ok(longestMs > 4 * (delays[0] ?? 0), `from ${delays[0]} ms to ${longestMs} ms`);
  t.ok(longestMs >= RECONNECT.maxMs / 3, "the pause reaches its maximum");
});

t.test("the reconnect pauses are short again after a session that was open for 10 s", async (t) => {
  const delays = recordDelays(t, RECONNECT.maxMs);
  const now = performance.now.bind(performance);
  let aheadMs = 0;
  performance.now = () => now() + aheadMs;
  t.teardown(() => {
    performance.now = now;
  });
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    if (server.sockets.length <= ATTEMPTS) socket.end(4102);
    else acknowledge(operation, socket);
  });
  const client = connectTo(t, server, { reconnect: RECONNECT });
  client.on("error", () => undefined);
  await client.ready();
  aheadMs = 10_000;
  const count = delays.length;
  server.sockets.at(-1)?.end(4102);
  await server.socket(ATTEMPTS + 1);
  t.ok((delays[count] ?? RECONNECT.maxMs) <= RECONNECT.minMs, `the pause is ${delays[count]} ms`);
});

t.test("the pauses between refused connections are short again after a session", async (t) => {
  const delays = recordDelays(t, RECONNECT.maxMs);
  const server = new ScriptedServer();
  let isAway = true;
  let refused = 0;
  const client = connect({
    ...{ url: "ws://nowhere", uid: "me", reconnect: RECONNECT },
    webSocket: class {
      constructor() {
        if (isAway) refused += 1;
        // biome-ignore lint/correctness/noConstructorReturn: the client calls `new` on the class
        return isAway ? new RefusingSocket() : new server.webSocket("", []);
      }
    } as unknown as SocketConstructor,
  });
  t.teardown(() => client.close());
  client.on("error", () => undefined);
  await server.until("16 refused attempts", () => refused >= 16);
  isAway = false;
  await client.ready();
  isAway = true;
  const before = delays.length;
  server.sockets[0]?.end(1006);
  await server.until("two more refused attempts", () => refused >= 18);
  const [lost = 0, afterRefusal = Infinity] = delays.slice(before);
  t.ok(lost <= RECONNECT.minMs && afterRefusal <= RECONNECT.minMs, `${lost}, ${afterRefusal} ms`);
});
