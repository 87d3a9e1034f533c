// Rules and limits of a client connection on a real node: how it opens, what ends it and with which
// code, and which requests are refused on it.

import { once } from "node:events";
import type { Test } from "tap";
import { WebSocket } from "ws";
import { connect } from "../../src/client/index.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { TEST_TRANSPORT } from "../support/driver.ts";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { jsonRpcWire } from "../support/jsonrpc-wire.ts";
import { openNative } from "../support/native-client.ts";
import { NativeClient } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { nativeWire, type Wire } from "../support/wire.ts";
import { openWkprotoSocket, TCP_LISTENER } from "../support/wkproto-client.ts";
import { FORMATS } from "./formats/formats.ts";
import { joinFormat, refusalOf } from "./formats/join.ts";
import {
  codeOf,
  endingOf,
  eventually,
  person,
  range,
  sendUntilOffline,
  startWorld,
  TIMEOUT_MS,
  untilReceived,
  type World,
} from "./world.ts";

const world = await startWorld(t);

const PING = encodeOperation({ kind: "ping", ref: 1 });

/** Connects with the native format, for tests of native frames. */
const joinNative = (t: Test, target: World, uid: string) =>
  target.join(t, uid, { wire: nativeWire(uid) });

/** Opens a socket without sending CONNECT. */
const open = (target: World, options: object = {}) =>
  openNative(t, {
    port: target.clientPort,
    uid: "alice",
    timeoutMs: TIMEOUT_MS,
    ...options,
  });

// Covers [feature: connect; decisions: Client authentication]
t.test(
  "a client with a wrong token is refused with unauthorized and closed with 4201",
  async (t) => {
    await world.register("alice", { token: "right" });
    const client = await open(world, { token: "wrong" });
    t.equal(await codeOf(client.connect()), "unauthorized");
    t.equal(await endingOf(client), "auth_failed 4201");
    t.match(await world.status("alice"), { online: 0 });
  },
);

const LOW_ORDER_KEY = Buffer.alloc(32).toString("base64");

/** Opens a connection whose CONNECT has a valid token and an invalid field, in each wire format. */
const INVALID_CONNECTS = {
  native: (uid: string) => openInvalid(uid, nativeWire(uid)),
  "JSON-RPC": (uid: string) => openInvalid(uid, jsonRpcWire(uid)),
  WKProto: (uid: string) =>
    openWkprotoSocket(t, { port: world.clientPort, uid, clientKey: LOW_ORDER_KEY }),
};

const openInvalid = (uid: string, wire: Wire) =>
  open(world, {
    ...{ uid, wire, token: `token-${uid}`, flag: 1 },
    resume: [{ channel: { id: "room", type: 9 }, lastSeq: 1 }],
  });

async function webSessions(): Promise<number> {
  const { body } = await world.call("/metrics");
  return Number(/^jindou_sessions\{device_flag="web"\} (\S+)$/m.exec(body)?.[1]);
}

// Covers [feature: connect]
for (const [format, openClient] of Object.entries(INVALID_CONNECTS))
  t.test(
    `a user with a valid token and an invalid CONNECT does not stay online, over ${format}`,
    async (t) => {
      const before = await webSessions();
      const uid = world.name("alice");
      await world.register(uid, { flag: 1 });
      const refused = await openClient(uid);
      await refused.connect().catch(() => undefined);
      await (refused instanceof NativeClient ? refused.closed : refused.closed());
      await world.offline(uid);
      t.equal(await webSessions(), before, "the refused session is not counted");
      const closing = await Promise.all(range(1, 10).map(() => openClient(uid)));
      for (const client of closing) {
        client.connect().catch(() => undefined);
        if (client instanceof NativeClient) void client.close();
        else client.kill();
      }
      await world.join(t, world.name("bob")); // logs in later than the other sessions
      await world.offline(uid);
      await eventually(async () => (await webSessions()) === before);
    },
  );

