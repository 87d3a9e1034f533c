// Connecting and reconnecting: how the client reacts to each way in which a connection can end.

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
import { acknowledge, connectTo, ScriptedServer, welcome } from "./scripted.ts";

t.test(
  "CONNECT contains the uid, the device and a token that is requested before each attempt",
  async (t) => {
    const server = new ScriptedServer();
    let tokens = 0;
    const client = connectTo(t, server, {
      token: () => `t${++tokens}`,
      deviceFlag: 2,
      deviceId: "laptop",
    });
    const statuses: Status[] = [client.status];
    client.on("status", (status) => statuses.push(status));
    const first = await server.received("connect");
    t.match(first, { uid: "me", token: "t1", flag: 2, deviceId: "laptop" });
    await client.ready();
    (await server.socket()).end(1006);
    const second = await server.received("connect", 0, 1);
    t.match(second, { token: "t2", deviceId: "laptop" });
    await client.ready();
    await client.close();
    t.same(statuses, ["connecting", "online", "offline", "connecting", "online", "closed"]);
  },
);

t.test("the client reconnects after every close code that is not from 4200 to 4299", async (t) => {
  for (const code of [4000, 4001, 4077, 4100, 4102, 4188, 1001, 1006, 1013]) {
    const server = new ScriptedServer();
    const client = connectTo(t, server);
    await client.ready();
    (await server.socket()).end(code);
    await server.received("connect", 0, 1);
    await client.ready();
    t.equal(client.status, "online", `after close code ${code}`);
    await client.close();
  }
});

t.test(
  "a close code from 4200 to 4299 closes the client permanently, with the reason",
  async (t) => {
    const reasons = [
      [4200, "kicked"],
      [4201, "auth_failed"],
      [4202, "replaced"],
      [4203, "token_changed"],
      [4204, "logged_out"],
      [4207, "banned"],
      [4205, "protocol_error"],
      [4299, "protocol_error"],
    ] as const;
    for (const [code, reason] of reasons) {
      const server = new ScriptedServer();
      const client = connectTo(t, server);
      const kickedEvents: unknown[] = [];
      client.on("kicked", (kicked) => kickedEvents.push([kicked.reason, kicked.code]));
      await client.ready();
      const unanswered = client.history(TEAM);
      (await server.socket()).end(code);
      await t.rejects(unanswered, { code: reason, retry: false });
      await t.rejects(client.ready(), { code: reason });
      await t.rejects(client.send(TEAM, "x"), { code: reason });
      t.same(kickedEvents, [[reason, code]]);
      t.equal(client.status, "closed");
      t.equal(server.sockets.length, 1);
    }
  },
);

t.test("a DISCONNECT frame closes the client even if no close frame follows", async (t) => {
  const server = new ScriptedServer();
  const client = connectTo(t, server);
  await client.ready();
  const socket = await server.socket();
  socket.push({ kind: "disconnect", reason: "kicked" });
  await server.until("the end", () => client.status === "closed");
  await t.rejects(client.ready(), { code: "kicked" });
  t.ok(socket.isDropped);
});

t.test(
  "if the server refuses CONNECT permanently, `ready` rejects with the close reason and the message of the refusal",
  async (t) => {
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
    const client = connectTo(t, server);
    const kicked = new Promise((resolve) => client.on("kicked", resolve));
    await t.rejects(client.ready(), { code: "auth_failed", message: "no such token" });
    t.match(await kicked, { reason: "auth_failed", code: 4201, message: "no such token" });
  },
);

t.test(
  "the first CONNECT names a random session id, and each later CONNECT names the session to continue",
  async (t) => {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind !== "connect") return;
      if (server.sockets.length === 1) return socket.end(1006); // as if the CONNACK were lost
      acknowledge(operation, socket, {
        sessionId: `s${server.sockets.length}`,
      });
      if (server.sockets.length === 3) socket.end(1006); // in the same turn as the CONNACK
    });
    const client = connectTo(t, server);
    await client.ready();
    (await server.socket(1)).end(1006);
    const names: string[] = [];
    for (const connection of [0, 1, 2, 3])
      names.push((await server.received("connect", 0, connection)).sessionName);
    t.match(names[0], /^[0-9a-f]{24}$/, "the client chose a random id");
    t.same(names.slice(1), [names[0], "s2", "s3"]);
    const second = connectTo(t, server);
    await second.ready();
    const next = server.sockets.at(-1)?.all("connect")[0];
    t.match(next?.sessionName, /^[0-9a-f]{24}$/);
    t.not(next?.sessionName, names[0], "another client names another session");
  },
);

t.test("a client that was kicked while it was offline closes permanently", async (t) => {
  let isKicked = false;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    if (!isKicked) return acknowledge(operation, socket);
    socket.push({ kind: "disconnect", reason: "kicked" });
    socket.end(4200);
  });
  const client = connectTo(t, server);
  const kicked = new Promise((resolve) => client.on("kicked", resolve));
  await client.ready();
  isKicked = true;
  (await server.socket()).end(1006);
  t.match(await kicked, { reason: "kicked", code: 4200 });
  await t.rejects(client.ready(), { code: "kicked" });
  t.equal(server.sockets.length, 2, "the client does not try again");
});

