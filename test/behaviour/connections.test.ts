// A client connection's rules and limits on a real node: how it opens, what ends it and with which
// code, and what is refused while it lives.

import { once } from "node:events";
import type { Test } from "tap";
import { WebSocket } from "ws";
import { connect } from "../../src/client/index.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { openNative } from "../support/native-client.ts";
import { NativeClient } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { nativeWire } from "../support/wire.ts";
import {
  codeOf,
  eventually,
  farewell,
  PATIENCE_MS,
  person,
  range,
  receives,
  sendUntilOffline,
  startWorld,
  type World,
} from "./world.ts";

const world = await startWorld(t);

const PING = encodeOperation({ kind: "ping", ref: 1 });

/** A socket that has said nothing yet. */
/** For what is about native frames. */
const joinNative = (t: Test, to: World, uid: string) => to.join(t, uid, { wire: nativeWire(uid) });

const open = (to: World, options: object = {}) =>
  openNative(t, {
    port: to.clientPort,
    uid: "alice",
    timeoutMs: PATIENCE_MS,
    ...options,
  });

t.test(
  "a wrong credential is told unauthorized and closed with 4201 [issue: connect; decisions: Client authentication]",
  async (t) => {
    await world.register("alice", { token: "right" });
    const client = await open(world, { token: "wrong" });
    t.equal(await codeOf(client.connect()), "unauthorized");
    t.equal(await farewell(client), "auth_failed 4201");
    t.match(await world.status("alice"), { online: 0 });
  },
);

t.test(
  "another protocol version, or a first frame that is no connect, is a protocol error, 4205 [issue: connect]",
  async (t) => {
    const newer = await open(world);
    t.equal(await codeOf(newer.connect({ version: 2 })), "unsupported_version");
    t.equal(await farewell(newer), "protocol_error 4205");
    const hasty = await open(world);
    t.equal(await codeOf(hasty.ping()), "not_connected");
    t.equal(await farewell(hasty), "protocol_error 4205");
  },
);

t.test(
  "a second connect on a connection is refused, and the session goes on [issue: errors]",
  async (t) => {
    const client = await world.join(t, world.name("alice"));
    t.equal(await codeOf(client.connect()), "bad_request");
    t.equal((await client.ping()).kind, "pong");
  },
);

t.test(
  "a malformed frame gets an error and 4205; an unknown operation an error only; the node lives [issue: malformed frame]",
  async (t) => {
    const unknown = await joinNative(t, world, world.name("alice"));
    unknown.raw(Buffer.from([0x92, 60, 5])); // [60, 5]
    t.equal((await unknown.ping()).kind, "pong");
    t.match(unknown.errors, [{ ref: 5, code: "malformed_frame" }]);
    for (const frame of ["text", Buffer.from([0xc1]), Buffer.from([0x93, 6])]) {
      const client = await joinNative(t, world, world.name("bob"));
      client.raw(frame);
      t.equal(await farewell(client), "protocol_error 4205");
      t.match(client.errors, [{ code: "malformed_frame" }]);
    }
  },
);

t.test(
  "subprotocols: the native one, among others, or none; only others are refused with 400 [issue: Client sockets]",
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

t.test("ping is answered with the server's time [issue: ping]", async (t) => {
  const client = await world.join(t, world.name("alice"));
  const { serverTimeMs } = await client.ping();
  t.ok(Math.abs(serverTimeMs - Date.now()) < 60_000);
});

t.test("recvack has no answer and ends nothing [issue: recvack]", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const client = await world.join(t, bob);
  await world.send(alice, person(bob), "x");
  client.recvack(person(alice), await client.nextMessage());
  t.same(await receives(client, 1), ["x"]);
  t.same(client.errors, []);
});

t.test(
  "a socket without a connect frame is closed with 4101 at the deadline; a session is not [issue: Authentication deadline]",
  async (t) => {
    const hasty = await startWorld(t, { JINDOU_CLIENT_AUTH_TIMEOUT_MS: "300" });
    await hasty.register("alice");
    const [first, silent, unknown] = await Promise.all([
      hasty.connect(t, "alice"),
      open(hasty),
      open(hasty, { subprotocols: [] }),
    ]);
    t.equal(await farewell(silent), "auth_timeout 4101");
    t.equal(await farewell(unknown), "silent 4101", "no protocol is known");
    t.equal((await first.ping()).kind, "pong");
  },
);

