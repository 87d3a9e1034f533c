// Garbage on Redis' channels: real frames of every kind are captured, damaged and published to
// every topic that a node listens to. The node lives, counts what it cannot read, and goes on
// delivering in order. Knows no byte of a frame. JINDOU_TEST_GARBAGE sets how many frames,
// JINDOU_TEST_SEED which.

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
 * A group's, a user's, what those hear who watch a user, and the node's own for marks: by tag and
 * part of the name.
 */
const TOPIC_KINDS = ["c:topic", "u:topic", "u:presence", "m:mark"];

/** A frame as it was published. */
interface Captured {
  readonly name: string;
  readonly frame: Buffer;
}

t.setTimeout(60_000 + FRAMES * 30);

t.test(
  `a node lives through ${FRAMES} damaged frames on its topics and delivers in order`,
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
    const people = await gather(t, node);
    const captured = await capture(redis, () => act(t, node, people));
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
        const to = random.below(4) === 0 ? random.pick(names) : name;
        pipeline.spublish(to, damaged(random, frame, captured));
        const kind = kindOf(to);
        published.set(kind, (published.get(kind) ?? 0) + 1);
      }
      await pipeline.exec();
      texts.push(`meanwhile ${count}`);
      await speak(people, texts.at(-1) ?? "");
    }
    t.comment(JSON.stringify([...published]));
    t.same([...published.keys()], TOPIC_KINDS, "no topic of another kind");
    for (const [kind, count] of published) t.ok(count > FRAMES / 50, `${kind}: ${count} frames`);
    await arrive(t, people, texts);
    t.equal(node.process.exitCode, null, "the node lives");
    t.equal((await node.call("/readyz")).status, 200, "and is ready");
    await judgeReports(t, node);
  },
);

t.test("a frame that claims another place in its channel holds up and hides nothing", async (t) => {
  const redis = await startRedis(t);
  const settings = { ...SETTINGS, JINDOU_REDIS_URL: redis.url };
  const node = await spawnBroker(t, settings);
  const people = await gather(t, node);
  const publisher = redis.client();
  const texts: string[] = [];
  const say = async () => {
    texts.push(`place ${texts.length}`);
    await speak(people, texts.at(-1) ?? "");
  };
  for (const forge of forgeries()) {
    const fresh = await capture(redis, say);
    for (const { name, frame } of fresh) await publisher.spublish(name, forge(frame));
    await say();
  }
  await say();
  await arrive(t, people, texts);
  t.equal(node.process.exitCode, null, "the node lives");
  const reports = await rejected(node);
  t.ok((reports.get("disproved") ?? 0) > 0, "what the store denied is counted");
  const repairs = await metric(node, "jindou_cluster_repairs_total");
  await pause(500);
  const later = await metric(node, "jindou_cluster_repairs_total");
  t.equal(later, repairs, "nothing is read again and again");
});

interface People {
  readonly alice: NativeClient;
  readonly bob: NativeClient;
}

