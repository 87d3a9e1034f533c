// A publication that arrives after its message was read from the store. On a Redis Cluster a
// personal message is published to its users in a separate step, which may be late or repeated. A
// session that has read the message while resuming, or the stream while joining, is not pushed the
// same content again. A message that the client already has is also not pushed again after the
// node's subscriber connection was cut and the node has read the missed messages from the store.
// Uses two broker processes.

import { Cluster } from "ioredis";
import t from "tap";
import { spawnBroker, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { textOf } from "../support/native-session.ts";
import { type RedisClusterServers, startRedis, startRedisCluster } from "../support/redis.ts";
import { connectSubscriber } from "../support/topic-subscriber.ts";

const ALICE = { id: "alice", type: 1 } as const;

/** Returns the names of the topics of `uid` that any node is subscribed to. */
async function topicsOf(
  { primaries }: RedisClusterServers,
  uid: string,
): Promise<readonly string[]> {
  const topics = await Promise.all(
    primaries.map((primary) => primary.client().call("PUBSUB", "SHARDCHANNELS")),
  );
  return (topics as string[][])
    .flat()
    .filter((name) => name.endsWith(uid) || name.includes(`${uid}}`));
}

t.test(
  "a message or stream that a session has read is not pushed again when its publication arrives late",
  async (t) => {
    const servers = await startRedisCluster(t);
    const settings = { JINDOU_REDIS_URL: servers.url };
    const [firstNode, secondNode] = await Promise.all([
      spawnBroker(t, { ...settings, JINDOU_AUTH_CLIENTS: "none" }),
      spawnBroker(t, { ...settings, JINDOU_AUTH_CLIENTS: "none" }),
    ]);
    const before = await connectNative(t, { port: firstNode.clientPort, uid: "bob" });
    const captured: [name: string, frame: Buffer][] = [];
    const subscriber = await connectSubscriber(t, servers.url, (name, frame) =>
      captured.push([name, Buffer.from(frame)]),
    );
    const topics = await topicsOf(servers, "bob");
    t.not(topics.length, 0, "the node is subscribed to topics of bob");
    for (const name of topics) await subscriber.ssubscribe(name);
    await before.disconnect();

    const post = async (path: string, body: unknown) =>
      t.equal((await firstNode.call(path, body)).status, 200, path);
    const send = (text: string) =>
      post("/message/send", {
        ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
        payload: textPayload(text),
      });
    const event = (type: string, data: string) =>
      post("/event", {
        ...{ channel_id: "bob", channel_type: 1, from_uid: "alice" },
        ...{ client_msg_no: "s", event: { type, data, timestamp: Date.now() } },
      });
    await send("first");
    await event("___TextMessageStart", "{}");
    await event("___TextMessageContent", "some ");
    await event("___TextMessageContent", "words");
    while (captured.length < 5) await new Promise((done) => setTimeout(done, 5));
    const late = captured.slice();

    const bob = await connectNative(t, {
      ...{ port: secondNode.clientPort, uid: "bob" },
      resume: [{ channel: ALICE, lastSeq: 0, lastId: 0 }],
    });
    await bob.waitFor(() => bob.pushesOf("stream").length > 0, "the stream");
    const publisher = new Cluster(servers.url.split(","));
    t.teardown(() => publisher.disconnect());
    for (const [name, frame] of late) await publisher.spublish(name, frame);
    await event("___TextMessageContent", ", and more");
    await send("last");
    const texts = () => bob.messages.map((message) => textOf(message));
    await bob.waitFor(() => texts().includes("last"), "the last message");
    await bob.waitFor(() => bob.events.length > 0, "the last event");
    t.same(
      bob.messages.map(({ messageSeq }) => messageSeq),
      [1, 2, 3],
      "each message is pushed once and in order",
    );
    t.same(
      bob.events.map(({ data, stream }) => [stream?.index, data]),
      [[3, ", and more"]],
      "only stream events after the snapshot are pushed",
    );
  },
);

t.test(
  "a message that the client already has is not pushed again after the node's subscriber connection is cut",
  async (t) => {
    const redis = await startRedis(t);
    const raw = redis.client();
    const settings = { JINDOU_REDIS_URL: redis.url };
    const [firstNode, secondNode] = await Promise.all([
      spawnBroker(t, { ...settings, JINDOU_AUTH_CLIENTS: "none" }),
      spawnBroker(t, { ...settings, JINDOU_AUTH_CLIENTS: "none" }),
    ]);
    const send = async (text: string) => {
      const { status } = await firstNode.call("/message/send", {
        ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
        payload: textPayload(text),
      });
      t.equal(status, 200, text);
    };
    const before = await connectNative(t, { port: firstNode.clientPort, uid: "bob" });
    for (const text of ["first", "second", "third"]) await send(text);
    await before.waitFor(({ messages }) => messages.length === 3);
    const lastId = before.messages.at(-1)?.messageId ?? 0;
    before.kill();
    const bob = await connectNative(t, {
      ...{ port: secondNode.clientPort, uid: "bob" },
      resume: [{ channel: ALICE, lastSeq: 3, lastId }],
    });
    await bob.ping();
    await raw.call("CLIENT", "KILL", "TYPE", "pubsub");
    await send("last");
    const texts = () => bob.messages.map((message) => textOf(message));
    await bob.waitFor(() => texts().includes("last"), "the last message");
    t.same(texts(), ["last"], "only the new message is pushed");
  },
);
