// Sets the wall clock of nodes forward and back. These steps must not affect conversation syncs by
// version, the catch-up of the SDK, streams or live delivery, with either store.

import t, { type Test } from "tap";
import { WebSocket } from "ws";
import { bucketOf } from "../../src/broker/log-frame.ts";
import { firstMessageId } from "../../src/broker/model.ts";
import { connect, type SocketConstructor } from "../../src/client/index.ts";
import { textPayload } from "../support/broker.ts";
import { HMAC_KEY, keyFile, mint, SECRET } from "../support/mint.ts";
import { connectNative } from "../support/native-client.ts";
import { Random } from "../support/random.ts";
import { startRedis, startRedisCluster } from "../support/redis.ts";
import { type ShiftedBroker, spawnShifted } from "../support/shifted-clock.ts";

const SEED = Number(process.env.SEED ?? 20_240_101);
const STEPS = Number(process.env.JINDOU_TEST_CLOCK_STEPS ?? 8);
const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
/** Time by which a bucket is ahead of the others. A sync looks back 2,000 ms. */
const AHEAD_MS = 1900;
const ROUNDS = 6;
const IDS_PER_BUCKET = 64;
const SIZES_MS = [30, 900, 5000, 2 * MINUTE_MS, HOUR_MS, 26 * HOUR_MS];

const redis = await startRedis(t);
let prefixes = 0;
const onRedis = () => ({
  JINDOU_REDIS_URL: redis.url,
  JINDOU_REDIS_PREFIX: `clock${prefixes++}`,
});
const STORES = [
  { name: "the embedded store", settings: () => ({}) },
  { name: "Redis", settings: onRedis },
] as const;

interface Conversation {
  readonly channel_id: string;
  readonly version: number;
}

async function ok(node: ShiftedBroker, path: string, body: object) {
  const response = await node.broker.call(path, body);
  if (response.status !== 200) throw new Error(`${path}: ${JSON.stringify(response.body)}`);
  return response.body;
}

/** Sends a personal message. */
const send = (node: ShiftedBroker, from: string, to: string, text = "hello") =>
  ok(node, "/message/send", {
    ...{ from_uid: from, channel_id: to, channel_type: 1, header: { red_dot: 1 } },
    payload: Buffer.from(JSON.stringify({ type: 1, content: text })).toString("base64"),
  });

async function changedSince(node: ShiftedBroker, uid: string, version: number) {
  const body = { uid, version, page_size: 500 };
  return (await ok(node, "/conversation/sync", body)) as readonly Conversation[];
}

const newestOf = (list: readonly Conversation[], version: number) =>
  Math.max(version, ...list.map((conversation) => conversation.version));