t.test(
  "origins: exact ones and hosts under a wildcard pass, as does who sends none; others get 403 [issue: Allowed origins]",
  async (t) => {
    const strict = await startWorld(t, {
      JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example.com,*.example.org",
    });
    await strict.register("alice");
    const from = (headers: { readonly origin?: string }) =>
      codeOf(strict.connect(t, "alice", { headers }));
    for (const origin of ["https://chat.example.com", "http://a.example.org"])
      t.equal(await from({ origin }), "ok", origin);
    t.equal(await from({}), "ok", "no browser");
    for (const origin of [
      "http://chat.example.com",
      "https://evil.com",
      "https://example.org.evil.com",
    ])
      t.equal(await from({ origin }), "http_403", origin);
    const origin = { origin: "https://anywhere.example" };
    await world.register("carol");
    const free = world.connect(t, "carol", { headers: origin });
    t.equal(await codeOf(free), "ok", "any by default");
  },
);

t.test(
  "frames beyond the rate get rate_limited with the time to wait; who goes on is closed with 4100 [issue: Rate limit]",
  async (t) => {
    const slow = await startWorld(t, {
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "1",
      JINDOU_CLIENT_FRAME_BURST: "4",
      JINDOU_CLIENT_USER_RATE_FACTOR: "0",
    });
    const client = await slow.join(t, "alice"); // takes one of the four
    const codes = await Promise.all(range(1, 12).map(() => codeOf(client.ping())));
    t.same(codes.slice(0, 3), ["ok", "ok", "ok"]);
    const refused = codes.filter((code) => code !== "ok");
    t.equal(refused[0], "rate_limited");
    t.ok(client.errors.every(({ retryAfterMs }) => retryAfterMs > 0));
    t.equal(await farewell(client), "rate_limited 4100");
    const other = await slow.join(t, "bob");
    t.equal((await other.ping()).kind, "pong", "each has its own");
  },
);

const thrifty = await startWorld(t, {
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "1",
  JINDOU_CLIENT_FRAME_BURST: "300",
  JINDOU_CLIENT_USER_RATE_FACTOR: "2",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "100",
});
const UIDS = range(1, 1000).map((i) => `nobody-${i}`);
/** Asks for the presence of 1,000 users so many times at once: each is the work of 65 frames. */
const ask = (client: NativeClient, times: number) =>
  Promise.all(range(1, times).map(() => codeOf(client.presence(UIDS))));

t.test(
  "frames count by the work they ask for; what was not there to read is given back [decisions: Rate]",
  async (t) => {
    const alice = await thrifty.join(t, "alice");
    t.same(await ask(alice, 6), [...range(1, 5).map(() => "ok"), "rate_limited"]);
    t.ok(alice.errors.every(({ retryAfterMs }) => retryAfterMs > 1000));
    const bob = await thrifty.join(t, "bob");
    for (const _ of range(1, 8))
      t.equal(await codeOf(bob.history(person("x"), { limit: 500 })), "ok");
  },
);

t.test(
  "a user's connections share a rate, and a reconnect refills nothing [decisions: Rate]",
  async (t) => {
    const first = await thrifty.join(t, "carol");
    const second = await thrifty.connect(t, "carol");
    const third = await thrifty.connect(t, "carol");
    await ask(first, 5);
    t.same(new Set(await ask(second, 4)), new Set(["ok"]));
    t.same(await ask(third, 1), ["rate_limited"], "its own bucket is full");
    for (const one of [first, second, third]) await one.close();
    await thrifty.offline("carol");
    const again = await open(thrifty, { uid: "carol", token: "token-carol" });
    t.equal(await codeOf(again.connect()), "rate_limited");
    t.equal(await farewell(again), "rate_limited 4100");
    const dave = await thrifty.join(t, "dave");
    t.same(await ask(dave, 1), ["ok"], "other users are served");
  },
);

t.test(
  "a user stores so many bytes over sockets; what is not stored and what a backend sends does not count [decisions: Rate]",
  async (t) => {
    const erin = await joinNative(t, thrifty, "erin"); // whose frames are as long as the bytes
    const text = "x".repeat(600);
    const send = (options = {}) => erin.send(person("bob"), text, options);
    const codes = range(1, 3).map(() => codeOf(send()));
    t.same(await Promise.all(codes), ["ok", "ok", "rate_limited"]);
    t.ok(erin.errors.every(({ retryAfterMs }) => retryAfterMs > 0));
    t.equal(await codeOf(send({ noPersist: true })), "ok");
    const answer = await thrifty.send("erin", person("bob"), text);
    t.equal(answer.status, 200);
  },
);