// Covers [feature: connect]
t.test(
  "a connection is closed with 4205 if its version is not supported or its first frame is not CONNECT",
  async (t) => {
    const newer = await open(world);
    t.equal(await codeOf(newer.connect({ version: 2 })), "unsupported_version");
    t.equal(await endingOf(newer), "protocol_error 4205");
    const early = await open(world);
    t.equal(await codeOf(early.ping()), "not_connected");
    t.equal(await endingOf(early), "protocol_error 4205");
  },
);

// Covers [feature: errors]
t.test("a second CONNECT on a connection is refused, and the session continues", async (t) => {
  const client = await world.join(t, world.name("alice"));
  t.equal(await codeOf(client.connect()), "bad_request");
  t.equal((await client.ping()).kind, "pong");
});

// Covers [feature: malformed frame]
t.test(
  "a malformed frame gets an error and closes the connection, and an unknown operation gets an error but does not close it",
  async (t) => {
    const unknown = await joinNative(t, world, world.name("alice"));
    unknown.raw(Buffer.from([0x92, 60, 5])); // [60, 5]
    t.equal((await unknown.ping()).kind, "pong");
    t.match(unknown.errors, [{ ref: 5, code: "malformed_frame" }]);
    for (const frame of ["text", Buffer.from([0xc1]), Buffer.from([0x93, 6])]) {
      const client = await joinNative(t, world, world.name("bob"));
      client.raw(frame);
      t.equal(await endingOf(client), "protocol_error 4205");
      t.match(client.errors, [{ code: "malformed_frame" }]);
    }
  },
);

// Covers [feature: Client sockets]
t.test(
  "a client may offer the native subprotocol or none, and a handshake that offers only unknown subprotocols is refused with 400",
  async (t) => {
    const uid = world.name("alice");
    await world.register(uid);
    for (const [subprotocols, chosen] of [
      [["other", "jindou.native.v1"], "jindou.native.v1"],
      [[], ""],
    ] as const) {
      const wire = nativeWire(uid);
      const client = await world.connect(t, uid, { subprotocols, wire });
      t.equal(client.subprotocol, chosen);
    }
    const subprotocols = ["other"];
    const refused = world.connect(t, uid, { subprotocols });
    t.equal(await codeOf(refused), "http_400");
  },
);

// Covers [feature: ping]
t.test("PING is answered with the server's time", async (t) => {
  const client = await world.join(t, world.name("alice"));
  const { serverTimeMs } = await client.ping();
  t.ok(Math.abs(serverTimeMs - Date.now()) < 60_000);
});

// Covers [feature: recvack]
t.test("RECVACK is not answered and does not end the connection", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const client = await world.join(t, bob);
  await world.send(alice, person(bob), "x");
  client.recvack(person(alice), await client.nextMessage());
  t.same(await untilReceived(client, 1), ["x"]);
  t.same(client.errors, []);
});

// Covers [feature: Authentication deadline]
t.test("a socket without a CONNECT within client.authTimeoutMs is closed with 4101", async (t) => {
  const short = await startWorld(t, { JINDOU_CLIENT_AUTH_TIMEOUT_MS: "1000" });
  await short.register("alice");
  const [first, silent, unknown] = await Promise.all([
    short.connect(t, "alice"),
    open(short),
    open(short, { subprotocols: [] }),
  ]);
  t.equal(await endingOf(silent), "auth_timeout 4101");
  t.equal(
    await endingOf(unknown),
    "silent 4101",
    "a client without a subprotocol gets no disconnect frame",
  );
  t.equal((await first.ping()).kind, "pong");
});

