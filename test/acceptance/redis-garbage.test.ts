// Garbage on the channels of Redis: real frames of every kind are captured, damaged and published
// to every topic that a node is subscribed to. The node survives, counts the frames it cannot read,
// and keeps delivering in order. The test does not know the frame format. JINDOU_TEST_GARBAGE sets
// the number of frames, and JINDOU_TEST_SEED repeats a run.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import type { Message } from "../../src/broker/model.ts";
import { type ChildBroker, spawnBroker, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, textOf } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { type RedisServer, startRedis } from "../support/redis.ts";

const FRAMES = Number(process.env.JINDOU_TEST_GARBAGE ?? 20_000);
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const BATCH = 100;
const TIMEOUT_MS = 120_000;
const TEAM = { id: "team", type: 2 } as const;
const BOB = { id: "bob", type: 1 } as const;
const SETTINGS = {
  JINDOU_AUTH_CLIENTS: "none",
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
};

/**
 * Kinds of topics, recognised by the hash tag and a part of the name: topics of groups, of users
 * and of the presence of users, and the node's own topic for marks.
 */
const TOPIC_KINDS = ["c:topic", "u:topic", "u:presence", "m:mark"];

/** A captured publication. */
interface Publication {
  readonly name: string;
  readonly frame: Buffer;
}

t.setTimeout(60_000 + FRAMES * 30);

t.test(
  `a node survives ${FRAMES} damaged frames on its topics and delivers messages in order`,
  async (t) => {
    t.comment(`seed ${SEED}`);
    const redis = await startRedis(t);
    const node = await spawnBroker(t, {
      ...SETTINGS,
      JINDOU_REDIS_URL: redis.url,
    });
    t.teardown(() => {
      if (!t.passing()) t.comment(node.output().slice(-3000));
    });
    const clients = await connectUsers(t, node);
    const captured = await capture(redis, () => publishAllKinds(t, node, clients));
    t.ok(captured.length >= 20, `${captured.length} frames were captured`);

    const random = new Random(SEED);
    const publisher = redis.client();
    const names = [...new Set(captured.map(({ name }) => name))];
    const published = new Map(TOPIC_KINDS.map((kind) => [kind, 0]));
    const texts: string[] = [];
    for (let count = 0; count < FRAMES; count += BATCH) {
      const pipeline = publisher.pipeline();
      for (let at = 0; at < BATCH; at++) {
        const { name, frame } = random.pick(captured);
        const topic = random.below(4) === 0 ? random.pick(names) : name;
        pipeline.spublish(topic, damaged(random, frame, captured));
        const kind = kindOf(topic);
        published.set(kind, (published.get(kind) ?? 0) + 1);
      }
      await pipeline.exec();
      texts.push(`meanwhile ${count}`);
      await sendToAll(clients, texts.at(-1) ?? "");
    }
    t.comment(JSON.stringify([...published]));
    t.same([...published.keys()], TOPIC_KINDS, "the test knows every kind of topic");
    for (const [kind, count] of published)
      t.ok(count > FRAMES / 50, `${count} damaged frames were published to topics of kind ${kind}`);
    await assertDelivered(t, clients, texts);
    t.equal(node.process.exitCode, null, "the node still runs");
    t.equal((await node.call("/readyz")).status, 200, "the node is ready");
    await assertReports(t, node);
  },
);

t.test("a frame with a forged seq or message id neither delays nor hides a message", async (t) => {
  const redis = await startRedis(t);
  const settings = { ...SETTINGS, JINDOU_REDIS_URL: redis.url };
  const node = await spawnBroker(t, settings);
  const clients = await connectUsers(t, node);
  const publisher = redis.client();
  const texts: string[] = [];
  const send = async () => {
    texts.push(`message ${texts.length}`);
    await sendToAll(clients, texts.at(-1) ?? "");
  };
  for (const forge of forgeries()) {
    const fresh = await capture(redis, send);
    for (const { name, frame } of fresh) await publisher.spublish(name, forge(frame));
    await send();
  }
  await send();
  await assertDelivered(t, clients, texts);
  t.equal(node.process.exitCode, null, "the node still runs");
  const reports = await rejectionCounts(node);
  t.ok((reports.get("disproved") ?? 0) > 0, "frames that contradict the store are counted");
  t.ok(await repairsEnd(node), "the node does not keep reading from the store");
});

/**
 * Returns true if at least one of ten periods of half a second passes without a repair. The last
 * frames may cause a few repairs before that.
 */
async function repairsEnd(node: ChildBroker): Promise<boolean> {
  for (let round = 0; round < 10; round++) {
    const repairs = await metric(node, "jindou_cluster_repairs_total");
    await pause(500);
    if ((await metric(node, "jindou_cluster_repairs_total")) === repairs) return true;
  }
  return false;
}