t.test(
  "an app that resumes, lists and scrolls is never too fast by default [issue 8: point 8]",
  async (t) => {
    await world.register("reader");
    const groups = await Promise.all(range(1, 200).map(() => world.newGroup(["reader"])));
    const [archive = person("nobody")] = groups;
    await Promise.all(groups.map((one) => world.send("reader", one, "hi")));
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
    const listed = [0, 100].map((offset) => app.conversations({ offset }));
    const pages = await Promise.all(listed);
    t.equal(pages.flatMap((page) => page.conversations).length, 200);
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

t.test(
  "more sends in flight than the bound are refused as overloaded; the others are stored without a gap [issue: In-flight bound]",
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

t.test(
  "a frame over the limit ends the connection; one of the limit does not [issue: Frame size limit]",
  async (t) => {
    const small = await startWorld(t, {
      JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "1024",
      JINDOU_CLIENT_MAX_FRAME_BYTES: "5120",
    });
    const client = await joinNative(t, small, "alice");
    t.match(client.connack.limits, { maxFrameBytes: 5120 });
    const frame = (bytes: number) => Buffer.alloc(bytes, PING);
    client.raw(frame(5120));
    await client.closed.catch(() => undefined);
    t.equal(client.errors.length, 1, "it was read, and was nonsense");
    const second = await joinNative(t, small, "alice");
    second.raw(frame(5121));
    t.match(await second.closed, { code: 1006 });
    t.equal(second.errors.length, 0, "it was not read at all");
  },
);

t.test(
  "connections beyond the node's bound get 503, and there is room again when one goes [issue: Client sockets]",
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

t.test(
  "sessions of one user beyond the bound are refused as overloaded, 4102: come back later [issue: Client sockets]",
  async (t) => {
    const small = await startWorld(t, {
      JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER: "2",
    });
    await small.join(t, "alice");
    await small.join(t, "alice", { flag: 1 });
    const third = await open(small, { token: "token-alice" });
    t.equal(await codeOf(third.connect()), "overloaded");
    t.equal(await farewell(third), "unavailable 4102");
    t.ok(await small.join(t, "bob"));
  },
);

t.test(
  "at the bound of a user's sessions a device still replaces its own, and a main one still kicks [issue: Client sockets; decisions: Kick rule]",
  async (t) => {
    const small = await startWorld(t, {
      JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER: "1",
    });
    const device = { deviceId: "phone" };
    const first = await small.join(t, "alice", device);
    const second = await small.connect(t, "alice", device);
    t.equal(await farewell(first), "silent 4202");
    t.equal((await second.ping()).kind, "pong");
    const old = await small.join(t, "bob", { level: 1 });
    await small.connect(t, "bob");
    t.equal(await farewell(old), "kicked 4200");
  },
);

t.test(
  "a client that does not read is cut with 4001 and resumes without a gap [issue: Byte budget]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const client = await world.join(t, bob);
    client.pause();
    const users = { from: alice, to: bob };
    const sent = await sendUntilOffline(world, { ...users, channel });
    client.resume();
    const { code } = await client.closed;
    t.ok(code === 4001 || code === 1006, `closed with ${code}`);
    const lastSeq = client.messages.length;
    const resume = [{ channel, lastSeq }];
    const again = await world.connect(t, bob, { resume });
    await receives(again, sent - lastSeq);
    const read = [...client.messages, ...again.messages];
    t.same(
      read.map((message) => message.messageSeq),
      range(1, sent),
    );
  },
);

t.test(
  "a peer that neither sends nor answers pings is closed after the idle time-out, here the smallest; who answers stays [issue: Idle time-out]",
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
      timeoutMs: PATIENCE_MS,
    });
    t.teardown(() => mute.kill());
    const startedMs = performance.now();
    await mute.connect();
    t.match(await mute.closed, { code: 1006 });
    // The native clock ticks every 4 s and rounds down: 8 s are 4 to 8.
    t.ok(performance.now() - startedMs > 3500, "not at once");
    t.equal((await answering.ping()).kind, "pong");
  },
);
