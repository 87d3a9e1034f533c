// What nodes make good after a cut of their subscriptions: whatever was published meanwhile and
// however little of it the store's hints name; and one channel that cannot be read costs nobody
// else anything.

import t from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import {
  channelKey,
  groupTopic,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  userTopic,
} from "../../../src/broker/model.ts";
import type { Channels } from "../../../src/cluster/redis/topics/channels.ts";
import { Subscriptions } from "../../../src/cluster/redis/topics/subscriptions.ts";
import { WIRE_VERSION } from "../../../src/redis/wire.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import { FeedLog } from "./feed-log.ts";
import { bench, hear, listened, lose, nodeChannels, oneTopic } from "./sequencer-bench.ts";
import { group, person, range, startTopicNode, type TopicNode, until } from "./topic-nodes.ts";

const MINUTES = 600_000;
/** Long after what a log has. */
const LATER = messageTimeMs(0) + MINUTES;

const redis = await startRedis(t);
const admin = redis.client();
let worlds = 0;

/** Nodes of a cluster of the test's own. */
function world() {
  const prefix = `w${worlds++}`;
  return redisSettings(redis.url, { prefix });
}

const cut = () => admin.call("CLIENT", "KILL", "TYPE", "pubsub");

const missedBy = ({ events }: TopicNode): number =>
  events.filter(({ kind }) => kind === "missed").length;

t.test("a barrier waits for what was missed", async (t) => {
  const settings = world();
  let [isHeld, asked] = [true, 0];
  const one = await startTopicNode(t, settings, {
    onAsked: async () => {
      asked += 1;
      await until(() => !isHeld, "let go", 20_000);
    },
  });
  const sender = await startTopicNode(t, settings);
  await one.topics.listen(userTopic("b"));
  await cut();
  await sender.send(person("b"), "a");
  await until(() => asked === 1, "it is back", 20_000);
  let isOver = false;
  const barrier = one.topics.barrier().then(() => {
    isOver = true;
    return one.seqs("1:a@b");
  });
  await one.link.ping(); // a mark takes no longer
  await one.link.ping();
  t.notOk(isOver);
  isHeld = false;
  t.same(await barrier, [1]);
});

for (const channel of [group("g"), person("b")])
  t.test(
    `${channel.id}: an unstored message that comes while what was missed is read is left out`,
    async (t) => {
      const settings = world();
      let [isHeld, reads] = [true, 0];
      const one = await startTopicNode(t, settings, {
        onRead: async () => {
          reads += 1;
          await until(() => !isHeld, "let go", 20_000);
        },
      });
      const sender = await startTopicNode(t, settings);
      const topic = channel.type === 2 ? groupTopic("g") : userTopic("b");
      const key = channelKey(channel, "a");
      const unstored = { header: { noPersist: true, redDot: false } };
      await one.topics.listen(topic);
      await sender.send(channel, "a");
      await until(() => one.seqs(key).length === 1, "heard");
      await cut();
      await sender.send(channel, "a");
      await until(() => reads === 1, "it is back, and reads", 20_000);
      await sender.send(channel, "a");
      await sender.send(channel, "a", unstored); // its user may be shown it at another node meanwhile, and come here then
      await sender.send(channel, "a");
      for (const _ of range(1, 2)) await one.link.ping(); // all is heard
      t.same(one.seqs(key), [1]);
      isHeld = false;
      await until(() => one.seqs(key).includes(4), "caught up");
      await one.topics.barrier();
      t.same(one.seqs(key), [1, 2, 3, 4]);
      await sender.send(channel, "a", unstored);
      await one.topics.barrier();
      t.same(one.seqs(key), [1, 2, 3, 4, 0], "afterwards it comes");
    },
  );

