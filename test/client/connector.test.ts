// Connecting, and connecting again: what each way to lose a connection leads to.

import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import {
  connect,
  group,
  JindouError,
  type SocketLike,
  type Status,
} from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { TEAM } from "./messages.ts";
import { acknowledge, play, ScriptedServer, welcome } from "./scripted.ts";

t.test("it says who it is, and asks for a token before each connect", async (t) => {
  const server = new ScriptedServer();
  let tokens = 0;
  const client = play(t, server, {
    token: () => `t${++tokens}`,
    deviceFlag: 2,
    deviceId: "laptop",
  });
  const statuses: Status[] = [client.status];
  client.on("status", (status) => statuses.push(status));
  const first = await server.heard("connect");
  t.match(first, { uid: "me", token: "t1", flag: 2, deviceId: "laptop" });
  await client.ready();
  (await server.socket()).end(1006);
  const second = await server.heard("connect", 0, 1);
  t.match(second, { token: "t2", deviceId: "laptop" });
  await client.ready();
  await client.close();
  t.same(statuses, ["connecting", "online", "offline", "connecting", "online", "closed"]);
});

t.test("codes that ask to come back are followed, whatever else is told", async (t) => {
  for (const code of [4000, 4001, 4077, 4100, 4102, 4188, 1001, 1006, 1013]) {
    const server = new ScriptedServer();
    const client = play(t, server);
    await client.ready();
    (await server.socket()).end(code);
    await server.heard("connect", 0, 1);
    await client.ready();
    t.equal(client.status, "online", `${code}`);
    await client.close();
  }
});

t.test("codes from 4200 to 4299 end the client for good, with the reason", async (t) => {
  const reasons = [
    [4200, "kicked"],
    [4201, "auth_failed"],
    [4202, "replaced"],
    [4203, "token_changed"],
    [4204, "logged_out"],
    [4205, "protocol_error"],
    [4299, "protocol_error"],
  ] as const;
  for (const [code, reason] of reasons) {
    const server = new ScriptedServer();
    const client = play(t, server);
    const told: unknown[] = [];
    client.on("kicked", (kicked) => told.push([kicked.reason, kicked.code]));
    await client.ready();
    const unanswered = client.history(TEAM);
    (await server.socket()).end(code);
    await t.rejects(unanswered, { code: reason, retry: false });
    await t.rejects(client.ready(), { code: reason });
    await t.rejects(client.send(TEAM, "x"), { code: reason });
    t.same(told, [[reason, code]]);
    t.equal(client.status, "closed");
    t.equal(server.sockets.length, 1);
  }
});

t.test("a disconnect frame counts even when its close frame is lost", async (t) => {
  const server = new ScriptedServer();
  const client = play(t, server);
  await client.ready();
  const socket = await server.socket();
  socket.push({ kind: "disconnect", reason: "kicked" });
  await server.until("the end", () => client.status === "closed");
  await t.rejects(client.ready(), { code: "kicked" });
  t.ok(socket.isDropped);
});

t.test("a refused connect tells why, and the close code decides", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    socket.reply(operation, {
      kind: "error",
      code: "unauthorized",
      message: "no such token",
      retryAfterMs: 0,
    });
    socket.end(4201);
  });
  const client = play(t, server);
  const kicked = new Promise((resolve) => client.on("kicked", resolve));
  await t.rejects(client.ready(), { code: "unauthorized" });
  t.match(await kicked, { reason: "auth_failed", code: 4201 });
});

t.test("it names the session it continues, from the first try on", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    if (server.sockets.length === 1) return socket.end(1006); // the CONNACK is lost
    acknowledge(operation, socket, {
      sessionId: `s${server.sockets.length}`,
    });
    if (server.sockets.length === 3) socket.end(1006); // in the same turn
  });
  const client = play(t, server);
  await client.ready();
  (await server.socket(1)).end(1006);
  const names: string[] = [];
  for (const at of [0, 1, 2, 3]) names.push((await server.heard("connect", 0, at)).session);
  t.match(names[0], /^[0-9a-f]{24}$/, "a name of its own");
  t.same(names.slice(1), [names[0], "s2", "s3"]);
  const other = play(t, server);
  await other.ready();
  const next = server.sockets.at(-1)?.all("connect")[0];
  t.match(next?.session, /^[0-9a-f]{24}$/);
  t.not(next?.session, names[0], "another client is another login");
});

