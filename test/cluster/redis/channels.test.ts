// Sequencers of personal channels, whose frames arrive on the topics of both users. They are
// created by the first frame, evicted and created again. On a Redis Cluster the frames of two nodes
// may arrive in any order. The tests use private files because no port shows a node's sequencers.

import t from "tap";
import { ChannelLog, TIME_MS } from "./channel-log.ts";
import {
  createChannels,
  createFixture,
  evictOthers,
  loseTopic,
  receive,
  restoreTopic,
  subscription,
  waitUntilIdle,
  withOneTopic,
} from "./sequencer-fixture.ts";
import { range, until } from "./topic-nodes.ts";

/**
 * The frames 1 to 4 are published. The node receives the frame at index `first` before the others.
 */
for (const first of [0, 1, 2, 3])
  t.test(
    `messages 1 to 4 of a channel are delivered in order if message ${first + 1} arrives first`,
    async (t) => {
      const log = new ChannelLog("personal");
      const fixture = createFixture(t, log);
      const channels = createChannels(fixture, log);
      channels.addTopic(subscription("a"));
      const frames = range(1, 4).map(() => log.message());
      const otherIndexes = [0, 1, 2, 3].filter((at) => at !== first);
      for (const at of [first, ...otherIndexes]) receive(channels, frames[at] ?? Buffer.alloc(0));
      await waitUntilIdle(fixture);
      t.same(fixture.seqs(), range(1, 4));
      receive(channels, log.message());
      t.equal(fixture.seqs().at(-1), 5);
    },
  );

t.test(
  "messages that were sent a minute before the node subscribed to the topic are not delivered",
  async (t) => {
    let now = TIME_MS;
    const log = new ChannelLog("personal", () => now);
    const fixture = createFixture(t, log);
    const channels = createChannels(fixture, log, { now: () => now });
    for (const _ of range(1, 3)) log.message();
    now += 60_000;
    channels.addTopic(subscription("a"));
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    t.same(fixture.seqs(), [4]);
  },
);

t.test(
  "no message is delivered again after the sequencer of its channel was evicted",
  async (t) => {
    let now = TIME_MS;
    const log = new ChannelLog("personal", () => now);
    const fixture = createFixture(t, log);
    const channels = createChannels(fixture, log, { max: 4, now: () => now });
    channels.addTopic(subscription("a"));
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    now += 60_000;
    await evictOthers(fixture, channels, "a");
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    t.same(fixture.seqs(), [1, 2]);
  },
);

t.test(
  "messages that were sent a minute before a node subscribes to a topic again are not delivered",
  async (t) => {
    let now = TIME_MS;
    const log = new ChannelLog("personal", () => now);
    const fixture = createFixture(t, log);
    const channels = createChannels(fixture, log, { now: () => now });
    const oldTopic = subscription("a");
    channels.addTopic(oldTopic);
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    oldTopic.isOpen = false;
    channels.removeTopic(oldTopic);
    for (const _ of range(1, 5)) log.message(); // the node is not subscribed
    now += 60_000;
    channels.addTopic(subscription("a", { sinceMs: now }));
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    t.same(fixture.seqs(), [1, 7]);
  },
);

for (const mayReorder of [true, false])
  t.test(
    `messages missed while a subscription was lost are delivered even if the channel has no sequencer, on ${mayReorder ? "a Redis Cluster" : "one Redis server"}`,
    async (t) => {
      const log = new ChannelLog("personal");
      const fixture = createFixture(t, log, { mayReorder });
      const channels = createChannels(fixture, log);
      const topic = subscription("a", { isUp: false, lostAtMs: TIME_MS });
      channels.addTopic(topic);
      for (const _ of range(1, 3)) log.message();
      topic.isUp = true;
      receive(channels, log.message()); // arrives before the node has read the missed messages
      await Promise.all(channels.restore([topic]));
      t.same(fixture.seqs(), range(1, 4));
    },
  );