// Covers [feature: Allowed origins]
t.test(
  "a handshake is accepted from an allowed origin or without an origin, and refused with 403 from other origins",
  async (t) => {
    const strict = await startWorld(t, {
      JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example.com,*.example.org",
    });
    await strict.register("alice");
    const connectFrom = (headers: { readonly origin?: string }) =>
      codeOf(strict.connect(t, "alice", { headers }));
    for (const origin of ["https://chat.example.com", "http://a.example.org"])
      t.equal(await connectFrom({ origin }), "ok", `${origin} is accepted`);
    t.equal(await connectFrom({}), "ok", "a client without an origin is accepted");
    for (const origin of [
      "http://chat.example.com",
      "https://evil.com",
      "https://example.org.evil.com",
    ])
      t.equal(await connectFrom({ origin }), "http_403", `${origin} is refused`);
    const origin = { origin: "https://anywhere.example" };
    await world.register("carol");
    const free = world.connect(t, "carol", { headers: origin });
    t.equal(await codeOf(free), "ok", "any origin is accepted by default");
  },
);

// Covers [feature: Rate limit]
t.test(
  "frames over the rate limit are answered with rate_limited and the time to wait, and a client that keeps sending is closed with 4100",
  async (t) => {
    const slow = await startWorld(t, {
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "1",
      JINDOU_CLIENT_FRAME_BURST: "4",
      JINDOU_CLIENT_USER_RATE_FACTOR: "0",
    });
    const client = await slow.join(t, "alice"); // uses one frame of the burst
    const codes = await Promise.all(range(1, 12).map(() => codeOf(client.ping())));
    t.same(codes.slice(0, 3), ["ok", "ok", "ok"]);
    const refused = codes.filter((code) => code !== "ok");
    t.equal(refused[0], "rate_limited");
    t.ok(client.errors.every(({ retryAfterMs }) => retryAfterMs > 0));
    t.equal(await endingOf(client), "rate_limited 4100");
    const second = await slow.join(t, "bob");
    t.equal((await second.ping()).kind, "pong", "each client has its own limit");
  },
);

const limited = await startWorld(t, {
  ...TCP_LISTENER,
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "1",
  JINDOU_CLIENT_FRAME_BURST: "300",
  JINDOU_CLIENT_USER_RATE_FACTOR: "2",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "100",
});
const UIDS = range(1, 1000).map((i) => `nobody-${i}`);
/** Requests the presence of 1,000 users `times` times at once. Each request costs 65 frames. */
const requestPresence = (client: NativeClient, times: number) =>
  Promise.all(range(1, times).map(() => codeOf(client.presence(UIDS))));

// Covers [decisions: Rate]
t.test(
  "a request is charged to the rate limit for the work that it may cause, and the charge for rows that do not exist is refunded",
  async (t) => {
    const alice = await limited.join(t, "alice");
    t.same(await requestPresence(alice, 6), [...range(1, 5).map(() => "ok"), "rate_limited"]);
    t.ok(alice.errors.every(({ retryAfterMs }) => retryAfterMs > 1000));
    const bob = await limited.join(t, "bob");
    for (const _ of range(1, 8))
      t.equal(await codeOf(bob.history(person("x"), { limit: 500 })), "ok");
  },
);

// Covers [decisions: Rate]
t.test(
  "a user's connections share one rate limit, and a reconnect does not reset it",
  async (t) => {
    const first = await limited.join(t, "carol");
    const second = await limited.connect(t, "carol");
    const third = await limited.connect(t, "carol");
    await requestPresence(first, 5);
    t.same(new Set(await requestPresence(second, 4)), new Set(["ok"]));
    t.same(
      await requestPresence(third, 1),
      ["rate_limited"],
      "the limit of the user applies although the connection has not used its own",
    );
    for (const client of [first, second, third]) await client.close();
    await limited.offline("carol");
    const reconnecting = await open(limited, { uid: "carol", token: "token-carol" });
    t.equal(await codeOf(reconnecting.connect()), "rate_limited");
    t.equal(await endingOf(reconnecting), "rate_limited 4100");
    const dave = await limited.join(t, "dave");
    t.same(await requestPresence(dave, 1), ["ok"], "other users are served");
  },
);