async function until(event: string, isTrue: () => boolean | Promise<boolean>): Promise<void> {
  const endMs = performance.now() + 120_000;
  while (!(await isTrue())) {
    if (performance.now() > endMs) throw new Error(`This did not happen in time: ${event}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

for (const { name, settings } of STORES)
  t.test(
    `a conversation sync returns new messages and changed read positions after clock steps, on ${name}`,
    async (t) => {
      const random = new Random(SEED);
      const node = await spawnShifted(t, settings());
      let version = 0;
      for (let step = 0; step < STEPS; step++) {
        const shiftMs = random.pick(SIZES_MS) * (random.flip() ? 1 : -1);
        await node.shiftTo(shiftMs);
        if (random.below(3) === 0) await node.restart();
        const peer = `peer${step}`;
        await send(node, peer, "ann");
        let list = await changedSince(node, "ann", version);
        t.ok(
          list.some(({ channel_id }) => channel_id === peer),
          `a new message is listed after a step to ${shiftMs} ms (SEED=${SEED})`,
        );
        version = newestOf(list, version);
        const [first] = (await changedSince(node, "ann", 0)).slice(-1);
        const target = { uid: "ann", channel_id: first?.channel_id, channel_type: 1 };
        await ok(node, "/conversations/setUnread", { ...target, unread: step % 2 });
        await ok(node, "/conversations/setUnread", { ...target, unread: 1 - (step % 2) });
        list = await changedSince(node, "ann", version);
        t.ok(
          list.some(({ channel_id }) => channel_id === first?.channel_id),
          `a new read position is listed after a step to ${shiftMs} ms (SEED=${SEED})`,
        );
        version = newestOf(list, version);
      }
    },
  );

t.test("a conversation sync misses no message if node clocks differ by 1.8 s", async (t) => {
  const settings = onRedis();
  const ahead = await spawnShifted(t, settings, 900);
  const behind = await spawnShifted(t, settings, -900);
  let [version, stale] = [0, 0];
  for (let round = 0; round < 20; round++) {
    await send(ahead, `early${round}`, "ann");
    version = newestOf(await changedSince(ahead, "ann", version), version);
    await send(behind, `late${round}`, "ann");
    const list = await changedSince(ahead, "ann", version);
    if (!list.some(({ channel_id }) => channel_id === `late${round}`)) stale += 1;
    version = newestOf(list, version);
  }
  t.equal(stale, 0);
});

t.test(
  "a conversation sync on a Redis Cluster misses no change if the message id counters of its buckets differ by less than 2 s",
  async (t) => {
    const cluster = await startRedisCluster(t);
    const node = await spawnShifted(t, { JINDOU_REDIS_URL: cluster.url });
    const clients = cluster.primaries.map((primary) => primary.client());
    /** Sets the counter of the bucket so that its next id has the time `aheadMs` from now. */
    const advance = (bucket: number, aheadMs: number) => {
      const id = firstMessageId(Date.now() + aheadMs) + bucket * IDS_PER_BUCKET;
      return Promise.any(clients.map((client) => client.set(`jd:{c${bucket}}:messageIds`, id)));
    };
    const sendTo = (channel_id: string) =>
      ok(node, "/message/send", {
        ...{ from_uid: "bob", channel_id, channel_type: 2, header: { red_dot: 1 } },
        payload: textPayload("hello"),
      });
    let [version, behind] = [0, 0];
    for (let round = 0; round < ROUNDS; round++) {
      const [early, late] = [`early${round}`, `late${round}`];
      if (bucketOf(`2:${early}`) === bucketOf(`2:${late}`)) continue;
      for (const channel_id of [early, late]) {
        const subscribers = ["ann", "bob"];
        await ok(node, "/channel", { channel_id, channel_type: 2, subscribers });
      }
      const isRead = round % 2 === 1;
      if (isRead) {
        await sendTo(late);
        version = newestOf(await changedSince(node, "ann", version), version);
      }
      await advance(bucketOf(`2:${early}`), AHEAD_MS);
      await sendTo(early);
      version = newestOf(await changedSince(node, "ann", version), version);
      if (isRead)
        await ok(node, "/conversations/setUnread", {
          ...{ uid: "ann", channel_id: late, channel_type: 2, unread: 0 },
        });
      else await sendTo(late);
      const list = await changedSince(node, "ann", version);
      const change = list.find(({ channel_id }) => channel_id === late);
      t.ok(change, isRead ? "the read position is listed" : "the message is listed");
      if (change !== undefined && change.version < version) behind += 1;
      version = newestOf(list, version);
    }
    t.ok(behind > 0, "a change had a lower version than the one before");
  },
);

for (const { name, settings } of STORES)
  t.test(`the SDK delivers missed messages despite clock steps, on ${name}`, async (t) => {
    const node = await spawnShifted(t, settings());
    await send(node, "old", "ann");
    const random = new Random(SEED);
    for (const stepMs of [-5000, -HOUR_MS, 5000, HOUR_MS]) {
      await node.shiftTo(0);
      const uid = `ann${stepMs}`;
      await send(node, "before", uid);
      const network = new Network();
      const url = `ws://127.0.0.1:${node.broker.clientPort}`;
      const reconnect = { minMs: 5, maxMs: 20 };
      const client = connect({ url, uid, token: "", reconnect, webSocket: network.socketClass() });
      t.teardown(() => client.close());
      const seen: string[] = [];
      client.on("message", ({ fromUid }) => seen.push(fromUid));
      client.on("error", () => undefined);
      await client.ready();
      network.cut();
      await until("the client is offline", () => client.status !== "online");
      await node.shiftTo(stepMs);
      const peers = Array.from({ length: 1 + random.below(3) }, (_, at) => `peer${at}`);
      for (const peer of peers) await send(node, peer, uid);
      network.isUp = true;
      await until("the missed messages arrive", () => peers.every((peer) => seen.includes(peer)));
      t.notOk(seen.includes("before"), "messages from before the first connect are not delivered");
    }
  });