t.test(
  "a message that is not stored is delivered even if it is the first message received from its channel",
  async (t) => {
    const log = new ChannelLog("personal");
    const fixture = createFixture(t, log);
    const channels = createChannels(fixture, log);
    channels.addTopic(subscription("a"));
    const stored = [false, true, false];
    const frames = stored.map((isStored) => log.message({ stored: isStored }));
    receive(channels, frames[0] ?? Buffer.alloc(0));
    await waitUntilIdle(fixture);
    for (const frame of frames.slice(1)) receive(channels, frame);
    await waitUntilIdle(fixture);
    t.same(fixture.seqs(), [0, 1, 0]);
  },
);

t.test(
  "if the second message of a channel arrives first, the first message is still delivered before it",
  async (t) => {
    const log = new ChannelLog("personal");
    const fixture = createFixture(t, log);
    const channels = createChannels(fixture, log);
    channels.addTopic(subscription("a"));
    const late = log.message();
    receive(channels, log.message({ origin: "mine" }));
    await waitUntilIdle(fixture);
    t.same(fixture.seqs(), [1, 2]);
    const [, second] = fixture.delivered;
    t.equal(second?.kind === "message" && second.origin, "mine");
    receive(channels, late);
    t.same(fixture.seqs(), [1, 2]);
  },
);

t.test(
  "a personal message that arrives on one user's topic is held back while the subscription to the other user's topic is lost",
  async (t) => {
    const log = new ChannelLog("personal");
    const { fixture, channels, topic: a } = withOneTopic(t, log);
    receive(channels, log.message());
    channels.addTopic(subscription("b", { sinceMs: TIME_MS + 500 }));
    loseTopic(channels, a, TIME_MS + 1000);
    log.message(); // published but not received
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    t.same(fixture.seqs(), [1]);
    await restoreTopic(channels, a);
    t.same(fixture.seqs(), [1, 2, 3]);
    receive(channels, log.message());
    t.same(fixture.seqs(), [1, 2, 3, 4]);
  },
);

t.test(
  "a topic whose subscription was lost no longer delays a channel after the node has unsubscribed from the topic",
  async (t) => {
    const log = new ChannelLog("personal");
    const { fixture, channels, topic: a } = withOneTopic(t, log);
    receive(channels, log.message());
    loseTopic(channels, a, TIME_MS + 1000);
    log.message(); // published but not received
    channels.addTopic(subscription("b", { sinceMs: TIME_MS + 2000 }));
    receive(channels, log.message());
    a.isOpen = false;
    channels.removeTopic(a);
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    t.same(fixture.seqs(), range(1, 4));
  },
);

t.test(
  "messages of a personal channel are still delivered through one user's topic after the node unsubscribes from the other user's topic",
  async (t) => {
    const log = new ChannelLog("personal");
    const { fixture, channels, topic: a } = withOneTopic(t, log);
    receive(channels, log.message());
    const b = subscription("b");
    channels.addTopic(b);
    a.isOpen = false;
    channels.removeTopic(a);
    const { reads } = log;
    receive(channels, log.message());
    t.same(fixture.seqs(), [1, 2]);
    t.equal(log.reads, reads, "nothing is read, because no message was missed");
    loseTopic(channels, b, TIME_MS + 1000);
    receive(channels, log.message());
    t.same(fixture.seqs(), [1, 2], "the channel waits when that topic is lost as well");
    await restoreTopic(channels, b);
    t.same(fixture.seqs(), [1, 2, 3]);
  },
);

t.test(
  "a message missed while a subscription was lost is delivered even if it precedes the first message received from its channel",
  async (t) => {
    const log = new ChannelLog("personal");
    const { fixture, channels, topic: a } = withOneTopic(t, log);
    loseTopic(channels, a, TIME_MS + 1000);
    log.message(); // published but not received
    channels.addTopic(subscription("b", { sinceMs: TIME_MS + 2000 }));
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    await restoreTopic(channels, a);
    t.same(fixture.seqs(), [1, 2]);
  },
);