// Covers [decisions: Rate]
t.test(
  "the bytes that a user stores over sockets are rate-limited, and unstored messages and messages from a backend are exempt",
  async (t) => {
    const erin = await joinNative(t, limited, "erin"); // native frames are as long as the stored bytes
    const text = "x".repeat(600);
    const send = (options = {}) => erin.send(person("bob"), text, options);
    const codes = range(1, 3).map(() => codeOf(send()));
    t.same(await Promise.all(codes), ["ok", "ok", "rate_limited"]);
    t.ok(erin.errors.every(({ retryAfterMs }) => retryAfterMs > 0));
    t.equal(await codeOf(send({ noPersist: true })), "ok");
    const response = await limited.send("erin", person("bob"), text);
    t.equal(response.status, 200);
  },
);

// Covers [decisions: Rate]
t.test(
  "a payload that is too large does not count as stored bytes, in any wire format",
  async (t) => {
    const tooLarge = "x".repeat(65_536);
    const target = person("bob");
    for (const [at, format] of FORMATS.entries()) {
      const client = await joinFormat(t, limited, format, `frank-${at}`);
      for (const _ of range(1, 3)) await refusalOf(client.send(target, tooLarge));
      await client.send(target, "hello");
      t.pass(`${format.name}: the user may still store messages`);
    }
    for (const form of [{ protocol: 1 }, {}]) {
      const uid = limited.name("grace");
      await limited.register(uid);
      const client = await openJsonRpc(t, { port: limited.clientPort });
      await client.request("connect", { uid, token: `token-${uid}`, deviceId: "d", ...form });
      const params = { channelId: target.id, channelType: target.type };
      const send = (content: string) =>
        client.request("send", { ...params, payload: { type: 1, content } });
      for (const _ of range(1, 3)) {
        const outcome = await send(tooLarge).catch((error) => error);
        t.not(outcome.reasonCode, 1, "the payload is refused");
        t.equal(outcome.messageSeq ?? 0, 0);
      }
      t.ok((await send("hello")).messageSeq > 0, "an object payload that fits is stored");
    }
  },
);

t.test(
  "an app that resumes channels, lists conversations and scrolls through history stays within the default rate limit",
  async (t) => {
    await world.register("reader");
    const groups = await Promise.all(range(1, 200).map(() => world.newGroup(["reader"])));
    const [archive = person("nobody")] = groups;
    await Promise.all(groups.map((channel) => world.send("reader", channel, "hi")));
    for (const _ of range(1, 10))
      await Promise.all(range(1, 30).map(() => world.send("reader", archive, "x".repeat(500))));
    const app = connect({
      url: `ws://127.0.0.1:${world.clientPort}`,
      uid: "reader",
      token: "token-reader",
      deviceFlag: 0,
      cursors: groups.map((channel) => ({ channel, lastSeq: 0, lastId: 0 })),
    });
    t.teardown(() => app.close());
    await app.ready();
    const first = await app.conversations();
    const second = await app.conversations({ cursor: first.cursor });
    t.equal(first.conversations.length + second.conversations.length, 200);
    for (let toSeq = 0, pages = 0; pages < 6; pages++) {
      const { messages } = await app.history(archive, { toSeq, limit: 50 });
      t.equal(messages.length, 50);
      toSeq = (messages.at(-1)?.messageSeq ?? 1) - 1;
    }
    await app.presence(UIDS);
    const metrics = await world.call("/metrics");
    t.notMatch(metrics.body, /code="rate_limited"/);
  },
);

// Covers [feature: In-flight bound]
t.test(
  "messages over client.maxInFlightSends are refused as overloaded, and the other messages are stored without a gap",
  async (t) => {
    const narrow = await startWorld(t, {
      JINDOU_CLIENT_MAX_IN_FLIGHT_SENDS: "2",
    });
    const client = await narrow.join(t, "alice");
    const codes = await Promise.all(
      range(1, 100).map(() => codeOf(client.send(person("bob"), "x"))),
    );
    const stored = codes.filter((code) => code === "ok").length;
    t.ok(codes.includes("overloaded"));
    t.ok(stored >= 2);
    const { headSeq } = await client.history(person("bob"));
    t.equal(headSeq, stored);
    t.equal(await codeOf(client.send(person("bob"), "x")), "ok");
  },
);

