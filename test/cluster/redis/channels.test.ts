// Personal channels, whose frames come on the topics of both users: created by the first frame,
// evicted, created anew; on a Redis Cluster frames of two nodes may come in any order. No port
// shows which sequencers a node has.

import t from "tap";
import { FeedLog } from "./feed-log.ts";
import {
  bench,
  crowd,
  hear,
  idle,
  listened,
  lose,
  nodeChannels,
  oneTopic,
  restore,
} from "./sequencer-bench.ts";
import { range, until } from "./topic-nodes.ts";

/**
 * Nodes publish frames 1 to 4 to a node that hears of the channel first by the one at that place.
 */
for (const first of [0, 1, 2, 3])
  t.test(`first heard of by number ${first + 1}`, async (t) => {
    const log = new FeedLog("personal");
    const one = bench(t, log);
    const channels = nodeChannels(one, log);
    channels.addTopic(listened("a"));
    const frames = range(1, 4).map(() => log.message());
    const rest = [0, 1, 2, 3].filter((at) => at !== first);
    for (const at of [first, ...rest]) hear(channels, frames[at] ?? Buffer.alloc(0));
    await idle(one);
    t.same(one.seqs(), range(1, 4));
    hear(channels, log.message());
    t.equal(one.seqs().at(-1), 5);
  });

t.test("what is older than the node's interest is not told", async (t) => {
  let now = 1e6 - 60_000;
  const log = new FeedLog("personal", () => now);
  const one = bench(t, log);
  const channels = nodeChannels(one, log, { now: () => now });
  for (const _ of range(1, 3)) log.message();
  now = 1e6;
  channels.addTopic(listened("a"));
  hear(channels, log.message());
  await idle(one);
  t.same(one.seqs(), [4]);
});

t.test("a forgotten sequencer repeats nothing when it is back", async (t) => {
  let now = 1e6;
  const log = new FeedLog("personal", () => now);
  const one = bench(t, log);
  const channels = nodeChannels(one, log, { max: 4, now: () => now });
  channels.addTopic(listened("a"));
  hear(channels, log.message());
  await idle(one);
  now += 60_000;
  await crowd(one, channels, "a");
  hear(channels, log.message());
  await idle(one);
  t.same(one.seqs(), [1, 2]);
});

t.test("a topic that was let go of is begun anew", async (t) => {
  let now = 1e6;
  const log = new FeedLog("personal", () => now);
  const one = bench(t, log);
  const channels = nodeChannels(one, log, { now: () => now });
  const before = listened("a");
  channels.addTopic(before);
  hear(channels, log.message());
  await idle(one);
  before.isOpen = false;
  channels.removeTopic(before);
  for (const _ of range(1, 5)) log.message(); // nobody here wants them
  now += 60_000;
  channels.addTopic(listened("a", { sinceMs: now }));
  hear(channels, log.message());
  await idle(one);
  t.same(one.seqs(), [1, 7]);
});

for (const mayReorder of [true, false])
  t.test(
    `what was missed of a channel never heard of is told${mayReorder ? ", on a Cluster" : ""}`,
    async (t) => {
      const log = new FeedLog("personal");
      const one = bench(t, log, { mayReorder });
      const channels = nodeChannels(one, log);
      const topic = listened("a", { isUp: false, lostAtMs: 1e6 });
      channels.addTopic(topic);
      for (const _ of range(1, 3)) log.message();
      topic.isUp = true;
      hear(channels, log.message()); // comes before the node knows what it missed
      await Promise.all(channels.restore([topic]));
      t.same(one.seqs(), range(1, 4));
    },
  );

t.test("unstored messages that come while a channel is first read are told", async (t) => {
  const log = new FeedLog("personal");
  const one = bench(t, log);
  const channels = nodeChannels(one, log);
  channels.addTopic(listened("a"));
  const stored = [false, true, false];
  const frames = stored.map((isStored) => log.message({ stored: isStored }));
  hear(channels, frames[0] ?? Buffer.alloc(0));
  await idle(one);
  for (const frame of frames.slice(1)) hear(channels, frame);
  await idle(one);
  t.same(one.seqs(), [0, 1, 0]);
});

t.test("what was overtaken when first heard of is told before", async (t) => {
  const log = new FeedLog("personal");
  const one = bench(t, log);
  const channels = nodeChannels(one, log);
  channels.addTopic(listened("a"));
  const late = log.message();
  hear(channels, log.message({ origin: "mine" }));
  await idle(one);
  t.same(one.seqs(), [1, 2]);
  const [, second] = one.told;
  t.equal(second?.kind === "message" && second.origin, "mine");
  hear(channels, late);
  t.same(one.seqs(), [1, 2]);
});

t.test(
  "what comes over the other user's topic waits for the lost one, and is told once",
  async (t) => {
    const log = new FeedLog("personal");
    const { one, channels, topic: a } = oneTopic(t, log);
    hear(channels, log.message());
    channels.addTopic(listened("b", { sinceMs: 1e6 + 500 }));
    lose(channels, a, 1e6 + 1000);
    log.message(); // comes to nobody
    hear(channels, log.message());
    await idle(one);
    t.same(one.seqs(), [1]);
    await restore(channels, a);
    t.same(one.seqs(), [1, 2, 3]);
    hear(channels, log.message());
    t.same(one.seqs(), [1, 2, 3, 4]);
  },
);