t.test(
  "a client whose token was replaced logs in again only if the app supplies a different token",
  async (t) => {
    for (const tokens of [
      ["t1", "t2", "t2"],
      ["t1", "t1"],
    ]) {
      const server = new ScriptedServer((operation, socket) => {
        if (operation.kind !== "connect") return;
        if (operation.sessionName !== "s") return acknowledge(operation, socket);
        socket.push({ kind: "disconnect", reason: "token_changed" });
        socket.end(4203);
      });
      const isNew = tokens.includes("t2");
      const client = connectTo(t, server, { token: () => tokens.shift() ?? "t1" });
      await client.ready();
      (await server.socket()).end(1006);
      await server.received("connect", 0, 1);
      if (!isNew) {
        await server.until("the end", () => client.status === "closed");
        await t.rejects(client.ready(), { code: "token_changed" });
        continue;
      }
      const login = await server.received("connect", 0, 2);
      t.match(login, { token: "t2", sessionName: /^[0-9a-f]{24}$/ });
      await client.ready();
    }
  },
);

t.test("a client whose first CONNACK was lost logs in again if its token changed", async (t) => {
  const tokens = ["t1", "t2", "t2"];
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    // as if the CONNACK of a registered session were lost
    if (server.sockets.length === 1) return socket.end(1006);
    if (operation.sessionName !== server.sockets[0]?.all("connect")[0]?.sessionName)
      return acknowledge(operation, socket);
    socket.push({ kind: "disconnect", reason: "token_changed" });
    socket.end(4203);
  });
  const client = connectTo(t, server, { token: () => tokens.shift() ?? "" });
  await client.ready();
  const login = await server.received("connect", 0, 2);
  t.match(login, { token: "t2", sessionName: /^[0-9a-f]{24}$/ });
  const sessions = server.sockets.map((socket) => socket.all("connect")[0]?.sessionName);
  t.equal(sessions[1], sessions[0], "the client first tries to continue the session");
  t.not(login.sessionName, sessions[0]);
});

t.test(
  "after a CONNECT with too many channels to resume was refused, the next CONNECT names fewer channels",
  async (t) => {
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
    const client = connectTo(t, server, { cursors, reconnect });
    await client.ready();
    t.same(counts, [40, 20, 10], "the client does not wait before the next attempt");
    const accepted = await server.received("connect", 0, 2);
    t.equal(accepted.resume[0]?.channel.id, "g39", "the most recently used channels are resumed");
  },
);

t.test("a draining node causes no error event, and the client reconnects at once", async (t) => {
  let tries = 0;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind !== "connect") return;
    tries += 1;
    if (tries === 1) socket.end(CLOSE_REASONS.draining.code);
    else acknowledge(operation, socket);
  });
  const reconnect = { minMs: 60_000, maxMs: 60_000 };
  const client = connectTo(t, server, { reconnect });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  t.equal(tries, 2, "the client does not wait before the next attempt");
  t.same(errors, []);
});

/** A socket to an address without a server. */
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

t.test(
  "a client whose CONNECT is dropped because of its size sends a smaller CONNECT",
  async (t) => {
    const counts: number[] = [];
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind !== "connect") return;
      counts.push(operation.resume.length);
      const limits = { maxFrameBytes: 1600 };
      if (operation.resume.length > 12) socket.end(1006);
      else acknowledge(operation, socket, { limits });
    });
    const client = connectTo(t, server, { cursors: CURSORS });
    const errors: string[] = [];
    client.on("error", ({ code }) => errors.push(code));
    await client.ready();
    const tries = counts.length;
    t.same(errors, Array(tries - 1).fill("connection_lost"));
    t.ok((counts[tries - 1] ?? 0) > 0, `the CONNECTs name these numbers of channels: ${counts}`);
    server.sockets.at(-1)?.end(1006);
    await server.received("connect", 0, tries);
    t.equal(counts[tries], 9, "the client uses the frame limit of CONNACK");
  },
);

t.test(
  "connection attempts that fail because there is no server do not reduce the number of channels to resume",
  async (t) => {
    const server = new ScriptedServer();
    let failures = 3;
    const webSocket = new Proxy(server.webSocket, {
      construct: (real, [url, protocols]) =>
        failures-- > 0 ? new DeadSocket() : new real(url, protocols),
    });
    const client = connectTo(t, server, { cursors: CURSORS, webSocket });
    await client.ready();
    t.equal((await server.received("connect")).resume.length, 40);
  },
);

t.test("the heartbeat continues when the clock is set back", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
  });
  const client = connectTo(t, server, { timeouts: { pingMs: 50, pongMs: 50 } });
  await client.ready();
  const { now } = Date;
  t.teardown(() => {
    Date.now = now;
  });
  Date.now = () => now() - 3_600_000;
  await server.received("ping");
  await server.received("connect", 0, 1);
  t.pass("the client detects the dead connection");
});

