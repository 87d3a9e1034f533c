// Tests that no user is slowed down by the work of another user [decisions: Limits that hold under
// attack]. A user sends requests that cost the node more than their size shows, and is refused when
// the user's budget is used up. Users who behave like people are never refused. The bounds depend
// on the elapsed time, so they hold on any machine.

import { once } from "node:events";
import t, { type Test } from "tap";
import { WebSocket } from "ws";
import { GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import { type Settings, spawnBroker, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { NativeClientError } from "../support/native-session.ts";
import { startRedis } from "../support/redis.ts";
import { signedPath } from "../support/signed-path.ts";
import { connectWkproto } from "../support/wkproto-client.ts";
import { connectFrame } from "./attacker.ts";

t.setTimeout(180_000);

const OPEN = { JINDOU_AUTH_CLIENTS: "none" };
const range = (length: number) => Array.from({ length }, (_, i) => i);

/** Default work limits of one connection. */
const RATE = 500;
const BURST = 1000;

async function startNode(t: Test, settings: Settings = {}) {
  const broker = await spawnBroker(t, { ...OPEN, ...settings });
  const connect = (uid: string) => connectNative(t, { port: broker.clientPort, uid });
  return { broker, connect };
}

/** Resolves with the number of calls that were not refused with `rate_limited`. */
async function acceptedOf(calls: readonly Promise<unknown>[]): Promise<number> {
  const outcomes = await Promise.allSettled(calls);
  for (const outcome of outcomes)
    if (outcome.status === "rejected" && !isRateLimited(outcome.reason)) throw outcome.reason;
  return outcomes.filter(({ status }) => status === "fulfilled").length;
}

function isRateLimited(error: unknown): boolean {
  return error instanceof NativeClientError && error.code === "rate_limited";
}

/**
 * Returns the number of calls of this cost that a budget pays for since `sinceMs`. The last call
 * may leave a debt.
 */
function affordable(cost: number, sinceMs: number, budget = { rate: RATE, burst: BURST }): number {
  const tokens = budget.burst + (budget.rate * (performance.now() - sinceMs)) / 1000;
  return Math.ceil(tokens / cost);
}

t.test(
  "a user who watches different users with each request is charged for each new subscription in Redis",
  async (t) => {
    const WATCHED = 200;
    const redis = await startRedis(t);
    const { connect } = await startNode(t, { JINDOU_REDIS_URL: redis.url });
    const watched = (from: number, count = WATCHED) => range(count).map((i) => `user-${from + i}`);

    const person = await connect("alice");
    const growing = range(40).map((i) => person.watch(watched(0, WATCHED - 40 + i)));
    t.equal(await acceptedOf(growing), 40, "a client whose list changes by one user is served");

    const startMs = performance.now();
    const attacker = await connect("eve");
    const attack = range(20).map((i) => attacker.watch(watched(1000 + WATCHED * i)));
    const accepted = await acceptedOf(attack);
    const bound = affordable(WATCHED, startMs);
    t.ok(accepted <= bound, `${accepted} of 20 requests are served, at most ${bound}`);
    const topics = await redis.client().call("PUBSUB", "SHARDCHANNELS");
    const bystanders = 300; // topics of alice's request, of the node and of the sessions
    t.ok(
      (topics as readonly unknown[]).length <= accepted * WATCHED + bystanders,
      "a refused request subscribes to nothing",
    );
  },
);

t.test(
  "a viewer's requests to /stream are charged to the user like frames, and are refused with 429 and Retry-After if they exceed the budget",
  async (t) => {
    const TEXT = 60_000;
    const REQUESTS = 100;
    const budget = { rate: 20, burst: 200 }; // a user's budget is twice that of a connection
    const { broker } = await startNode(t, {
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "10",
      JINDOU_CLIENT_FRAME_BURST: "100",
    });
    const team = { channel_id: "team", channel_type: 2 };
    await broker.call("/channel", { ...team, subscribers: ["alice", "eve"] });
    const post = (type: string, data: string) =>
      broker.call("/event", { ...team, client_msg_no: "s1", event: { type, data } });
    await post("___TextMessageStart", "");
    const text = await post("___TextMessageContent", "x".repeat(TEXT));
    t.equal(text.status, 200, "the stream has text");
    const read = async (port: number, uid: string, kind: "GET" | "HEAD" | "follow" = "GET") => {
      const query = uid === "" ? "" : `?uid=${uid}&token=`;
      const abort = new AbortController();
      const { status, headers, body } = await fetch(
        `http://127.0.0.1:${port}/stream/2/team/s1${query}`,
        {
          method: kind === "HEAD" ? "HEAD" : "GET",
          headers: { accept: kind === "follow" ? "text/event-stream" : "*/*" },
          signal: abort.signal,
        },
      );
      await (kind === "follow" ? undefined : new Response(body).text());
      abort.abort();
      return { status, retryAfterS: Number(headers.get("retry-after")) };
    };
    const { clientPort, apiPort } = broker;

    const person = await Promise.all(range(4).map(() => read(clientPort, "alice")));
    t.same(
      person.map(({ status }) => status),
      [200, 200, 200, 200],
      "a few reads are served",
    );

    const startMs = performance.now();
    const cost = TEXT / 8192;
    const kinds = ["GET", "HEAD", "follow"] as const;
    const attack = await Promise.all(
      range(REQUESTS).map((i) => read(i % 2 === 0 ? clientPort : apiPort, "eve", kinds[i % 3])),
    );
    const served = attack.filter(({ status }) => status === 200).length;
    const bound = affordable(cost, startMs, budget);
    t.ok(served >= 1 && served <= bound, `${served} of ${REQUESTS} served, at most ${bound}`);
    for (const { status, retryAfterS } of attack)
      if (status !== 200 && (status !== 429 || !(retryAfterS >= 1)))
        t.fail(`a request was refused with ${status}, Retry-After ${retryAfterS}`);
    t.equal((await read(clientPort, "alice")).status, 200, "another user is served");
    t.equal((await read(apiPort, "")).status, 200, "a backend's requests do not count");
  },
);

t.test(
  "the bearer of a signed URL has the rate limit of a user, and is refused with 429 and Retry-After above it",
  async (t) => {
    const BYTES = 60_000;
    const REQUESTS = 100;
    const budget = { rate: 20, burst: 200 }; // a user's budget is twice that of a connection
    const { broker } = await startNode(t, {
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "10",
      JINDOU_CLIENT_FRAME_BURST: "100",
    });
    const { clientPort, apiPort } = broker;
    const path = "/v1/stream/answers/1";
    const call = async (target: string, method = "GET", body?: string) => {
      const abort = new AbortController();
      const reply = await fetch(`http://127.0.0.1:${target}`, {
        ...{ method, signal: abort.signal, headers: { "content-type": "text/plain" } },
        ...(body !== undefined && { body }),
      });
      const isLive = target.includes("live=sse");
      await (isLive ? undefined : reply.text());
      abort.abort();
      return { status: reply.status, retryAfterS: Number(reply.headers.get("retry-after")) };
    };
    t.equal((await call(`${apiPort}${path}`, "PUT", "x".repeat(BYTES))).status, 201);
    const greedy = await signedPath(broker, path, "read");
    const others = await signedPath(broker, path, "write");
    const writer = await signedPath(broker, "/v1/stream/answers/2", "write");

    const person = await Promise.all(range(3).map(() => call(`${clientPort}${others}`)));
    t.strictSame(
      person.map(({ status }) => status),
      [200, 200, 200],
      "a few reads are served",
    );

    const startMs = performance.now();
    const places = ["", "&offset=-1&live=sse", "&offset=-1&live=long-poll"];
    const attack = await Promise.all(
      range(REQUESTS).map((i) =>
        call(`${i % 2 === 0 ? clientPort : apiPort}${greedy}${places[i % 3]}`),
      ),
    );
    const served = attack.filter(({ status }) => status === 200).length;
    const bound = affordable(BYTES / 8192, startMs, budget);
    t.ok(served >= 1 && served <= bound, `${served} of ${REQUESTS} served, at most ${bound}`);
    for (const { status, retryAfterS } of attack)
      if (status !== 200 && (status !== 429 || !(retryAfterS >= 1)))
        t.fail(`a request was refused with ${status}, Retry-After ${retryAfterS}`);

    const writingMs = performance.now();
    await call(`${apiPort}/v1/stream/answers/2`, "PUT");
    const writes = await Promise.all(
      range(400).map(() => call(`${clientPort}${writer}`, "POST", "x")),
    );
    const stored = writes.filter(({ status }) => status === 204).length;
    const most = affordable(1, writingMs, budget);
    t.ok(stored >= 1 && stored <= most, `${stored} of 400 writes served, at most ${most}`);
    t.equal((await call(`${clientPort}${others}`)).status, 200, "another bearer is served");
    t.equal((await call(`${apiPort}${path}`)).status, 200, "a backend's requests do not count");
  },
);

/** A tenth of the default limits, so that a group of 240 has the effect of one of 2,400. */
const SMALL_LIMITS = {
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "50",
  JINDOU_CLIENT_FRAME_BURST: "100",
};
/** Budget of a user. */
const SMALL_BUDGET = { rate: 100, burst: 200 };

t.test(
  "a message costs its sender one unit of work plus a fraction for each delivery on the node, and other members of a big group can keep sending",
  async (t) => {
    const PLAIN = 160;
    const ENCRYPTED = 80;
    const COST = 1 + PLAIN / 100 + ENCRYPTED / 20;
    const LARGE = 32_768;
    const FREE = 4096; // the bytes of a payload that are free of charge
    const LARGE_COST = COST + LARGE / 4096 + (LARGE - FREE) * (PLAIN / 65_536 + ENCRYPTED / 4096);
    const { broker, connect } = await startNode(t, SMALL_LIMITS);
    const members = range(PLAIN).map((i) => `plain-${i}`);
    const encrypted = range(ENCRYPTED).map((i) => `encrypted-${i}`);
    await broker.call("/channel", {
      ...{ channel_id: "crowd", channel_type: GROUP_CHANNEL },
      subscribers: ["alice", "eve", "mallory", ...members, ...encrypted],
    });
    const crowd = { id: "crowd", type: GROUP_CHANNEL } as const;
    await Promise.all(members.map(connect));
    await Promise.all(
      encrypted.map((uid) => connectWkproto(t, { port: broker.clientPort, uid, version: 4 })),
    );

    const alice = await connect("alice");
    for (const i of range(10)) await alice.send(crowd, `hello ${i}`);
    t.pass("a person's ten messages in a row are accepted");

    const eve = await connect("eve");
    const startMs = performance.now();
    const accepted = await acceptedOf(range(90).map((i) => eve.send(crowd, `flood ${i}`)));
    const bound = affordable(COST, startMs, SMALL_BUDGET);
    t.ok(accepted <= bound, `${accepted} of 90 messages are accepted, at most ${bound}`);

    const mallory = await connect("mallory");
    const largeMs = performance.now();
    const large = await acceptedOf(range(8).map(() => mallory.send(crowd, "x".repeat(LARGE))));
    const fewer = affordable(LARGE_COST, largeMs, SMALL_BUDGET);
    t.ok(large >= 1, "a large message is accepted");
    t.ok(large <= fewer, `${large} of 8 large messages are accepted, at most ${fewer}`);
    await alice.send(crowd, "still here");
    t.pass("another user of the group keeps sending");

    const backend = await Promise.all(
      range(90).map(() =>
        broker.call("/message/send", {
          ...{ from_uid: "eve", channel_id: "crowd", channel_type: GROUP_CHANNEL },
          payload: textPayload("from the backend"),
        }),
      ),
    );
    t.ok(
      backend.every(({ status }) => status === 200),
      "a backend's messages do not count",
    );
  },
);

t.test(
  "missed messages and commands are pushed at the rate of the user's budget, however often the user reconnects",
  async (t) => {
    const BYTES = 8192;
    const MESSAGES = 300;
    const COMMANDS = 10;
    const COST = 1 / 4 + 1; // frames that the push of one message or command costs
    const PAGE = 80; // more than the cost of a page of messages and a page of commands
    const { broker, connect } = await startNode(t, SMALL_LIMITS);
    const crew = { channel_id: "crew", channel_type: GROUP_CHANNEL };
    await broker.call("/channel", { ...crew, subscribers: ["alice", "eve"] });
    const payload = textPayload("x".repeat(BYTES));
    const post = (header = {}) =>
      broker.call("/message/send", { ...crew, from_uid: "alice", payload, header });
    for (const _ of range(MESSAGES)) t.equal((await post()).status, 200);
    for (const _ of range(COMMANDS)) t.equal((await post({ sync_once: 1 })).status, 200);

    const channel = { id: "crew", type: GROUP_CHANNEL } as const;
    const resume = [{ channel, lastSeq: 1, lastId: 0 }];
    const startMs = performance.now();
    const reconnect = () =>
      connectNative(t, { port: broker.clientPort, uid: "eve", resume, deviceId: "d" });
    const sessions = [await reconnect(), await reconnect()];
    const [, last = sessions[0]] = sessions;
    const received = () =>
      sessions.reduce((sum, { messages, commands }) => sum + messages.length + commands.length, 0);
    const own = await last?.send(channel, "sent meanwhile");
    t.pass("the user can send while it catches up");
    const alice = await connect("alice");
    const newest = await alice.send(channel, "the newest");
    await last?.waitFor(() => {
      const earned =
        SMALL_BUDGET.burst + (SMALL_BUDGET.rate * (performance.now() - startMs)) / 1000;
      if (received() * COST > earned + sessions.length * PAGE)
        t.fail("more was pushed than the budget pays for");
      return last.messages.some(({ messageSeq }) => messageSeq === newest.messageSeq);
    }, "the newest message");
    const seqs = (last?.messages ?? []).map(({ messageSeq }) => messageSeq);
    t.same(
      seqs.filter((seq) => seq !== own?.messageSeq),
      [...range(MESSAGES - 1).map((i) => i + 2), newest.messageSeq],
      "every missed message and the newest have arrived, in order",
    );
    t.equal(last?.commands.length, COMMANDS);
  },
);

t.test(
  "deliveries to the many sessions of one user are charged to the sender, even if the user is the sender",
  async (t) => {
    const SESSIONS = 40;
    const SENDS = 390;
    const COST = 1 + SESSIONS / 20;
    const budget = { rate: 20, burst: 800 }; // a user's budget. The logins of 40 sessions cost 440
    const { broker, connect } = await startNode(t, {
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "10",
      JINDOU_CLIENT_FRAME_BURST: "400",
    });
    const open = (uid: string) => (i: number) =>
      connectWkproto(t, { port: broker.clientPort, uid, version: 4, deviceId: `d-${i}` });
    await Promise.all([
      ...range(SESSIONS).map(open("bob")),
      ...range(SESSIONS).map(open("mallory")),
    ]);
    for (const [uid, peer] of [
      ["eve", "bob"],
      ["mallory", "mallory"],
    ] as const) {
      const sender = await connect(uid);
      const startMs = performance.now();
      const channel = { id: peer, type: PERSON_CHANNEL } as const;
      const accepted = await acceptedOf(
        range(SENDS).map((i) => sender.send(channel, `flood ${i}`)),
      );
      const bound = affordable(COST, startMs, budget);
      t.ok(
        accepted <= bound,
        `${accepted} of ${SENDS} from ${uid} to ${peer} accepted, at most ${bound}`,
      );
    }
  },
);

t.test(
  "the unread bytes on all sockets of a user who reads nothing stay within the limit of one user, and other users receive everything",
  async (t) => {
    const SOCKETS = 12;
    const MAX_POSTS = 400;
    const LIMIT = 1_048_576; // equals the limit of one connection
    const SLACK = SOCKETS * 131_072; // bytes that arrive between two checks
    const { broker, connect } = await startNode(t, {
      JINDOU_CLIENT_MAX_BUFFERED_BYTES_PER_USER: String(LIMIT),
    });
    const group = { channel_id: "team", channel_type: GROUP_CHANNEL };
    await broker.call("/channel", { ...group, subscribers: ["bob", "eve"] });
    const bob = await connect("bob");
    for (const _ of range(SOCKETS)) (await openSocket(t, broker.clientPort, "eve")).pause();
    const payload = textPayload("x".repeat(60_000));
    const open = async () =>
      (await broker.call("/connz?uid=eve&limit=100")).body.connections as {
        readonly pending_bytes: number;
      }[];
    let posts = 0;
    let mostBytes = 0;
    let connections = await open();
    t.equal(connections.length, SOCKETS, "all sockets are open");
    while (connections.length === SOCKETS && posts < MAX_POSTS) {
      await broker.call("/message/send", { ...group, from_uid: "bob", payload });
      posts += 1;
      connections = await open();
      const bytes = connections.reduce((sum, { pending_bytes }) => sum + pending_bytes, 0);
      mostBytes = Math.max(mostBytes, bytes);
    }
    t.ok(posts < MAX_POSTS, "some sockets are closed");
    t.ok(connections.length > 0, "not all sockets are closed");
    t.ok(mostBytes <= LIMIT + SLACK, `at most ${mostBytes} bytes were unread at once`);
    await bob.waitFor(() => bob.messages.length === posts, "all messages");
    t.pass("a user who reads receives every message");
  },
);

t.test(
  "a socket that keeps sending WebSocket pings is closed, before and after its login",
  async (t) => {
    const { broker, connect } = await startNode(t, {
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "10",
      JINDOU_CLIENT_FRAME_BURST: "20",
    });
    const closeCode = async (socket: WebSocket) => {
      let code = 0;
      socket.on("close", (closeCode) => {
        code = closeCode;
      });
      const endMs = performance.now() + 60_000;
      while (code === 0 && performance.now() < endMs) {
        for (const _ of range(10)) if (socket.readyState === WebSocket.OPEN) socket.ping();
        await new Promise((resolve) => setImmediate(resolve));
      }
      return code;
    };
    const stranger = new WebSocket(`ws://127.0.0.1:${broker.clientPort}`);
    await once(stranger, "open");
    t.equal(await closeCode(stranger), 4100, "a stranger's socket is closed");
    const eve = await openSocket(t, broker.clientPort, "eve");
    t.equal(await closeCode(eve), 4100, "a user's socket is closed");
    const alice = await openSocket(t, broker.clientPort, "alice");
    for (const _ of range(5)) alice.ping();
    await (await connect("alice")).ping();
    t.equal(alice.readyState, WebSocket.OPEN, "a socket with a few pings stays open");
  },
);

t.test("a user's commands do not remove the commands of other users from an inbox", async (t) => {
  const { broker, connect } = await startNode(t, { JINDOU_COMMANDS_MAX_INBOX: "100" });
  const bob = { id: "bob", type: PERSON_CHANNEL } as const;
  const command = textPayload("from the backend");
  const backend = await broker.call("/message/send", {
    ...{ from_uid: "eve", channel_id: "bob", channel_type: PERSON_CHANNEL, payload: command },
    header: { sync_once: 1 },
  });
  t.equal(backend.status, 200);
  const alice = await connect("alice");
  await alice.send(bob, "hello", { syncOnce: true });
  const eve = await connect("eve");
  const codes = new Map<string, number>();
  for (const outcome of await Promise.allSettled(
    range(150).map((i) => eve.send(bob, `flood ${i}`, { syncOnce: true })),
  )) {
    const code = outcome.status === "fulfilled" ? "ok" : String(outcome.reason.code);
    codes.set(code, (codes.get(code) ?? 0) + 1);
  }
  t.same(
    [...codes],
    [
      ["ok", 10],
      ["overloaded", 140],
    ],
    "the commands of one sender fill at most a tenth of the inbox",
  );
  const receiver = await connect("bob");
  await receiver.waitFor(() => receiver.commands.length >= 12, "the commands in the inbox");
  const senders = receiver.commands.map(({ message }) => message.fromUid);
  t.equal(senders.length, 12);
  t.same(
    senders.slice(0, 3),
    ["eve", "alice", "eve"],
    "the earlier commands are still in the inbox",
  );
});

/** Logs in on a plain socket, which can be paused. */
async function openSocket(t: Test, port: number, uid: string): Promise<WebSocket> {
  const socket = new WebSocket(`ws://127.0.0.1:${port}`, { perMessageDeflate: false });
  t.teardown(() => socket.terminate());
  await once(socket, "open");
  socket.send(connectFrame({ uid, token: "" }));
  await once(socket, "message");
  return socket;
}