interface Clients {
  readonly alice: NativeClient;
  readonly bob: NativeClient;
}

async function connectUsers(t: Test, node: ChildBroker): Promise<Clients> {
  const subscribers = ["alice", "bob"];
  await node.call("/channel", {
    ...{ channel_id: TEAM.id, channel_type: TEAM.type, subscribers },
  });
  const options = { port: node.clientPort, timeoutMs: TIMEOUT_MS };
  const [alice, bob] = await Promise.all([
    connectNative(t, { ...options, uid: "alice" }),
    connectNative(t, { ...options, uid: "bob" }),
  ]);
  await alice.watch(["bob", "carol"]);
  return { alice, bob };
}

/**
 * Returns everything that is published while `act` runs. Subscribes to all topics that have a
 * subscriber.
 */
async function capture(
  redis: RedisServer,
  act: () => Promise<void>,
): Promise<readonly Publication[]> {
  const listener = redis.client();
  const captured: Publication[] = [];
  listener.on("smessageBuffer", (name: Buffer, frame: Buffer) =>
    captured.push({ name: name.toString(), frame }),
  );
  const topics = await redis.client().call("PUBSUB", "SHARDCHANNELS");
  await listener.ssubscribe(...(topics as string[]));
  await act();
  await listener.ping(); // the reply follows all publications
  listener.disconnect();
  return captured;
}

/** Makes the node publish every kind of frame once or twice. */
async function publishAllKinds(t: Test, node: ChildBroker, { alice, bob }: Clients): Promise<void> {
  const ok = async (path: string, body: unknown) => {
    const { status, body: response } = await node.call(path, body);
    if (status !== 200)
      throw new Error(`${path} responded with ${status}: ${JSON.stringify(response)}`);
  };
  for (const channel of [TEAM, BOB]) {
    await alice.send(channel, "first");
    const atOnce = ["one", "two", "three"]; // the three messages are published as one frame
    await Promise.all(atOnce.map((text) => alice.send(channel, text)));
    await alice.send(channel, "unstored", { noPersist: true });
    await alice.send(channel, "command", { syncOnce: true });
    const address = { channel_id: channel.id, channel_type: channel.type };
    const event = (type: string, data: string) =>
      ok("/event", {
        ...{ ...address, client_msg_no: `s-${channel.id}`, from_uid: "alice" },
        event: { type, data, timestamp: Date.now() },
      });
    await event("___TextMessageStart", "{}");
    await event("___TextMessageContent", "some words");
    await event("___ToolCallStart", "{}");
    await event("___TextMessageContent", " and more");
    await event("___TextMessageEnd", "");
    await event("custom", "{}");
  }
  await ok("/message/send", {
    ...{ header: { sync_once: 1, no_persist: 1 }, from_uid: "alice" },
    ...{ channel_id: TEAM.id, channel_type: TEAM.type, subscribers: ["bob"] },
    payload: textPayload("for bob"),
  });
  await alice.changeConversation(BOB, { kind: "read", seq: 1 });
  await ok("/channel/subscriber_add", {
    ...{ channel_id: TEAM.id, channel_type: TEAM.type },
    subscribers: ["carol"],
  });
  await ok("/channel/subscriber_remove", {
    ...{ channel_id: TEAM.id, channel_type: TEAM.type },
    subscribers: ["carol"],
  });
  for (const token of ["one", "two"])
    await ok("/user/token", { uid: "bob", token, device_flag: 2 });
  const twin = {
    port: node.clientPort,
    uid: "bob",
    flag: 1,
    level: 1,
  } as const;
  const first = await connectNative(t, twin);
  const second = await connectNative(t, twin); // kicks the first device
  await first.closed;
  await second.disconnect();
  const carol = await connectNative(t, { port: node.clientPort, uid: "carol" });
  await carol.disconnect();
  await bob.ping();
}

function kindOf(topic: string): string {
  const [, tag, part] = /\{(\w)[^}]*\}:(\w+)/.exec(topic) ?? [];
  return `${tag}:${part}`;
}

/** Sends a message to the group and one to bob. Resolves when both are acknowledged. */
async function sendToAll({ alice }: Clients, text: string): Promise<void> {
  await Promise.all([alice.send(TEAM, text), alice.send(BOB, text)]);
}

/**
 * Asserts that bob was pushed all texts in order. Repeats are ignored, because a forged copy of an
 * earlier message may be delivered. Then asserts that a command is still delivered.
 */
async function assertDelivered(
  t: Test,
  { alice, bob }: Clients,
  texts: readonly string[],
): Promise<void> {
  const shown = (type: number) => {
    const messages = bob.messages.filter(({ channel }) => channel.type === type);
    const expected = new Set(texts);
    return [...new Set(messages.map(readableText))].filter((text) => expected.has(text));
  };
  for (const type of [TEAM.type, BOB.type]) {
    const isComplete = () => shown(type).length >= texts.length;
    await bob.waitFor(isComplete, `all messages of type ${type}`).catch(() => {});
    t.same(shown(type), texts, `the messages of channel type ${type} arrive in order`);
  }
  await alice.send(BOB, "command after", { syncOnce: true });
  await bob.waitFor(
    () => bob.commands.some(({ message }) => readableText(message) === "command after"),
    "the command",
  );
}