t.test("a session that cannot be continued ends the client", async (t) => {
  let isKicked = false;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    if (!isKicked) return acknowledge(operation, socket);
    socket.push({ kind: "disconnect", reason: "kicked" });
    socket.end(4200);
  });
  const client = play(t, server);
  const kicked = new Promise((resolve) => client.on("kicked", resolve));
  await client.ready();
  isKicked = true;
  (await server.socket()).end(1006);
  t.match(await kicked, { reason: "kicked", code: 4200 });
  await t.rejects(client.ready(), { code: "kicked" });
  t.equal(server.sockets.length, 2, "it does not try again");
});

t.test(
  "a session that ended with its token is followed by a login where the app gives another token",
  async (t) => {
    for (const tokens of [
      ["t1", "t2", "t2"],
      ["t1", "t1"],
    ]) {
      const server = new ScriptedServer((operation, socket) => {
        if (operation.kind !== "connect") return;
        if (operation.session !== "s") return acknowledge(operation, socket);
        socket.push({ kind: "disconnect", reason: "token_changed" });
        socket.end(4203);
      });
      const isNew = tokens.includes("t2");
      const client = play(t, server, { token: () => tokens.shift() ?? "" });
      await client.ready();
      (await server.socket()).end(1006);
      await server.heard("connect", 0, 1);
      if (!isNew) {
        await server.until("the end", () => client.status === "closed");
        await t.rejects(client.ready(), { code: "token_changed" });
        continue;
      }
      const login = await server.heard("connect", 0, 2);
      t.match(login, { token: "t2", session: /^[0-9a-f]{24}$/ });
      await client.ready();
    }
  },
);

t.test("a new token is used for a login also where the first CONNACK was lost", async (t) => {
  const tokens = ["t1", "t2", "t2"];
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    if (server.sockets.length === 1) return socket.end(1006); // it is entered
    if (operation.session !== server.sockets[0]?.all("connect")[0]?.session)
      return acknowledge(operation, socket);
    socket.push({ kind: "disconnect", reason: "token_changed" });
    socket.end(4203);
  });
  const client = play(t, server, { token: () => tokens.shift() ?? "" });
  await client.ready();
  const login = await server.heard("connect", 0, 2);
  t.match(login, { token: "t2", session: /^[0-9a-f]{24}$/ });
  const names = server.sockets.map((one) => one.all("connect")[0]?.session);
  t.equal(names[1], names[0], "the lost one was continued first");
  t.not(login.session, names[0]);
});

t.test("a server that takes fewer channels is asked to resume fewer", async (t) => {
  const counts: number[] = [];
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    counts.push(operation.resume.length);
    if (operation.resume.length <= 10) return acknowledge(operation, socket);
    socket.reply(operation, {
      kind: "error",
      code: "too_large",
      message: "",
      retryAfterMs: 0,
    });
    socket.end(4205);
  });
  const cursors = Array.from({ length: 40 }, (_, n) => ({
    channel: group(`g${n}`),
    lastSeq: n,
  }));
  const reconnect = { minMs: 60_000, maxMs: 60_000 };
  const client = play(t, server, { cursors, reconnect });
  await client.ready();
  t.same(counts, [40, 20, 10], "without a pause");
  const connects = await server.heard("connect", 0, 2);
  t.equal(connects.resume[0]?.channel.id, "g39", "the newest ones");
});

t.test("a node that is going away is no error: the next try comes at once", async (t) => {
  let tries = 0;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    tries += 1;
    if (tries === 1) socket.end(CLOSE_REASONS.draining.code);
    else acknowledge(operation, socket);
  });
  const reconnect = { minMs: 60_000, maxMs: 60_000 };
  const client = play(t, server, { reconnect });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  t.equal(tries, 2, "without a pause");
  t.same(errors, []);
});