for (const { name, settings } of STORES)
  t.test(
    `a forward clock step does not end an active stream, and a backward step does not keep a silent stream open, on ${name}`,
    async (t) => {
      const node = await spawnShifted(t, settings());
      const shortLimit = { ...settings(), JINDOU_STREAMS_IDLE_TIMEOUT_MS: "1200" };
      const event = (on: ShiftedBroker, type: string, data = "") =>
        ok(on, "/event", {
          ...{ client_msg_no: "s", channel_id: "team", channel_type: 2, from_uid: "bot" },
          event: { type: `___TextMessage${type}`, data },
        });
      const state = async (on: ShiftedBroker) =>
        (await on.broker.call("/stream/2/team/s")).body.state;
      const team = { channel_id: "team", channel_type: 2, subscribers: ["bot"] };
      await ok(node, "/channel", team);
      await event(node, "Start");
      let shiftMs = 0;
      for (const stepMs of [2 * MINUTE_MS, HOUR_MS]) {
        shiftMs += stepMs;
        await node.shiftTo(shiftMs);
        await new Promise((resolve) => setTimeout(resolve, 1200)); // two sweeps
        t.equal(await state(node), "active", `the stream is active after ${stepMs} ms`);
        await event(node, "Content", "more");
      }
      const silent = await spawnShifted(t, shortLimit);
      await ok(silent, "/channel", team);
      await event(silent, "Start");
      await silent.shiftTo(-HOUR_MS);
      await until("the stream is interrupted", async () => (await state(silent)) === "interrupted");
    },
  );

for (const { name, settings } of STORES)
  t.test(
    `a durable stream in use does not expire when the clock steps by more than its time to live, on ${name}`,
    async (t) => {
      const node = await spawnShifted(t, settings());
      const { apiPort } = node.broker;
      const call = (method: string, headers: Record<string, string>, body = "") =>
        fetch(`http://127.0.0.1:${apiPort}/v1/stream/answer`, {
          ...{ method, headers },
          ...(body !== "" && { body }),
        });
      const type = { "content-type": "text/plain" };
      await call("PUT", { ...type, "stream-ttl": "60" });
      for (const stepMs of [2 * MINUTE_MS, -HOUR_MS, 26 * HOUR_MS]) {
        await node.shiftTo(stepMs);
        t.equal((await call("POST", type, "x")).status, 204, `an append at ${stepMs} ms`);
      }
      t.equal(await (await call("GET", {})).text(), "xxx", "nothing is lost");
    },
  );

