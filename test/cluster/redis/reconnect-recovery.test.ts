// Recovery of nodes after a lost subscriber connection: everything that was published in the
// meantime is delivered, even if the store's lists of changed channels are incomplete. A channel
// that cannot be read does not affect others.

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
import { ChannelLog, TIME_MS } from "./channel-log.ts";
import {
  createChannels,
  createFixture,
  loseTopic,
  receive,
  subscription,
  withOneTopic,
} from "./sequencer-fixture.ts";
import { group, person, range, startTopicNode, type TopicNode, until } from "./topic-nodes.ts";

const MINUTES = 600_000;
/** Time long after all messages of a log. */
const LATER = messageTimeMs(0) + MINUTES;

const redis = await startRedis(t);
const admin = redis.client();
let worlds = 0;

/** Returns the settings of a new cluster. */
function newSettings() {
  const prefix = `w${worlds++}`;
  return redisSettings(redis.url, { prefix });
}

const cutSubscriptions = () => admin.call("CLIENT", "KILL", "TYPE", "pubsub");

const missedCount = ({ events }: TopicNode): number =>
  events.filter(({ kind }) => kind === "missed").length;

t.test("`barrier` resolves only after missed messages have been delivered", async (t) => {
  const settings = newSettings();
  let [isHeld, lists] = [true, 0];
  const receiver = await startTopicNode(t, settings, {
    onListChannels: async () => {
      lists += 1;
      await until(() => !isHeld, "the read is released", 20_000);
    },
  });
  const sender = await startTopicNode(t, settings);
  await receiver.topics.listen(userTopic("b"));
  await cutSubscriptions();
  await sender.send(person("b"), "a");
  await until(() => lists === 1, "the node reads the list", 20_000);
  let isDone = false;
  const barrier = receiver.topics.barrier().then(() => {
    isDone = true;
    return receiver.seqs("1:a@b");
  });
  await receiver.link.ping(); // longer than a barrier takes without missed messages
  await receiver.link.ping();
  t.notOk(isDone);
  isHeld = false;
  t.same(await barrier, [1]);
});

for (const channel of [group("g"), person("b")])
  t.test(
    `an unstored message is skipped if it arrives during a catch-up after a lost connection (channel type ${channel.type})`,
    async (t) => {
      const settings = newSettings();
      let [isHeld, reads] = [true, 0];
      const receiver = await startTopicNode(t, settings, {
        onRead: async () => {
          reads += 1;
          await until(() => !isHeld, "the read is released", 20_000);
        },
      });
      const sender = await startTopicNode(t, settings);
      const topic = channel.type === 2 ? groupTopic("g") : userTopic("b");
      const key = channelKey(channel, "a");
      const unstored = { header: { noPersist: true, redDot: false } };
      await receiver.topics.listen(topic);
      await sender.send(channel, "a");
      await until(() => receiver.seqs(key).length === 1, "the first message is delivered");
      await cutSubscriptions();
      await sender.send(channel, "a");
      await until(() => reads === 1, "the node reads missed messages", 20_000);
      await sender.send(channel, "a");
      await sender.send(channel, "a", unstored); // a session may receive this message on another node and then connect here
      await sender.send(channel, "a");
      for (const _ of range(1, 2)) await receiver.link.ping(); // all publications have arrived
      t.same(receiver.seqs(key), [1]);
      isHeld = false;
      await until(() => receiver.seqs(key).includes(4), "the node has caught up");
      await receiver.topics.barrier();
      t.same(receiver.seqs(key), [1, 2, 3, 4]);
      await sender.send(channel, "a", unstored);
      await receiver.topics.barrier();
      t.same(
        receiver.seqs(key),
        [1, 2, 3, 4, 0],
        "an unstored message is delivered after the catch-up",
      );
    },
  );