for (const isListed of [true, false])
  t.test(
    `messages of a personal channel are delivered when both lost subscriptions are restored${isListed ? "" : ", even if its users' lists of channels with new messages do not contain the channel"}`,
    async (t) => {
      const log = new ChannelLog("personal");
      log.isListed = isListed;
      const { fixture, channels, topic: a } = withOneTopic(t, log);
      receive(channels, log.message());
      await waitUntilIdle(fixture);
      const b = subscription("b", { sinceMs: TIME_MS + 500 });
      channels.addTopic(b);
      for (const topic of [a, b]) loseTopic(channels, topic, TIME_MS + 1000);
      log.message(); // published but not received
      await restoreTopic(channels, a);
      await restoreTopic(channels, b);
      for (const _ of range(1, 2)) receive(channels, log.message());
      await waitUntilIdle(fixture);
      t.same(fixture.seqs(), [1, 2, 3, 4]);
    },
  );

t.test(
  "an unstored message that arrives while the subscription to one user's topic is lost is not delivered",
  async (t) => {
    const log = new ChannelLog("personal");
    const { fixture, channels, topic: a } = withOneTopic(t, log);
    const b = subscription("b");
    channels.addTopic(b);
    receive(channels, log.message());
    await waitUntilIdle(fixture);
    for (const topic of [a, b]) loseTopic(channels, topic, TIME_MS + 1000);
    a.isUp = true;
    receive(channels, log.message({ stored: false }));
    await restoreTopic(channels, a);
    await restoreTopic(channels, b);
    t.same(fixture.seqs(), [1]);
  },
);

t.test("the sequencer of a channel with a lost subscription is not evicted", async (t) => {
  const log = new ChannelLog("personal");
  const fixture = createFixture(t, log, { mayReorder: false });
  const channels = createChannels(fixture, log, { max: 4 });
  const a = subscription("a");
  channels.addTopic(a);
  channels.addTopic(subscription("b"));
  loseTopic(channels, a, TIME_MS + 1000);
  for (const _ of range(1, 2)) receive(channels, log.message());
  await waitUntilIdle(fixture);
  await evictOthers(fixture, channels, "b");
  receive(channels, log.message());
  await waitUntilIdle(fixture);
  await restoreTopic(channels, a);
  t.same(fixture.seqs(), [1, 2, 3]);
});

t.test(
  "the first message of a channel is delivered even if it is published while the node's subscription is lost",
  async (t) => {
    const log = new ChannelLog("personal");
    const fixture = createFixture(t, log, { mayReorder: false });
    const channels = createChannels(fixture, log);
    const a = subscription("a", { isUp: false, lostAtMs: TIME_MS });
    channels.addTopic(a);
    await Promise.all(channels.restore([a])); // the topic is still lost
    log.message(); // published but not received
    await restoreTopic(channels, a);
    t.same(fixture.seqs(), [1]);
  },
);

for (const kind of ["a stream event", "a message that is not stored"] as const)
  t.test(
    `if the first publication that a node receives from a channel is ${kind}, older messages are not delivered`,
    async (t) => {
      const log = new ChannelLog("personal");
      const { fixture, channels } = withOneTopic(t, log);
      for (const _ of range(1, 3)) log.message(); // the user read these messages when connecting
      log.start("s");
      const frame =
        kind === "a stream event" ? log.content("s", "x") : log.message({ stored: false });
      receive(channels, frame);
      await waitUntilIdle(fixture);
      t.equal(fixture.delivered.length, 1);
      receive(channels, log.message());
      t.same(fixture.seqs().at(-1), 5);
      log.message(); // published but not received
      receive(channels, log.message());
      await until(() => fixture.seqs().at(-1) === 7, "the missed message is delivered");
      t.same(fixture.seqs().slice(-3), [5, 6, 7], "no older message is delivered");
    },
  );