t.test("JWTs and signed URLs are accepted on a node whose clock is two hours wrong", async (t) => {
  const secretFile = await keyFile(t, SECRET);
  const settings = {
    ...{ ...onRedis(), JINDOU_API_TOKEN: "0123456789abcdef" },
    ...{ JINDOU_AUTH_CLIENTS: "jwt", JINDOU_AUTH_JWT_ALGORITHMS: "HS256" },
    JINDOU_AUTH_JWT_SECRET_FILE: secretFile,
  };
  const headers = { token: settings.JINDOU_API_TOKEN, "content-type": "application/json" };
  const right = await spawnShifted(t, settings);
  const urlOn = ({ broker }: ShiftedBroker, path: string) =>
    `http://127.0.0.1:${broker.apiPort}${path}`;
  const path = "/v1/stream/shared";
  await fetch(urlOn(right, path), { method: "PUT", headers, body: "[1]" });
  const signOn = async (node: ShiftedBroker) => {
    const body = JSON.stringify({ path, access: "read", expires_in: 600 });
    const reply = await fetch(urlOn(node, "/v1/sign"), { method: "POST", headers, body });
    const { url } = (await reply.json()) as { url: string };
    const { pathname, search } = new URL(url);
    return pathname + search;
  };
  for (const shiftMs of [2 * HOUR_MS, -2 * HOUR_MS]) {
    const wrong = await spawnShifted(t, settings, shiftMs);
    t.equal((await fetch(urlOn(wrong, await signOn(right)))).status, 200, `at ${shiftMs} ms`);
    t.equal((await fetch(urlOn(right, await signOn(wrong)))).status, 200, `at ${shiftMs} ms`);
    const token = await mint(HMAC_KEY, { sub: "ann" });
    const options = { port: wrong.broker.clientPort, uid: "ann", token };
    await t.resolves(connectNative(t, options), `a JWT at ${shiftMs} ms`);
  }
});

t.test(
  "messages are delivered live after one message was sent while a node's clock was an hour ahead",
  async (t) => {
    const settings = onRedis();
    const fast = await spawnShifted(t, settings, HOUR_MS);
    const right = await spawnShifted(t, settings);
    await send(fast, "ann", "bob");
    await fast.shiftTo(0);
    const client = connect({
      url: `ws://127.0.0.1:${right.broker.clientPort}`,
      uid: "bob",
      token: "",
    });
    t.teardown(() => client.close());
    let count = 0;
    client.on("message", () => {
      count += 1;
    });
    await client.ready();
    await assertLive(t, [fast, right], () => count);
  },
);

t.test(
  "messages are delivered live after the message id counter in Redis jumped an hour ahead",
  async (t) => {
    const settings = onRedis();
    const nodes = [await spawnShifted(t, settings), await spawnShifted(t, settings)] as const;
    await send(nodes[0], "ann", "bob");
    const key = `${settings.JINDOU_REDIS_PREFIX}:{all}:messageIds`;
    await redis.client().incrby(key, HOUR_MS * 4096);
    const url = `ws://127.0.0.1:${nodes[1].broker.clientPort}`;
    const client = connect({ url, uid: "bob", token: "" });
    t.teardown(() => client.close());
    let count = 0;
    client.on("message", () => {
      count += 1;
    });
    await client.ready();
    await send(nodes[0], "eve", "bob"); // makes node 0 read from the store that the ids are ahead
    await until("the first message arrives", () => count === 1);
    count = 0;
    await assertLive(t, nodes, () => count);
  },
);

/**
 * Asserts that messages sent through both nodes reach the client, and that no node reads them from
 * the store.
 */
async function assertLive(
  t: Test,
  nodes: readonly [ShiftedBroker, ShiftedBroker],
  count: () => number,
): Promise<void> {
  const repairs = async () => {
    const texts = await Promise.all(nodes.map(({ broker }) => broker.call("/metrics")));
    return texts.map(({ body }) => /^jindou_cluster_repairs_total (\d+)/m.exec(body)?.[1]);
  };
  const before = await repairs();
  for (let at = 0; at < 20; at++) {
    const node = nodes[at % 2] ?? nodes[0];
    await send(node, `ann${at % 4}`, "bob");
    await until("the message is delivered", () => count() === at + 1);
  }
  t.same(await repairs(), before, "no message is read from the store");
}

/** Network of one client. The test can cut it. */
class Network {
  isUp = true;
  readonly #sockets = new Set<WebSocket>();

  /** Breaks all connections, and lets no new connection succeed. */
  cut(): void {
    this.isUp = false;
    for (const socket of this.#sockets) socket.terminate();
  }

  socketClass(): SocketConstructor {
    const network = this;
    const socketClass = class extends WebSocket {
      constructor(url: string, protocols: string[]) {
        super(network.isUp ? url : "ws://127.0.0.1:1", protocols);
        network.#sockets.add(this);
      }
    };
    return socketClass as unknown as SocketConstructor; // the types of events differ
  }
}