t.test("a missed message that cannot be read is skipped", async (t) => {
  const settings = newSettings();
  const receiver = await startTopicNode(t, settings);
  const sender = await startTopicNode(t, settings);
  for (const topic of [groupTopic("bad"), groupTopic("good"), userTopic("b")])
    await receiver.topics.listen(topic);
  await sender.send(group("bad"), "a");
  await receiver.topics.barrier();
  await cutSubscriptions();
  await sender.send(group("bad"), "a");
  await storeNewerFormat(receiver, "2:bad", 3);
  await sender.send(group("good"), "a");
  await until(() => missedCount(receiver) === 1, "the topics are restored", 20_000);
  await receiver.topics.barrier();
  t.same(receiver.seqs("2:bad"), [1, 2], "readable messages are delivered");
  await cutSubscriptions();
  for (const _ of range(1, 3)) await sender.send(group("good"), "a");
  await until(() => missedCount(receiver) === 2, "the topics are restored again", 20_000);
  await receiver.topics.listen(groupTopic("bad"));
  await receiver.topics.barrier();
  t.same(receiver.seqs("2:good"), range(1, 4));
  await sender.send(group("bad"), "a");
  await until(() => receiver.seqs("2:bad").includes(4), "the channel continues");
});

t.test("a channel with a damaged key in Redis does not delay other channels", async (t) => {
  const settings = newSettings();
  const receiver = await startTopicNode(t, settings);
  const sender = await startTopicNode(t, settings);
  for (const id of ["bad", "good"]) await receiver.topics.listen(groupTopic(id));
  await receiver.topics.listen(userTopic("b"));
  await sender.send(group("bad"), "a");
  await admin.set(receiver.link.keys.channel("head", "2:bad"), "not a hash");
  await cutSubscriptions();
  await sender.send(group("good"), "a");
  await until(() => missedCount(receiver) === 1, "the topics are restored", 20_000);
  await receiver.topics.listen(groupTopic("bad"));
  await receiver.topics.barrier();
  t.same(receiver.seqs("2:good"), [1]);
});

t.test(
  "messages that reuse lost seqs are delivered to a node that has received nothing from their group",
  async (t) => {
    const settings = newSettings();
    const receiver = await startTopicNode(t, settings);
    const sender = await startTopicNode(t, settings);
    for (const _ of range(1, 5)) await sender.send(group("back"), "a");
    await receiver.topics.listen(groupTopic("back"));
    const [log, head] = ["log", "head"].map((part) => receiver.link.keys.channel(part, "2:back"));
    const lostEntries = await admin.xrange(`${log}`, "4", "5");
    await admin.xdel(`${log}`, ...lostEntries.map(([place]) => place));
    const [[newestEntryId] = ["0-0"]] = await admin.xrevrange(`${log}`, "+", "-");
    await admin.xsetid(`${log}`, newestEntryId);
    await admin.hset(`${head}`, { seq: "3", pub: "3" });
    for (const _ of range(1, 3)) await sender.send(group("back"), "a");
    await until(() => receiver.seqs("2:back").length === 3, "the messages are delivered");
    t.same(receiver.seqs("2:back"), [4, 5, 6]);
  },
);

t.test(
  "messages that reuse lost seqs are delivered to a node that has received nothing from their personal channel",
  async (t) => {
    let now = TIME_MS;
    const log = new ChannelLog("personal", () => now);
    const fixture = createFixture(t, log);
    const channels = createChannels(fixture, log, { now: () => now });
    for (const _ of range(1, 8)) log.message();
    now += 30_000;
    channels.addTopic(subscription("a", { sinceMs: now }));
    log.loseLast(2); // a fail-over of the channel's server; this node's subscriptions are not affected
    const frames = range(1, 5).map(() => log.message());
    for (const frame of frames) receive(channels, frame);
    await fixture.catchUpQueue.settled();
    t.same(fixture.seqs(), range(7, 11));
  },
);

t.test(
  "a personal channel without missed messages costs a single read after a lost connection",
  async (t) => {
    const log = new ChannelLog("personal", () => 0);
    const { fixture, channels, topic } = withOneTopic(t, log);
    receive(channels, log.message());
    loseTopic(channels, topic, LATER);
    const late = log.message();
    log.isListed = false;
    topic.isUp = true;
    const reads = log.reads;
    receive(channels, late);
    await Promise.all(channels.restore([topic]));
    t.same(fixture.seqs(), [1, 2]);
    t.equal(log.reads, reads + 1);
  },
);

