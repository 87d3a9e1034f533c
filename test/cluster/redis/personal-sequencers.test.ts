// Sequencers of personal channels, whose frames come on the topics of both users: created by the first frame, evicted, created anew; on a Redis Cluster
// frames of two nodes may come in any order. No port shows which sequencers a node has.

import t from "tap";
import { FeedLog } from "./feed-log.ts";
import {
  bench,
  crowd,
  hear,
  idle,
  listened,
  lose,
  nodeSequencers,
  oneTopic,
} from "./sequencer-bench.ts";
import { range } from "./topic-nodes.ts";

/** Nodes publish frames 1 to 4 to a node that hears of the channel first by the one at that place. */
for (const first of [0, 1, 2, 3])
  t.test(`first heard of by number ${first + 1}`, async (t) => {
    const log = new FeedLog("personal");
    const one = bench(t, log);
    const sequencers = nodeSequencers(one, log);
    sequencers.personal.opened("a", listened("a"));
    const frames = range(1, 4).map(() => log.message());
    const rest = [0, 1, 2, 3].filter((at) => at !== first);
    for (const at of [first, ...rest])
      hear(sequencers, frames[at] ?? Buffer.alloc(0));
    await idle(one);
    t.same(one.seqs(), range(1, 4));
    hear(sequencers, log.message());
    t.equal(one.seqs().at(-1), 5);
  });

t.test("what is older than the node's interest is not told", async (t) => {
  let now = 1e6 - 60_000;
  const log = new FeedLog("personal", () => now);
  const one = bench(t, log);
  const sequencers = nodeSequencers(one, log, { now: () => now });
  for (const _ of range(1, 3)) log.message();
  now = 1e6;
  sequencers.personal.opened("a", listened("a"));
  hear(sequencers, log.message());
  await idle(one);
  t.same(one.seqs(), [4]);
});

t.test("a forgotten sequencer repeats nothing when it is back", async (t) => {
  let now = 1e6;
  const log = new FeedLog("personal", () => now);
  const one = bench(t, log);
  const sequencers = nodeSequencers(one, log, { max: 4, now: () => now });
  sequencers.personal.opened("a", listened("a"));
  hear(sequencers, log.message());
  await idle(one);
  now += 60_000;
  await crowd(one, sequencers, "a");
  hear(sequencers, log.message());
  await idle(one);
  t.same(one.seqs(), [1, 2]);
});

t.test("a topic that was let go of is begun anew", async (t) => {
  let now = 1e6;
  const log = new FeedLog("personal", () => now);
  const one = bench(t, log);
  const sequencers = nodeSequencers(one, log, { now: () => now });
  const before = listened("a");
  sequencers.personal.opened("a", before);
  hear(sequencers, log.message());
  await idle(one);
  before.isOpen = false;
  sequencers.personal.closed("a");
  for (const _ of range(1, 5)) log.message(); // nobody here wants them
  now += 60_000;
  sequencers.personal.opened("a", listened("a", { sinceMs: now }));
  hear(sequencers, log.message());
  await idle(one);
  t.same(one.seqs(), [1, 7]);
});

for (const mayReorder of [true, false])
  t.test(
    `what was missed of a channel never heard of is told${mayReorder ? ", on a Cluster" : ""}`,
    async (t) => {
      const log = new FeedLog("personal");
      const one = bench(t, log, { mayReorder });
      const sequencers = nodeSequencers(one, log);
      const topic = listened("a", { isUp: false, lostAtMs: 1e6 });
      sequencers.personal.opened("a", topic);
      sequencers.personal.suspend(new Set([topic]));
      for (const _ of range(1, 3)) log.message();
      topic.isUp = true;
      hear(sequencers, log.message()); // comes before the node knows what it missed
      await Promise.all(sequencers.restore([topic]));
      t.same(one.seqs(), range(1, 4));
    },
  );