t.test("a lost topic that does not come back holds up no channel of the other user", async (t) => {
  const log = new FeedLog("personal");
  const { one, channels, topic: a } = oneTopic(t, log);
  hear(channels, log.message());
  lose(channels, a, 1e6 + 1000);
  log.message(); // comes to nobody
  channels.addTopic(listened("b", { sinceMs: 1e6 + 2000 }));
  hear(channels, log.message());
  a.isOpen = false;
  channels.removeTopic(a);
  hear(channels, log.message());
  await idle(one);
  t.same(one.seqs(), range(1, 4));
});

t.test("a channel goes on over the topic of its other user", async (t) => {
  const log = new FeedLog("personal");
  const { one, channels, topic: a } = oneTopic(t, log);
  hear(channels, log.message());
  const b = listened("b");
  channels.addTopic(b);
  a.isOpen = false;
  channels.removeTopic(a);
  const { reads } = log;
  hear(channels, log.message());
  t.same(one.seqs(), [1, 2]);
  t.equal(log.reads, reads, "nothing was missed");
  lose(channels, b, 1e6 + 1000);
  hear(channels, log.message());
  t.same(one.seqs(), [1, 2], "and is lost with it");
  await restore(channels, b);
  t.same(one.seqs(), [1, 2, 3]);
});

t.test("first heard of while the topic of one user is lost", async (t) => {
  const log = new FeedLog("personal");
  const { one, channels, topic: a } = oneTopic(t, log);
  lose(channels, a, 1e6 + 1000);
  log.message(); // comes to nobody
  channels.addTopic(listened("b", { sinceMs: 1e6 + 2000 }));
  hear(channels, log.message());
  await idle(one);
  await restore(channels, a);
  t.same(one.seqs(), [1, 2]);
});

for (const isListed of [true, false])
  t.test(
    `it goes on with the later of two lost topics, of a user who came ${isListed ? "behind" : "behind, unlisted,"} its first message`,
    async (t) => {
      const log = new FeedLog("personal");
      log.isListed = isListed;
      const { one, channels, topic: a } = oneTopic(t, log);
      hear(channels, log.message());
      await idle(one);
      const b = listened("b", { sinceMs: 1e6 + 500 });
      channels.addTopic(b);
      for (const topic of [a, b]) lose(channels, topic, 1e6 + 1000);
      log.message(); // comes to nobody
      await restore(channels, a);
      await restore(channels, b);
      for (const _ of range(1, 2)) hear(channels, log.message());
      await idle(one);
      t.same(one.seqs(), [1, 2, 3, 4]);
    },
  );

t.test("an unstored message that came between the returns of two topics is dropped", async (t) => {
  const log = new FeedLog("personal");
  const { one, channels, topic: a } = oneTopic(t, log);
  const b = listened("b");
  channels.addTopic(b);
  hear(channels, log.message());
  await idle(one);
  for (const topic of [a, b]) lose(channels, topic, 1e6 + 1000);
  a.isUp = true;
  hear(channels, log.message({ stored: false }));
  await restore(channels, a);
  await restore(channels, b);
  t.same(one.seqs(), [1]);
});

t.test("a channel that waits for its topic is not forgotten", async (t) => {
  const log = new FeedLog("personal");
  const one = bench(t, log, { mayReorder: false });
  const channels = nodeChannels(one, log, { max: 4 });
  const a = listened("a");
  channels.addTopic(a);
  channels.addTopic(listened("b"));
  lose(channels, a, 1e6 + 1000);
  for (const _ of range(1, 2)) hear(channels, log.message());
  await idle(one);
  await crowd(one, channels, "b");
  hear(channels, log.message());
  await idle(one);
  await restore(channels, a);
  t.same(one.seqs(), [1, 2, 3]);
});

t.test("a channel that begins while its topic is lost is made good", async (t) => {
  const log = new FeedLog("personal");
  const one = bench(t, log, { mayReorder: false });
  const channels = nodeChannels(one, log);
  const a = listened("a", { isUp: false, lostAtMs: 1e6 });
  channels.addTopic(a);
  await Promise.all(channels.restore([a])); // lost again meanwhile
  log.message(); // comes to nobody
  await restore(channels, a);
  t.same(one.seqs(), [1]);
});

for (const kind of ["stream", "unstored message"] as const)
  t.test(`first heard of by a ${kind}`, async (t) => {
    const log = new FeedLog("personal");
    const { one, channels } = oneTopic(t, log);
    for (const _ of range(1, 3)) log.message(); // read when its user came
    log.start("s");
    const frame = kind === "stream" ? log.content("s", "x") : log.message({ stored: false });
    hear(channels, frame);
    await idle(one);
    t.equal(one.told.length, 1);
    hear(channels, log.message());
    t.same(one.seqs().at(-1), 5);
    log.message(); // comes to nobody
    hear(channels, log.message());
    await until(() => one.seqs().at(-1) === 7, "made good");
    t.same(one.seqs().slice(-3), [5, 6, 7], "nothing older");
  });