t.test("a topic is restored even if one of its channels cannot be read", async (t) => {
  const log = new ChannelLog("personal", () => 0);
  const { fixture, channels, topic } = withOneTopic(t, log);
  receive(channels, log.message());
  loseTopic(channels, topic, LATER);
  log.message();
  log.isListed = false;
  topic.isUp = true;
  let isAway = true;
  log.onRead = () => {
    if (isAway) throw new BrokerError("unavailable");
  };
  await Promise.all(channels.restore([topic]));
  await fixture.catchUpQueue.settled();
  receive(channels, log.message());
  t.same(fixture.seqs(), [1], "no message is delivered out of order");
  isAway = false;
  fixture.catchUpQueue.retryNow();
  await fixture.catchUpQueue.settled();
  t.same(fixture.seqs(), [1, 2, 3]);
});

t.test(
  "a missed message is delivered even if the clock of the sending node is 30 s slow",
  async (t) => {
    let now = TIME_MS;
    const log = new ChannelLog("personal", () => now - 30_000);
    const { fixture, channels, topic } = withOneTopic(t, log, { now: () => now });
    now += 60_000;
    loseTopic(channels, topic, now);
    log.message(); // 30 s before the loss, by the sender's clock
    topic.isUp = true;
    await Promise.all(channels.restore([topic]));
    t.same(fixture.seqs(), [1]);
  },
);

t.test("the missed end of a long-running stream in a personal channel is delivered", async (t) => {
  const log = new ChannelLog("personal", () => 0);
  const { fixture, channels, topic } = withOneTopic(t, log, { uid: "b" });
  for (const frame of [log.start("s"), log.begin("s")]) receive(channels, frame);
  loseTopic(channels, topic, LATER);
  log.content("s", "world");
  log.end("s");
  log.isListed = false; // the stream's message is too old for the list
  topic.isUp = true;
  await Promise.all(channels.restore([topic]));
  const events = fixture.delivered.flatMap((event) =>
    event.kind === "event" ? [[event.event.type, event.event.data]] : [],
  );
  t.same(events, [
    [STREAM_START, "{}"],
    [STREAM_CONTENT, "world"],
    [STREAM_END, ""],
  ]);
});

for (const succeeds of [true, false])
  t.test(
    `a subscription that is lost while it is being opened is restored, even if the first read ${succeeds ? "is late" : "fails"}`,
    async (t) => {
      const log = new ChannelLog("group");
      const fixture = createFixture(t, log);
      const topics = manualSubscriptions(createChannels(fixture, log));
      t.teardown(() => topics.close());
      const name = groupTopic("g");
      let finishRead = () => {};
      log.onRead = () =>
        new Promise((resolve, reject) => {
          const unavailable = new BrokerError("unavailable");
          finishRead = succeeds ? resolve : () => reject(unavailable);
        });
      const opening = topics.listen(name);
      await until(() => log.reads === 1, "the topic is subscribed");
      log.onRead = () => {};
      topics.markLost([name], TIME_MS);
      const secondCall = topics.listen(name);
      if (!succeeds) {
        finishRead();
        await t.rejects(opening, { code: "unavailable" });
      }
      topics.markResubscribed([name]);
      await secondCall;
      if (succeeds) {
        finishRead();
        await opening;
      }
      await topics.listen(name);
      topics.get(name)?.sequencer?.accept(log.message());
      t.same(fixture.seqs(), [1]);
    },
  );

/** Creates subscriptions that only the test marks as lost and as subscribed again. */
function manualSubscriptions(channels: Channels): Subscriptions {
  return new Subscriptions({
    subscriber: { subscribe: async () => {}, unsubscribe() {} },
    ...{ channels, clock: () => TIME_MS, nameOf: (topic) => topic },
    ...{ unsubscribeDelayMs: 1000, maxDelayedUnsubscribes: 100, timeoutMs: () => 5000 },
    ...{ onError() {}, onRestored() {}, judgeUsers: async () => [] },
  });
}

/** Stores a copy of the channel's message in a newer, unreadable format. */
async function storeNewerFormat({ link }: TopicNode, key: string, seq: number): Promise<void> {
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