t.test("what was overtaken when first heard of is told before", async (t) => {
  const log = new FeedLog("personal");
  const one = bench(t, log);
  const sequencers = nodeSequencers(one, log);
  sequencers.personal.opened("a", listened("a"));
  const late = log.message();
  hear(sequencers, log.message({ origin: "mine" }));
  await idle(one);
  t.same(one.seqs(), [1, 2]);
  const [, second] = one.told;
  t.equal(second?.kind === "message" && second.origin, "mine");
  hear(sequencers, late);
  t.same(one.seqs(), [1, 2]);
});

t.test(
  "a sequencer goes on over a topic that was up all the time",
  async (t) => {
    const log = new FeedLog("personal");
    const { one, sequencers, topic: a } = oneTopic(t, log);
    hear(sequencers, log.message());
    sequencers.personal.opened("b", listened("b"));
    lose(sequencers, a, 1e6 + 1000);
    const { reads } = log;
    hear(sequencers, log.message());
    t.same(one.seqs(), [1, 2]);
    t.equal(log.reads, reads, "nothing was missed");
  },
);

t.test(
  "a topic that is younger than the loss vouches for nothing",
  async (t) => {
    const log = new FeedLog("personal");
    const { one, sequencers, topic: a } = oneTopic(t, log);
    hear(sequencers, log.message());
    log.message(); // comes to nobody
    sequencers.personal.opened("b", listened("b", { sinceMs: 1e6 + 1000 }));
    lose(sequencers, a, 1e6 + 500); // noticed late
    await idle(one);
    t.same(one.seqs(), [1, 2]);
    hear(sequencers, log.message());
    t.same(one.seqs(), [1, 2, 3]);
  },
);

t.test(
  "a lost topic that does not come back holds up no sequencer",
  async (t) => {
    const log = new FeedLog("personal");
    const { one, sequencers, topic: a } = oneTopic(t, log);
    hear(sequencers, log.message());
    lose(sequencers, a, 1e6 + 1000);
    log.message(); // comes to nobody
    sequencers.personal.opened("b", listened("b", { sinceMs: 1e6 + 2000 }));
    hear(sequencers, log.message());
    a.isOpen = false;
    sequencers.personal.closed("a");
    hear(sequencers, log.message());
    await idle(one);
    t.same(one.seqs(), range(1, 4));
  },
);

t.test(
  "first heard of over a topic that is younger than the loss",
  async (t) => {
    const log = new FeedLog("personal");
    const { one, sequencers, topic: a } = oneTopic(t, log);
    lose(sequencers, a, 1e6 + 1000);
    log.message(); // comes to nobody
    sequencers.personal.opened("b", listened("b", { sinceMs: 1e6 + 2000 }));
    hear(sequencers, log.message());
    await idle(one);
    a.isUp = true;
    await Promise.all(sequencers.restore([a]));
    t.same(one.seqs(), [1, 2]);
  },
);

t.test("what came over the whole topic is not told again", async (t) => {
  const log = new FeedLog("personal");
  const one = bench(t, log, { mayReorder: false });
  const sequencers = nodeSequencers(one, log, { max: 4 });
  const a = listened("a");
  sequencers.personal.opened("a", a);
  sequencers.personal.opened("b", listened("b"));
  lose(sequencers, a, 1e6 + 1000);
  for (const _ of range(1, 2)) hear(sequencers, log.message());
  await crowd(one, sequencers, "b"); // forgets it
  hear(sequencers, log.message());
  await idle(one);
  t.same(one.seqs(), [1, 2, 3]);
});

t.test(
  "a sequencer that begins while its topic is lost is made good",
  async (t) => {
    const log = new FeedLog("personal");
    const one = bench(t, log, { mayReorder: false });
    const sequencers = nodeSequencers(one, log);
    const a = listened("a", { isUp: false, lostAtMs: 1e6 });
    sequencers.personal.opened("a", a);
    const begun = sequencers.personal.unheard(log.key);
    await one.catchUpQueue.catchUp(begun, { isAfterLoss: true });
    log.message(); // comes to nobody
    a.isUp = true;
    await Promise.all(sequencers.restore([a]));
    t.same(one.seqs(), [1]);
  },
);