t.test(
  "a connected client sends a ping when the browser reports that the network is back",
  async (t) => {
    const page = globalThis as Partial<EventTarget>;
    const listeners = new Map<string, (event: object) => void>();
    page.addEventListener = (type, listener) => {
      listeners.set(type, listener as (event: object) => void); // the client passes only functions
    };
    page.removeEventListener = (type) => {
      listeners.delete(type);
    };
    t.teardown(() => {
      delete page.addEventListener;
      delete page.removeEventListener;
    });
    const server = new ScriptedServer();
    const client = connectTo(t, server);
    await client.ready();
    t.equal((await server.socket()).all("ping").length, 0);
    listeners.get("online")?.({ type: "online" });
    await server.received("ping");
    await client.close();
    t.equal(listeners.size, 0);
  },
);

t.test("a connection that does not answer a ping is dropped", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
  });
  connectTo(t, server, { timeouts: { pingMs: 20, pongMs: 20 } });
  await server.received("ping");
  await server.received("connect", 0, 1);
  t.ok((await server.socket(0)).isDropped);
});

t.test("a connection that answers pings stays open", async (t) => {
  const server = new ScriptedServer(welcome);
  const client = connectTo(t, server, { timeouts: { pingMs: 10, pongMs: 2000 } });
  await server.received("ping", 3);
  t.equal(server.sockets.length, 1);
  t.equal(client.status, "online");
});

t.test("a client whose CONNECT gets no reply connects again", async (t) => {
  const server = new ScriptedServer(() => undefined);
  connectTo(t, server, { timeouts: { connectMs: 20 } });
  await server.received("connect", 0, 1);
  t.pass("the client has connected again");
});

t.test("a token function that fails, hangs or returns a non-string is called again", async (t) => {
  const server = new ScriptedServer();
  const answers = [
    () => Promise.reject(new Error("backend down")),
    () => new Promise<string>(() => undefined),
    () => undefined as unknown as string, // an app in JavaScript
    async () => null as unknown as string,
    () => "token",
  ];
  const client = connectTo(t, server, {
    token: () => (answers.shift() ?? (() => "token"))(),
    timeouts: { connectMs: 30 },
  });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await client.ready();
  t.same(errors, Array(4).fill("token_failed"));
});

t.test(
  "unknown frames and MESSAGEs without a channel are ignored, and frames that cannot be decoded end the connection",
  async (t) => {
    const server = new ScriptedServer();
    const client = connectTo(t, server);
    await client.ready();
    const socket = await server.socket();
    socket.bytes(Uint8Array.of(0x92, 126, 0)); // the unknown operation [126, 0]
    socket.bytes(Uint8Array.of(0x93, 80, 0, 0xc0)); // a MESSAGE whose channel is nil
    await new Promise(setImmediate);
    await new Promise(setImmediate);
    t.equal(server.sockets.length, 1);
    const errors: string[] = [];
    client.on("error", ({ code }) => errors.push(code));
    socket.bytes(Uint8Array.of(0xc1));
    await server.received("connect", 0, 1);
    await client.ready();
    (await server.socket(1)).bytes("text");
    await server.received("connect", 0, 2);
    t.same(errors, ["malformed_frame", "malformed_frame"]);
  },
);

t.test(
  "`close` sends DISCONNECT, works before the client is online, and may be called twice",
  async (t) => {
    const server = new ScriptedServer();
    const online = connectTo(t, server);
    await online.ready();
    const waiting = online.send(TEAM, "never answered");
    const rejected = t.rejects(waiting, { code: "closed" });
    await Promise.all([online.close(), online.close()]);
    await server.received("disconnect");
    await rejected;
    await t.rejects(online.history(TEAM), { code: "closed" });
    const stream = online.stream({ channel: TEAM, clientMsgNo: "s" });
    await t.rejects(stream.finished, { code: "closed" });

    const early = connectTo(t, server);
    await early.close();
    await t.rejects(early.ready(), { code: "closed" });
    t.equal(early.status, "closed");

    const byHandler = connectTo(t, server);
    byHandler.on("status", () => void byHandler.close());
    await t.rejects(byHandler.ready(), { code: "closed" });
    t.equal(byHandler.status, "closed");
  },
);

t.test("an invalid address closes the client with an error event", async (t) => {
  const client = connect({ url: "ws://no such host:99999", uid: "a" });
  const errors: string[] = [];
  client.on("error", ({ code }) => errors.push(code));
  await t.rejects(client.ready(), { code: "bad_option", retry: false });
  t.equal(client.status, "closed");
  t.same(errors, ["bad_option"]);
});

t.test("timeouts that are `undefined` get their defaults", async (t) => {
  const server = new ScriptedServer();
  const timeouts = { connectMs: undefined, requestMs: undefined };
  const client = connectTo(t, server, { timeouts } as object);
  await client.ready();
  t.equal(client.status, "online");
});

t.test("`connect` throws a JindouError if an option is invalid", async (t) => {
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