const SMALL_FRAMES = {
  JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "1024",
  JINDOU_CLIENT_MAX_FRAME_BYTES: "5120",
};

// Covers [feature: Frame size limit]
t.test(
  "a frame over client.maxFrameBytes is refused as too_large without being read, and a frame over twice that size ends the connection",
  async (t) => {
    const small = await startWorld(t, SMALL_FRAMES);
    const frame = (bytes: number) => Buffer.alloc(bytes, PING);
    const exact = await joinNative(t, small, "alice");
    t.match(exact.connack.limits, { maxFrameBytes: 5120 });
    exact.raw(frame(5120));
    await exact.closed;
    t.match(exact.errors, [{ code: "malformed_frame" }], "a frame of exactly that size is read");
    const client = await joinNative(t, small, "alice");
    const refused = client.send(person("bob"), Buffer.alloc(6000));
    await t.rejects(refused, { code: "too_large", message: /more than 5120 bytes/ });
    t.equal(await codeOf(client.send(person("bob"), "x")), "ok", "the connection stays open");
    client.raw(frame(10_241));
    t.match(await client.closed, { code: TEST_TRANSPORT === "portable" ? 1009 : 1006 });
  },
);

t.test(
  "a JSON-RPC request over client.maxFrameBytes is refused with its id, and a batch with the id null",
  async (t) => {
    const small = await startWorld(t, SMALL_FRAMES);
    await small.register("bob");
    const socket = new WebSocket(`ws://127.0.0.1:${small.clientPort}`);
    t.teardown(() => socket.terminate());
    const replies: string[] = [];
    socket.on("message", (data) => replies.push(String(data)));
    await once(socket, "open");
    const ask = async (text: string) => {
      const count = replies.length;
      socket.send(text);
      await eventually(() => replies.length > count);
      return JSON.parse(replies[count] ?? "");
    };
    const params = { protocol: 1, uid: "bob", token: "token-bob" };
    await ask(JSON.stringify({ id: "1", method: "connect", params }));
    const filler = "x".repeat(6000);
    const first = await ask(JSON.stringify({ id: "a", method: "ping", params: { filler } }));
    t.match(first, { id: "a", error: { message: /more than 5120 bytes/ } });
    const last = await ask(JSON.stringify({ method: "ping", params: { filler }, id: "b" }));
    t.match(last, { id: "b", error: { message: /more than 5120 bytes/ } });
    const middle = { method: "ping", params: { id: "no", filler }, id: "d", jsonrpc: "2.0" };
    t.match(await ask(JSON.stringify(middle)), { id: "d" });
    const batch = await ask(JSON.stringify([middle]));
    t.match(batch, { id: null, error: { message: /more than 5120 bytes/ } });
    t.match(await ask(JSON.stringify({ id: "c", method: "ping" })), { id: "c" });
  },
);

t.test(
  "a frame over client.maxFrameBytes before the login closes the connection with 1009 and no ERROR",
  async (t) => {
    const small = await startWorld(t, SMALL_FRAMES);
    const stranger = await open(small);
    stranger.raw(Buffer.alloc(5121, PING));
    t.match(await stranger.closed, { code: 1009 });
    t.same(stranger.errors, []);
  },
);

// Covers [feature: Client sockets]
t.test(
  "connections over client.maxConnections are refused with 503 until another connection closes",
  async (t) => {
    const small = await startWorld(t, { JINDOU_CLIENT_MAX_CONNECTIONS: "2" });
    const first = await small.join(t, "alice");
    await small.join(t, "bob");
    await small.register("carol");
    t.equal(await codeOf(small.connect(t, "carol")), "http_503");
    await first.close();
    await eventually(async () => (await codeOf(small.connect(t, "carol"))) === "ok");
  },
);