/** To an address where nobody listens. */
class DeadSocket implements SocketLike {
  binaryType = "";
  onopen: SocketLike["onopen"] = null;
  onmessage: SocketLike["onmessage"] = null;
  onclose: SocketLike["onclose"] = null;
  onerror: SocketLike["onerror"] = null;

  constructor() {
    setImmediate(() => this.onclose?.({ code: 1006 }));
  }

  send(): void {}

  close(): void {}
}

const CURSORS = Array.from({ length: 40 }, (_, n) => ({
  channel: group(`g${n}`.padEnd(100, "x")),
  lastSeq: n,
}));

t.test("a server that drops the connect for its size is sent a smaller one", async (t) => {
  const counts: number[] = [];
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    counts.push(operation.resume.length);
    const limits = { maxFrameBytes: 1600 };
    if (operation.resume.length > 12) socket.end(1006);
    else acknowledge(operation, socket, { limits });
  });
  const client = play(t, server, { cursors: CURSORS });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  const tries = counts.length;
  t.same(errors, Array(tries - 1).fill("connection_lost"));
  t.ok((counts[tries - 1] ?? 0) > 0, `${counts}`);
  server.sockets.at(-1)?.end(1006);
  await server.heard("connect", 0, tries);
  t.equal(counts[tries], 9, "it knows now what the server takes");
});

t.test("a server that is not there is named all channels when it is back", async (t) => {
  const server = new ScriptedServer();
  let failures = 3;
  const webSocket = new Proxy(server.webSocket, {
    construct: (real, [url, protocols]) =>
      failures-- > 0 ? new DeadSocket() : new real(url, protocols),
  });
  const client = play(t, server, { cursors: CURSORS, webSocket });
  await client.ready();
  t.equal((await server.heard("connect")).resume.length, 40);
});

t.test("setting the clock back stops no heartbeat", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
  });
  const client = play(t, server, { timeouts: { pingMs: 50, pongMs: 50 } });
  await client.ready();
  const { now } = Date;
  t.teardown(() => {
    Date.now = now;
  });
  Date.now = () => now() - 3_600_000;
  await server.heard("ping");
  await server.heard("connect", 0, 1);
  t.pass("a dead connection is noticed");
});

t.test("when the network is back, what is connected is asked for a sign of life", async (t) => {
  const page = globalThis as Partial<EventTarget>;
  const listeners = new Map<string, () => void>();
  page.addEventListener = (type, listener) => {
    listeners.set(type, listener as () => void); // the client gives no other
  };
  page.removeEventListener = (type) => {
    listeners.delete(type);
  };
  t.teardown(() => {
    delete page.addEventListener;
    delete page.removeEventListener;
  });
  const server = new ScriptedServer();
  const client = play(t, server);
  await client.ready();
  t.equal((await server.socket()).all("ping").length, 0);
  listeners.get("online")?.();
  await server.heard("ping");
  await client.close();
  t.equal(listeners.size, 0);
});

t.test("a connection that gives no sign of life is given up", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
  });
  play(t, server, { timeouts: { pingMs: 20, pongMs: 20 } });
  await server.heard("ping");
  await server.heard("connect", 0, 1);
  t.ok((await server.socket(0)).isDropped);
});

t.test("a connection that answers pings is kept", async (t) => {
  const server = new ScriptedServer(welcome);
  const client = play(t, server, { timeouts: { pingMs: 10, pongMs: 2000 } });
  await server.heard("ping", 3);
  t.equal(server.sockets.length, 1);
  t.equal(client.status, "online");
});

t.test("a server that says nothing to the connect is tried again", async (t) => {
  const server = new ScriptedServer(() => undefined);
  play(t, server, { timeouts: { connectMs: 20 } });
  await server.heard("connect", 0, 1);
  t.pass("a second time");
});

