// A network that stalls between one node and Redis. The node's commands wait in the network, its
// calls are answered as failed, and the commands reach Redis later. By then the commands must not
// change anything, because other nodes may have stored newer logins, tokens and memberships. Uses
// two broker processes.

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { type ChildBroker, spawnBroker, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { startRedis, startRedisCluster } from "../support/redis.ts";
import {
  type StallingProxy,
  startClusterProxy,
  startStallingProxy,
} from "../support/stalling-proxy.ts";

const TIMEOUT_MS = 2000;
/** Time to wait after the stall, in which the delayed commands run. */
const AFTERMATH_MS = 1500;
/** Time after which another node delivers to a webhook whose node has stalled. */
const LEASE_MS = 6000;
const APP = 0;
const WEB = 1;

const GROUP = { channel_id: "team", channel_type: 2 } as const;

const token = (uid: string, text: string, flag = APP) => ({
  ...{ uid, token: text, device_flag: flag, device_level: 1 },
});

async function statusOf(broker: ChildBroker, path: string, body: unknown): Promise<number> {
  return (await broker.call(path, body)).status;
}

interface Request {
  readonly method: string;
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: unknown;
}

const JSON_TYPE = { "content-type": "application/json" };

/** Sends a request with any method and headers, and returns its status. */
async function send(
  { apiPort }: Pick<ChildBroker, "apiPort">,
  { method, path, headers = {}, body }: Request,
): Promise<number> {
  const reply = await fetch(`http://127.0.0.1:${apiPort}${path}`, {
    ...{ method, headers: { ...JSON_TYPE, ...headers } },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  await reply.text();
  return reply.status;
}

const STREAMS = "/v1/stream/late";
/** Calls on streams. A call that has failed must not take effect later. */
const LATE_STREAM_CALLS: readonly Request[] = [
  { method: "PUT", path: `${STREAMS}/new`, body: [9] },
  { method: "PUT", path: `${STREAMS}/fork`, headers: { "stream-forked-from": `${STREAMS}/kept` } },
  { method: "POST", path: `${STREAMS}/kept`, body: [9] },
  { method: "POST", path: `${STREAMS}/kept`, headers: { "stream-closed": "true" }, body: [9] },
  { method: "DELETE", path: `${STREAMS}/kept` },
];

/** Asserts that the calls of `LATE_STREAM_CALLS` have changed nothing. */
async function assertStreamsUnchanged(t: Test, broker: ChildBroker): Promise<void> {
  const kept = await fetch(`http://127.0.0.1:${broker.apiPort}${STREAMS}/kept`);
  t.equal(await kept.text(), "[1]", "the stream was neither deleted nor appended to");
  const append = { method: "POST", path: `${STREAMS}/kept`, body: [2] };
  t.equal(await send(broker, append), 204, "the stream was not closed");
  for (const name of ["new", "fork"])
    t.equal(await send(broker, { method: "GET", path: `${STREAMS}/${name}` }), 404, name);
}

/** Creates a webhook for the events of created channels and returns its id. */
async function createWebhook(broker: ChildBroker, url: string): Promise<string> {
  const reply = await broker.call("/webhooks", { url, types: ["channel.created"] });
  if (reply.status !== 201) throw new Error(JSON.stringify(reply.body));
  return reply.body.id;
}

/** Starts a receiver of webhooks that responds to its first request only after `release`. */
async function startReceiver(t: Test) {
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  let count = 0;
  const server = createServer((request, response) => {
    count += 1;
    const isFirst = count === 1;
    request.resume().on("end", async () => {
      if (isFirst) await released;
      response.end();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.teardown(() => server.close());
  const { port } = server.address() as AddressInfo; // it listens on a port
  return { url: `http://127.0.0.1:${port}/`, count: () => count, release };
}

async function until(event: string, isTrue: () => boolean | Promise<boolean>): Promise<void> {
  const endMs = performance.now() + 120_000;
  while (!(await isTrue())) {
    if (performance.now() > endMs) throw new Error(`This did not happen in time: ${event}`);
    await pause(10);
  }
}

interface Stall {
  readonly title: string;
  /** Time from the beginning of the stall until the calls. */
  readonly beforeCallsMs: number;
  /** True if the node's connections are reset while its commands wait in the network. */
  readonly isCut: boolean;
  /** Time from the answers to the calls until the end of the stall. */
  readonly afterAnswersMs: number;
}

const STALLS: readonly Stall[] = [
  {
    title: "Redis does not respond for a long time",
    ...{ beforeCallsMs: 0, isCut: false, afterAnswersMs: 4 * TIMEOUT_MS },
  },
  {
    title: "the node replaces its connection to Redis before the call times out",
    ...{ beforeCallsMs: 0.8 * TIMEOUT_MS, isCut: false, afterAnswersMs: 0 },
  },
  {
    title: "the connection to Redis is reset and Redis gets the commands later",
    ...{ beforeCallsMs: 0, isCut: true, afterAnswersMs: 0 },
  },
];

/** A Redis or a Redis Cluster, and the proxy through which one node reaches it. */
interface StalledRedis {
  readonly proxy: StallingProxy;
  readonly url: string;
  readonly settings: Readonly<Record<string, string>>;
  /** Reads a hash at the server that stores it. */
  hash(key: string): Promise<Readonly<Record<string, string>>>;
}

async function startOne(t: Test): Promise<StalledRedis> {
  const redis = await startRedis(t);
  const proxy = await startStallingProxy(t, redis.port);
  const client = redis.client();
  return { proxy, url: redis.url, settings: {}, hash: (key) => client.hgetall(key) };
}

async function startCluster(t: Test): Promise<StalledRedis> {
  const { primaries, url } = await startRedisCluster(t);
  const proxy = await startClusterProxy(t, primaries);
  const clients = primaries.map((primary) => primary.client());
  return {
    proxy,
    url,
    settings: { JINDOU_REDIS_CLUSTER: "true" },
    hash: (key) => Promise.any(clients.map((client) => client.hgetall(key))), // the others reply MOVED
  };
}

const SERVERS = { "one Redis server": startOne, "a Redis Cluster": startCluster };

const CASES = Object.entries(SERVERS).flatMap(([servers, start]) =>
  STALLS.map((stall) => ({ ...stall, servers, start })),
);

for (const { start, ...stall } of CASES)
  t.test(
    `a failed call to a node on ${stall.servers} changes nothing later, even if ${stall.title}`,
    async (t) => {
      const { proxy, url, settings, hash } = await start(t);
      const common = { ...settings, JINDOU_REDIS_TIMEOUT_MS: String(TIMEOUT_MS) };
      const [stalled, healthy] = await Promise.all([
        spawnBroker(t, { JINDOU_REDIS_URL: `redis://127.0.0.1:${proxy.port}`, ...common }),
        spawnBroker(t, { JINDOU_REDIS_URL: url, ...common }),
      ]);
      const ok = async (path: string, body: unknown) =>
        t.equal(await statusOf(healthy, path, body), 200, `${path} is acknowledged`);

      await ok("/user/token", token("alice", "first"));
      await ok("/user/token", token("bob", "first"));
      await ok("/user/token", token("bob", "first", WEB));
      await ok("/channel", { ...GROUP, subscribers: ["alice", "bob", "carol"] });
      t.equal(await send(healthy, { method: "PUT", path: `${STREAMS}/kept`, body: [1] }), 201);
      await ok("/events/feed", { feed: "on" });
      const receiver = await startReceiver(t);
      const webhook = await createWebhook(stalled, receiver.url);
      await ok("/channel", { ...GROUP, channel_id: "announced" });
      await until("the stalled node delivers the event", () => receiver.count() === 1);

      proxy.stall();
      await pause(stall.beforeCallsMs);
      const message = { ...GROUP, from_uid: "bob", payload: textPayload("late") };
      const late: Readonly<Record<string, unknown>> = {
        "/user/token": token("bob", "stale", WEB),
        "/channel/subscriber_remove": { ...GROUP, subscribers: ["bob"] },
        "/channel/subscriber_add": { ...GROUP, subscribers: ["mallory"] },
        "/channel/blacklist_add": { ...GROUP, uids: ["alice"] },
        "/message/send": message,
        "/event": {
          ...{ ...GROUP, from_uid: "bob", client_msg_no: "late-stream" },
          event: { type: "___TextMessageStart", data: "{}" },
        },
        "/conversations/setUnread": { ...GROUP, uid: "carol", unread: 1 },
        "/user/systemuids_add": { uids: ["mallory"] },
        "/events/feed": { feed: "off" },
        "/webhooks": { url: `${receiver.url}late`, types: ["channel.created"] },
      };
      const others: readonly Request[] = [
        ...LATE_STREAM_CALLS,
        { method: "PATCH", path: `/webhooks/${webhook}`, body: { enabled: 0 } },
        { method: "DELETE", path: `/webhooks/${webhook}` },
      ];
      const answers = Promise.all([
        ...Object.entries(late).map(async ([path, body]) => {
          return [path, await statusOf(stalled, path, body)] as const;
        }),
        ...others.map(async (request) => {
          return [`${request.method} ${request.path}`, await send(stalled, request)] as const;
        }),
      ]);
      receiver.release(); // the stalled node saves how far it has delivered
      const login = connectNative(t, {
        port: stalled.clientPort,
        uid: "alice",
        token: "first",
      }).then(
        () => "connected",
        () => "refused",
      );
      if (stall.isCut) {
        await pause(300); // the commands are in the network by then
        proxy.cut();
      }
      for (const [path, status] of await answers)
        t.equal(status, 503, `${path} fails in the stall`);
      t.equal(await login, "refused", "the login in the stall fails");
      await ok("/user/token", token("bob", "newest", WEB));
      await ok("/channel/subscriber_remove", { ...GROUP, subscribers: ["bob"] });
      await ok("/channel/subscriber_add", { ...GROUP, subscribers: ["bob"] });
      const alice = await connectNative(t, {
        ...{ port: healthy.clientPort, uid: "alice", token: "first" },
      });

      const positionsOf = () => hash(`jd:{all}:webhookState:${webhook}`);
      await pause(stall.afterAnswersMs);
      if (stall.afterAnswersMs > LEASE_MS)
        await until("the other node delivers", () => receiver.count() > 1);
      await ok("/channel", { ...GROUP, channel_id: "announced later" });
      if (stall.afterAnswersMs > LEASE_MS)
        await until("the other node has saved that the last batch was delivered", async () => {
          const saved = Object.values(await positionsOf()).map((text) => JSON.parse(text));
          const isDelivered =
            saved.length > 0 && saved.every(({ batches }) => batches.length === 0);
          return receiver.count() > 2 && isDelivered;
        });
      const positions = await positionsOf();
      proxy.resume();
      await pause(AFTERMATH_MS);
      if (stall.afterAnswersMs > LEASE_MS)
        t.same(await positionsOf(), positions, "the late position of the webhook was not saved");
      await assertStreamsUnchanged(t, healthy);
      const { webhooks } = (await healthy.call("/webhooks")).body;
      t.match(
        webhooks,
        [{ id: webhook, url: receiver.url, enabled: 1 }],
        "the webhook is unchanged",
      );
      t.equal(webhooks.length, 1, "the late webhook was not created");
      t.equal((await healthy.call("/events")).status, 200, "the feed is on");

      await t.resolves(alice.ping(), "the newest login of the main device stays connected");
      const bob = await connectNative(t, {
        ...{ port: healthy.clientPort, uid: "bob", token: "newest", flag: WEB },
      });
      await bob.ping();
      await ok("/message/send", { ...message, payload: textPayload("on time") });
      await alice.waitFor(({ messages }) => messages.length > 0, "the message of the added member");
      t.same(
        alice.messages.map(({ messageSeq }) => messageSeq),
        [1],
        "the late message and the late stream were not stored",
      );
      const members = await healthy.call(`/channel/members?channel_id=team&channel_type=2`);
      t.notMatch(JSON.stringify(members.body), "mallory", "the late member was not added");
      await ok("/message/send", { ...message, from_uid: "alice" });
    },
  );

t.test("a call that failed after its first reads from Redis changes nothing later", async (t) => {
  const redis = await startRedis(t);
  const proxy = await startStallingProxy(t, redis.port);
  const timeouts = { JINDOU_REDIS_TIMEOUT_MS: "400" };
  const [stalled, healthy] = await Promise.all([
    spawnBroker(t, { JINDOU_REDIS_URL: `redis://127.0.0.1:${proxy.port}`, ...timeouts }),
    spawnBroker(t, { JINDOU_REDIS_URL: redis.url, ...timeouts }),
  ]);
  await send(healthy, { method: "PUT", path: `${STREAMS}/kept`, body: [1] });
  await healthy.call("/events/feed", { feed: "on" });
  const receiver = await startReceiver(t);
  const webhook = await createWebhook(healthy, receiver.url);
  const late: readonly (Request & { readonly writes: string })[] = [
    {
      ...{ method: "PUT", path: `${STREAMS}/fork`, writes: "late/kept" },
      headers: { "stream-forked-from": `${STREAMS}/kept` },
    },
    {
      ...{ method: "POST", path: "/webhooks", writes: "late-create" },
      body: { url: `${receiver.url}late-create`, types: ["channel.created"] },
    },
    {
      ...{ method: "PATCH", path: `/webhooks/${webhook}`, writes: "late-change" },
      body: { url: `${receiver.url}late-change` },
    },
    {
      ...{ method: "DELETE", path: `/webhooks/${webhook}` },
      writes: `webhookAttempts:${webhook}`,
    },
  ];
  for (const { writes, ...request } of late) {
    const label = `${request.method} ${request.path}`;
    const isServed = async () =>
      (await send(stalled, { method: "GET", path: `${STREAMS}/kept` })) === 200;
    await until("the node reaches Redis", isServed);
    proxy.stallAt(writes);
    t.equal(await send(stalled, request), 503, `${label} fails in the stall`);
    proxy.resume();
  }
  await pause(AFTERMATH_MS);
  await assertStreamsUnchanged(t, healthy);
  const { webhooks } = (await healthy.call("/webhooks")).body;
  t.match(webhooks, [{ id: webhook, url: receiver.url }], "the webhook is unchanged");
  t.equal(webhooks.length, 1, "the late webhook was not created");
});