// Covers [feature: Client sockets]
t.test(
  "sessions over client.maxConnectionsPerUser are refused as overloaded and closed with 4102",
  async (t) => {
    const small = await startWorld(t, {
      JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER: "2",
    });
    await small.join(t, "alice");
    await small.join(t, "alice", { flag: 1 });
    const third = await open(small, { token: "token-alice" });
    t.equal(await codeOf(third.connect()), "overloaded");
    t.equal(await endingOf(third), "unavailable 4102");
    t.ok(await small.join(t, "bob"));
  },
);

// Covers [feature: Client sockets; decisions: Kick rule]
t.test(
  "a device can replace its own session, and a main device can kick another main device, even if the user has client.maxConnectionsPerUser sessions",
  async (t) => {
    const small = await startWorld(t, {
      JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER: "1",
    });
    const device = { deviceId: "phone" };
    const first = await small.join(t, "alice", device);
    const second = await small.connect(t, "alice", device);
    t.equal(await endingOf(first), "silent 4202");
    t.equal((await second.ping()).kind, "pong");
    const older = await small.join(t, "bob", { level: 1 });
    await small.connect(t, "bob");
    t.equal(await endingOf(older), "kicked 4200");
  },
);

// Covers [feature: Byte budget]
t.test("a client that does not read is disconnected and resumes without a gap", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const channel = await world.newGroup([alice, bob]);
  const client = await world.join(t, bob);
  client.pause();
  const users = { from: alice, to: bob };
  const sent = await sendUntilOffline(world, { ...users, channel });
  client.resume();
  const { code } = await client.closed;
  t.ok(code === 4001 || code === 1006, `the close code is ${code}`);
  const lastSeq = client.messages.length;
  const resume = [{ channel, lastSeq }];
  const resumed = await world.connect(t, bob, { resume });
  await untilReceived(resumed, sent - lastSeq);
  const read = [...client.messages, ...resumed.messages];
  t.same(
    read.map((message) => message.messageSeq),
    range(1, sent),
  );
});

// Covers [feature: Idle time-out]
t.test(
  "a client that neither sends frames nor answers WebSocket pings is closed after the idle time-out",
  async (t) => {
    const short = await startWorld(t, { JINDOU_CLIENT_IDLE_TIMEOUT_S: "8" });
    const answering = await short.join(t, "alice");
    t.equal(answering.connack.limits.idleTimeoutS, 8);
    const socket = new WebSocket(`ws://127.0.0.1:${short.clientPort}/`, {
      autoPong: false,
    });
    await once(socket, "open");
    const mute = new NativeClient(socket, {
      uid: "alice",
      token: "token-alice",
      timeoutMs: TIMEOUT_MS,
    });
    t.teardown(() => mute.kill());
    const startedMs = performance.now();
    await mute.connect();
    t.match(await mute.closed, { code: 1006 });
    // The library's timer ticks every 4 s and rounds down, so a time-out of 8 s takes 4 to 8 s.
    t.ok(performance.now() - startedMs > 3500, "the client is not closed early");
    t.equal((await answering.ping()).kind, "pong");
  },
);

// Covers [feature: STATE]
for (const [format, wireOf] of [
  ["the native protocol", nativeWire],
  ["JSON-RPC", jsonRpcWire],
] as const)
  t.test(`/connz shows whether a client that uses ${format} is in the foreground`, async (t) => {
    const uid = world.name("ann");
    const client = await world.join(t, uid, { wire: wireOf(uid) });
    const shown = async () => {
      for (;;) {
        // with several nodes, only one of them has the session
        const { connections } = (await world.call(`/connz?uid=${uid}`)).body;
        if (connections.length > 0) return connections[0].foreground;
      }
    };
    t.equal(await shown(), 1);
    await client.state(false);
    t.equal(await shown(), 0);
    const { sessionId } = client.connack;
    await client.state(true);
    t.equal(await shown(), 1);
    await client.state(false);
    client.kill();
    await world.offline(uid);
    await world.connect(t, uid, { session: sessionId });
    t.equal(await shown(), 1, "a session that continues another begins in the foreground");
  });