t.test("a token that cannot be had is asked for again", async (t) => {
  const server = new ScriptedServer();
  const answers = [
    () => Promise.reject(new Error("backend down")),
    () => new Promise<string>(() => undefined),
    () => undefined as unknown as string, // an app without types
    async () => null as unknown as string,
    () => "token",
  ];
  const client = play(t, server, {
    token: () => (answers.shift() ?? (() => "token"))(),
    timeouts: { connectMs: 30 },
  });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  t.same(errors, Array(4).fill("token_failed"));
});

t.test(
  "frames it does not know are ignored, frames it cannot read end the connection",
  async (t) => {
    const server = new ScriptedServer();
    const client = play(t, server);
    await client.ready();
    const socket = await server.socket();
    socket.bytes(Uint8Array.of(0x92, 126, 0)); // [126, 0]
    socket.bytes(Uint8Array.of(0x93, 80, 0, 0xc0)); // a MESSAGE with nil for its channel
    await new Promise(setImmediate);
    await new Promise(setImmediate);
    t.equal(server.sockets.length, 1);
    const errors: string[] = [];
    client.on("error", ({ code }) => errors.push(code));
    socket.bytes(Uint8Array.of(0xc1));
    await server.heard("connect", 0, 1);
    await client.ready();
    (await server.socket(1)).bytes("text");
    await server.heard("connect", 0, 2);
    t.same(errors, ["malformed_frame", "malformed_frame"]);
  },
);

t.test("closing says goodbye, at any moment, twice without harm", async (t) => {
  const server = new ScriptedServer();
  const online = play(t, server);
  await online.ready();
  const waiting = online.send(TEAM, "never answered");
  const rejected = t.rejects(waiting, { code: "closed" });
  await Promise.all([online.close(), online.close()]);
  await server.heard("disconnect");
  await rejected;
  await t.rejects(online.history(TEAM), { code: "closed" });
  await t.rejects(online.streamOf(TEAM, "s"), { code: "closed" });

  const early = play(t, server);
  await early.close();
  await t.rejects(early.ready(), { code: "closed" });
  t.equal(early.status, "closed");

  const byHandler = play(t, server);
  byHandler.on("status", () => void byHandler.close());
  await t.rejects(byHandler.ready(), { code: "closed" });
  t.equal(byHandler.status, "closed");
});

t.test("an address that can never be had ends the client, and it says so", async (t) => {
  const client = connect({ url: "ws://no such host:99999", uid: "a" });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await t.rejects(client.ready(), { code: "bad_option", retry: false });
  t.equal(client.status, "closed");
  t.same(errors, ["bad_option"]);
});

t.test("options that are undefined are as if left out", async (t) => {
  const server = new ScriptedServer();
  const timeouts = { connectMs: undefined, requestMs: undefined };
  const client = play(t, server, { timeouts } as object);
  await client.ready();
  t.equal(client.status, "online");
});

t.test("options are checked at once", async (t) => {
  const url = "wss://host";
  const wrong = [
    { url: "host", uid: "a" },
    { url, uid: "" },
    { url, uid: "a#b" },
    { url, uid: "a", deviceId: "" },
    { url, uid: "a", maxQueued: 0 },
    { url, uid: "a", maxQueued: 1.5 },
    { url, uid: "a", deviceFlag: 3 as 2 },
    { url, uid: "a", reconnect: { minMs: 10, maxMs: 5 } },
    { url, uid: "a", reconnect: { maxMs: Number.POSITIVE_INFINITY } },
    { url, uid: "a", timeouts: { requestMs: Number.POSITIVE_INFINITY } },
    { url, uid: "a", timeouts: { connectMs: Number.NaN } },
    { url, uid: "a", timeouts: { sendMs: -1 } },
    { url, uid: "a", timeouts: { pingMs: 2 ** 31 } },
    { url, uid: "a", cursors: [{ channel: TEAM, lastSeq: -1 }] },
    { url, uid: "a", cursors: [{ channel: TEAM, lastSeq: 0.5 }] },
    { url, uid: "a", cursors: [{ channel: group("a#b"), lastSeq: 1 }] },
  ];
  for (const options of wrong)
    t.throws(() => connect(options), JindouError, JSON.stringify(options));
});