/** Asserts that dropped frames are counted by reason, and logged at a bounded rate. */
async function assertReports(t: Test, node: ChildBroker): Promise<void> {
  const counts = await rejectionCounts(node);
  for (const reason of ["unreadable", "misplaced"])
    t.ok((counts.get(reason) ?? 0) > FRAMES / 50, `${reason} frames are counted`);
  t.comment(JSON.stringify([...counts]));
  const lines = node
    .output()
    .split("\n")
    .filter((line) => /"Dropped an? /.test(line));
  t.ok(lines.length > 0, "dropped frames are logged");
  t.ok(lines.length < FRAMES / 20, `only ${lines.length} lines are logged`);
}

async function rejectionCounts(node: ChildBroker): Promise<ReadonlyMap<string, number>> {
  const { body } = await node.call("/metrics");
  const rows = String(body).matchAll(
    /^jindou_cluster_frames_rejected_total\{reason="(\w+)"\} (\d+)$/gm,
  );
  return new Map([...rows].map(([, reason, count]) => [reason ?? "", Number(count)]));
}

async function metric(node: ChildBroker, name: string): Promise<number> {
  const { body } = await node.call("/metrics");
  return Number(new RegExp(`^${name} (\\d+)$`, "m").exec(body)?.[1]);
}

/**
 * Returns the text of a message. Returns an empty string if the payload is damaged, because a frame
 * with a damaged payload is delivered like any other.
 */
function readableText(message: Message): string {
  try {
    return String(textOf(message));
  } catch {
    return "";
  }
}

const NUMBERS = [
  ...[0, -1, 1, 0.5, 2 ** 31, 2 ** 53, 1e300],
  ...[Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY],
];

/** Yields functions that change one or two of the numbers in a frame. */
function* forgeries(): Iterable<(frame: Buffer) => Buffer> {
  const changes: readonly ((value: number) => number)[] = [
    (value) => value + 1,
    (value) => value + 20_000,
    (value) => value + 2 ** 45,
    () => 1,
  ];
  for (let index = 0; index < 3; index++)
    for (const change of changes) yield (frame) => changed(frame, [index, change]);
  // These changes combine the next publication number with an id from long ago or from days ahead.
  // A frame whose id is close to the current time could be a real frame.
  for (const change of changes.slice(2))
    yield (frame) => changed(frame, [0, (value) => value + 1], [1, change]);
}

/**
 * Changes some of the first three numbers in a frame, each named by its index. A number is 8 bytes
 * that encode a positive integer as a double.
 */
function changed(
  frame: Buffer,
  ...changes: readonly (readonly [number, (value: number) => number])[]
): Buffer {
  const bytes = Buffer.from(frame);
  const places: number[] = [];
  for (let at = 0; at + 8 <= bytes.length && places.length < 3; at++) {
    const value = bytes.readDoubleBE(at);
    if (!Number.isSafeInteger(value) || value < 1) continue;
    places.push(at);
    at += 7;
  }
  for (const [index, change] of changes) {
    const at = places[index];
    if (at !== undefined) bytes.writeDoubleBE(change(bytes.readDoubleBE(at)), at);
  }
  return bytes;
}

/** Returns a damaged frame. */
function damaged(random: Random, frame: Buffer, all: readonly Publication[]): Buffer {
  const bytes = Buffer.from(frame);
  const at = random.below(bytes.length);
  switch (random.below(8)) {
    case 0:
      return bytes.subarray(0, at);
    case 1:
      return Buffer.concat([bytes, random.bytes(random.below(64))]);
    case 2:
      return Buffer.from(random.bytes(random.below(80)));
    case 3: {
      const { frame: another } = random.pick(all);
      return Buffer.concat([bytes.subarray(0, at), another.subarray(random.below(another.length))]);
    }
    case 4: // a wrong number at a random place
      for (let i = 0; i <= random.below(2); i++)
        if (bytes.length >= 10)
          bytes.writeDoubleBE(
            random.pick(NUMBERS),
            2 + random.below(Math.min(bytes.length - 9, 33)),
          );
      return bytes;
    case 5: // a wrong number where numbers are likely
      if (bytes.length >= 26) bytes.writeDoubleBE(random.pick(NUMBERS), 2 + 8 * random.below(3));
      return bytes;
    default:
      for (let i = 0; i <= random.below(4); i++)
        bytes[random.below(bytes.length)] = random.below(256);
      return bytes;
  }
}