t.test("a message that cannot be read is left out", async (t) => {
  const settings = world();
  const one = await startTopicNode(t, settings);
  const sender = await startTopicNode(t, settings);
  for (const topic of [groupTopic("bad"), groupTopic("good"), userTopic("b")])
    await one.topics.listen(topic);
  await sender.send(group("bad"), "a");
  await one.topics.barrier();
  await cut();
  await sender.send(group("bad"), "a");
  await ofTheFuture(one, "2:bad", 3);
  await sender.send(group("good"), "a");
  await until(() => missedBy(one) === 1, "made good", 20_000);
  await one.topics.barrier();
  t.same(one.seqs("2:bad"), [1, 2], "what can be read is told");
  await cut();
  for (const _ of range(1, 3)) await sender.send(group("good"), "a");
  await until(() => missedBy(one) === 2, "again", 20_000);
  await one.topics.listen(groupTopic("bad"));
  await one.topics.barrier();
  t.same(one.seqs("2:good"), range(1, 4));
  await sender.send(group("bad"), "a");
  await until(() => one.seqs("2:bad").includes(4), "goes on");
});

t.test("a channel that is none costs nobody else anything", async (t) => {
  const settings = world();
  const one = await startTopicNode(t, settings);
  const sender = await startTopicNode(t, settings);
  for (const id of ["bad", "good"]) await one.topics.listen(groupTopic(id));
  await one.topics.listen(userTopic("b"));
  await sender.send(group("bad"), "a");
  await admin.set(one.link.keys.channel("head", "2:bad"), "no hash");
  await cut();
  await sender.send(group("good"), "a");
  await until(() => missedBy(one) === 1, "made good", 20_000);
  await one.topics.listen(groupTopic("bad"));
  await one.topics.barrier();
  t.same(one.seqs("2:good"), [1]);
});

t.test("numbers that come again in a group of which nothing was told are noticed", async (t) => {
  const settings = world();
  const one = await startTopicNode(t, settings);
  const sender = await startTopicNode(t, settings);
  for (const _ of range(1, 5)) await sender.send(group("back"), "a");
  await one.topics.listen(groupTopic("back"));
  const [log, head] = ["log", "head"].map((part) => one.link.keys.channel(part, "2:back"));
  const lost = await admin.xrange(`${log}`, "4", "5");
  await admin.xdel(`${log}`, ...lost.map(([place]) => place));
  const [[last] = ["0-0"]] = await admin.xrevrange(`${log}`, "+", "-");
  await admin.xsetid(`${log}`, last);
  await admin.hset(`${head}`, { seq: "3", pub: "3" });
  for (const _ of range(1, 3)) await sender.send(group("back"), "a");
  await until(() => one.seqs("2:back").length === 3, "told");
  t.same(one.seqs("2:back"), [4, 5, 6]);
});

t.test("numbers that go back in a channel of which nothing was heard are delivered", async (t) => {
  let sentMs = 0;
  const log = new FeedLog("personal", () => sentMs);
  const one = bench(t, log);
  const channels = nodeChannels(one, log);
  channels.addTopic(listened("a"));
  for (const _ of range(1, 8)) log.message();
  sentMs = 1e6;
  log.loseLast(2); // a fail-over there; this node's subscriptions are whole
  const frames = range(1, 5).map(() => log.message());
  for (const frame of frames) hear(channels, frame);
  await one.catchUpQueue.settled();
  t.same(one.seqs(), range(7, 11));
});

t.test("channels that missed nothing cost one read of a number", async (t) => {
  const log = new FeedLog("personal", () => 0);
  const { one, channels, topic } = oneTopic(t, log);
  hear(channels, log.message());
  lose(channels, topic, LATER);
  const late = log.message();
  log.isListed = false;
  topic.isUp = true;
  const reads = log.reads;
  hear(channels, late);
  await Promise.all(channels.restore([topic]));
  t.same(one.seqs(), [1, 2]);
  t.equal(log.reads, reads + 1);
});