async function gather(t: Test, node: ChildBroker): Promise<People> {
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

/** Everything that is published while `act` runs, and one frame at least for each topic. */
async function capture(redis: RedisServer, act: () => Promise<void>): Promise<readonly Captured[]> {
  const listener = redis.client();
  const captured: Captured[] = [];
  listener.on("smessageBuffer", (name: Buffer, frame: Buffer) =>
    captured.push({ name: name.toString(), frame }),
  );
  const found = await redis.client().call("PUBSUB", "SHARDCHANNELS");
  await listener.ssubscribe(...(found as string[]));
  await act();
  await listener.ping(); // behind what was published
  listener.disconnect();
  return captured;
}

/** Whatever makes a node publish, once or twice. */
async function act(t: Test, node: ChildBroker, { alice, bob }: People): Promise<void> {
  const ok = async (path: string, body: unknown) => {
    const answer = await node.call(path, body);
    if (answer.status !== 200)
      throw new Error(`${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
  };
  for (const channel of [TEAM, BOB]) {
    await alice.send(channel, "first");
    const atOnce = ["one", "two", "three"]; // come as one frame
    await Promise.all(atOnce.map((text) => alice.send(channel, text)));
    await alice.send(channel, "unkept", { noPersist: true });
    await alice.send(channel, "command", { syncOnce: true });
    const place = { channel_id: channel.id, channel_type: channel.type };
    const event = (type: string, data: string) =>
      ok("/event", {
        ...{ ...place, client_msg_no: `s-${channel.id}`, from_uid: "alice" },
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
  const second = await connectNative(t, twin); // kicks the first
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

/** One message to each of the channels, acknowledged. */
async function speak({ alice }: People, text: string): Promise<void> {
  await Promise.all([alice.send(TEAM, text), alice.send(BOB, text)]);
}

/**
 * All of them, each first after the one before it; both clients have what they are to have. A
 * forged copy of an earlier one may stand between.
 */
async function arrive(t: Test, { alice, bob }: People, texts: readonly string[]): Promise<void> {
  const shown = (type: number) => {
    const all = bob.messages.filter(({ channel }) => channel.type === type);
    const wanted = new Set(texts);
    return [...new Set(all.map(readable))].filter((text) => wanted.has(text));
  };
  for (const type of [TEAM.type, BOB.type]) {
    const isThere = () => shown(type).length >= texts.length;
    await bob.waitFor(isThere, `all messages of type ${type}`).catch(() => {});
    t.same(shown(type), texts, `in order, of type ${type}`);
  }
  await alice.send(BOB, "command after", { syncOnce: true });
  await bob.waitFor(
    () => bob.commands.some(({ message }) => readable(message) === "command after"),
    "the command",
  );
}

/** What was dropped is counted by why, and logged at a bounded rate. */
async function judgeReports(t: Test, node: ChildBroker): Promise<void> {
  const counts = await rejected(node);
  for (const reason of ["unreadable", "misplaced"])
    t.ok((counts.get(reason) ?? 0) > FRAMES / 50, `${reason} ones are counted`);
  t.comment(JSON.stringify([...counts]));
  const lines = node
    .output()
    .split("\n")
    .filter((line) => line.includes("dropped"));
  t.ok(lines.length > 0, "it is logged");
  t.ok(lines.length < FRAMES / 20, `${lines.length} lines`);
}

async function rejected(node: ChildBroker): Promise<ReadonlyMap<string, number>> {
  const { body } = await node.call("/metrics");
  const rows = String(body).matchAll(
    /^jindou_cluster_frames_rejected_total\{reason="(\w+)"\} (\d+)$/gm,
  );
  return new Map([...rows].map(([, why, count]) => [why ?? "", Number(count)]));
}

async function metric(node: ChildBroker, name: string): Promise<number> {
  const { body } = await node.call("/metrics");
  return Number(new RegExp(`^${name} (\\d+)$`, "m").exec(body)?.[1]);
}

/** A frame with damaged content may be delivered as well as a right one: nobody can tell. */
function readable(message: Message): string {
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

/** Ways to change the numbers that stand in a frame, one or two at a time. */
function* forgeries(): Iterable<(frame: Buffer) => Buffer> {
  const changes: readonly ((value: number) => number)[] = [
    (value) => value + 1,
    (value) => value + 20_000,
    (value) => value + 2 ** 45,
    () => 1,
  ];
  for (let one = 0; one < 3; one++)
    for (const change of changes) yield (frame) => changed(frame, [one, change]);
  // The next number and an id of long ago or of days ahead. One of about now is a message as any
  // node may send it.
  for (const change of changes.slice(2))
    yield (frame) => changed(frame, [0, (value) => value + 1], [1, change]);
}

/** The numbers are looked for: 8 bytes that are a whole number of no small size. */
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
  for (const [which, change] of changes) {
    const at = places[which];
    if (at !== undefined) bytes.writeDoubleBE(change(bytes.readDoubleBE(at)), at);
  }
  return bytes;
}

/** One frame that nobody publishes. */
function damaged(random: Random, frame: Buffer, others: readonly Captured[]): Buffer {
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
      const other = random.pick(others).frame;
      return Buffer.concat([bytes.subarray(0, at), other.subarray(random.below(other.length))]);
    }
    case 4: // a number that lies
      for (let i = 0; i <= random.below(2); i++)
        if (bytes.length >= 10)
          bytes.writeDoubleBE(
            random.pick(NUMBERS),
            2 + random.below(Math.min(bytes.length - 9, 33)),
          );
      return bytes;
    case 5: // the same where numbers are likely to stand
      if (bytes.length >= 26) bytes.writeDoubleBE(random.pick(NUMBERS), 2 + 8 * random.below(3));
      return bytes;
    default:
      for (let i = 0; i <= random.below(4); i++)
        bytes[random.below(bytes.length)] = random.below(256);
      return bytes;
  }
}