t.test("a channel that is away holds up its topic for a while only", async (t) => {
  const log = new FeedLog("personal", () => 0);
  const { one, channels, topic } = oneTopic(t, log);
  hear(channels, log.message());
  lose(channels, topic, LATER);
  log.message();
  log.isListed = false;
  topic.isUp = true;
  let isAway = true;
  log.onRead = () => {
    if (isAway) throw new BrokerError("unavailable");
  };
  await Promise.all(channels.restore([topic]));
  await one.catchUpQueue.settled();
  hear(channels, log.message());
  t.same(one.seqs(), [1], "nothing out of turn");
  isAway = false;
  one.catchUpQueue.retryNow();
  await one.catchUpQueue.settled();
  t.same(one.seqs(), [1, 2, 3]);
});

t.test("a sender whose clock is behind is heard after a cut", async (t) => {
  let now = 1e6;
  const log = new FeedLog("personal", () => now - 30_000);
  const { one, channels, topic } = oneTopic(t, log, { now: () => now });
  now += 60_000;
  lose(channels, topic, now);
  log.message(); // 30 s before the loss, by the sender's clock
  topic.isUp = true;
  await Promise.all(channels.restore([topic]));
  t.same(one.seqs(), [1]);
});

t.test("the end of a long personal stream is told", async (t) => {
  const log = new FeedLog("personal", () => 0);
  const { one, channels, topic } = oneTopic(t, log, { uid: "b" });
  for (const frame of [log.start("s"), log.begin("s")]) hear(channels, frame);
  lose(channels, topic, LATER);
  log.content("s", "world");
  log.end("s");
  log.isListed = false; // the stream's message is no longer news
  topic.isUp = true;
  await Promise.all(channels.restore([topic]));
  const told = one.told.flatMap((event) =>
    event.kind === "event" ? [[event.event.type, event.event.data]] : [],
  );
  t.same(told, [
    [STREAM_START, "{}"],
    [STREAM_CONTENT, "world"],
    [STREAM_END, ""],
  ]);
});

for (const opens of [true, false])
  t.test(
    `a topic lost while it is opened comes back, though its opener ${opens ? "is late" : "fails"}`,
    async (t) => {
      const log = new FeedLog("group");
      const one = bench(t, log);
      const topics = topicsByHand(nodeChannels(one, log));
      t.teardown(() => topics.close());
      const name = groupTopic("g");
      let answer = () => {};
      log.onRead = () =>
        new Promise((resolve, reject) => {
          const unavailable = new BrokerError("unavailable");
          answer = opens ? resolve : () => reject(unavailable);
        });
      const opening = topics.listen(name);
      await until(() => log.reads === 1, "it is subscribed");
      log.onRead = () => {};
      topics.markLost([name], 1e6);
      const other = topics.listen(name);
      if (!opens) {
        answer();
        await t.rejects(opening, { code: "unavailable" });
      }
      topics.markResubscribed([name]);
      await other;
      if (opens) {
        answer();
        await opening;
      }
      await topics.listen(name);
      topics.get(name)?.sequencer?.accept(log.message());
      t.same(one.seqs(), [1]);
    },
  );

/** Topics whose subscriptions a test loses and brings back itself. */
function topicsByHand(channels: Channels): Subscriptions {
  return new Subscriptions({
    subscriber: { subscribe: async () => {}, unsubscribe() {} },
    ...{ channels, clock: () => 1e6, nameOf: (topic) => topic },
    ...{ unsubscribeDelayMs: 1000, maxDelayedUnsubscribes: 100, timeoutMs: 5000 },
    ...{ onError() {}, onRestored() {}, judgeUsers: async () => [] },
  });
}

/** As a newer build would have stored a message. */
async function ofTheFuture({ link }: TopicNode, key: string, seq: number): Promise<void> {
  const log = link.keys.channel("log", key);
  const head = link.keys.channel("head", key);
  const [[, fields] = ["", []]] = await admin.xrangeBuffer(log, "-", "+");
  const bytes = fields.map((field, at) => {
    if (String(fields[at - 1]) !== "r") return field;
    const record = Buffer.from(field);
    record[1] = WIRE_VERSION + 1;
    return record;
  });
  await admin.xadd(log, `${seq}-0`, ...bytes);
  await admin.hset(head, { seq: `${seq}`, pub: `${seq}` });
}
