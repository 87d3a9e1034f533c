// A sequencer that gets frame by frame: whatever is lost, late, doubled, forged or read meanwhile,
// the listener gets each event once and in order. No port plays single frames of one channel
// against single reads.

import t from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import { groupTopic } from "../../../src/broker/model.ts";
import type { Channels } from "../../../src/cluster/redis/topics/channels.ts";
import type { Sequencer } from "../../../src/cluster/redis/topics/sequencer.ts";
import type { OrderedEvent } from "../../../src/redis/wire.ts";
import { FeedLog } from "./feed-log.ts";
import { bench, hear, nodeChannels, oneTopic } from "./sequencer-bench.ts";
import { range, until } from "./topic-nodes.ts";

/** Takes frames in the order of these places. */
function deliver(sequencer: Sequencer, frames: readonly Buffer[], places: readonly number[]): void {
  for (const place of places) sequencer.accept(frames[place] ?? Buffer.alloc(0));
}

t.test("in order at once, repeats left out", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, seqs } = bench(t, log);
  sequencer.begin(0, 0);
  const frames = range(1, 3).map(() => log.message());
  deliver(sequencer, frames, [0, 0, 1, 2, 0, 1, 2]);
  t.same(seqs(), [1, 2, 3]);
  t.equal(log.reads, 0);
});

t.test("what comes late is waited for, without a read", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, seqs, budget } = bench(t, log, { gapMs: 1000 });
  sequencer.begin(0, 0);
  const frames = range(1, 6).map(() => log.message());
  deliver(sequencer, frames, [1, 0, 3, 5, 4, 2]);
  t.same(seqs(), range(1, 6));
  t.equal(log.reads, 0);
  t.equal(budget.used, 0);
});

t.test("what never comes is read, in its place", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, seqs, told } = bench(t, log);
  sequencer.begin(0, 0);
  const frames = range(1, 8).map(() => log.message());
  deliver(sequencer, frames, [0, 1, 4, 7]);
  await until(() => seqs().length === 8, "repaired");
  t.same(seqs(), range(1, 8));
  t.same(
    told.map((event) => event.kind === "message" && event.origin === "s"),
    [true, true, false, false, true, false, false, true],
    "who sent it is known of what came",
  );
  sequencer.accept(log.message());
  t.equal(seqs().at(-1), 9);
});

t.test("the end of the sequencer is read as well", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, seqs, catchUpQueue } = bench(t, log);
  sequencer.begin(0, 0);
  for (const _ of range(1, 1200)) log.message(); // more than a page
  await catchUpQueue.catchUp(sequencer);
  t.same(seqs(), range(1, 1200));
});

t.test("what comes while it is read is told behind it", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, seqs, catchUpQueue } = bench(t, log);
  sequencer.begin(0, 0);
  log.message();
  log.onRead = () => sequencer.accept(log.message()); // each read finds one more
  await catchUpQueue.catchUp(sequencer);
  await catchUpQueue.settled();
  t.same(seqs(), range(1, log.headSeq));
});

t.test("a lost unstored message is lost, one that came is told", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, seqs } = bench(t, log);
  sequencer.begin(0, 0);
  const stored = [true, false, true, false, true];
  const frames = stored.map((isStored) => log.message({ stored: isStored }));
  deliver(sequencer, frames, [0, 3, 4]); // the first 0 and the 2 are lost
  await until(() => seqs().includes(3), "repaired");
  t.same([...seqs()].sort(), [0, 1, 2, 3]);
});

for (const later of [0, 1])
  t.test(
    `an unstored message whose number was read comes late, ${later} stored behind it`,
    async (t) => {
      const log = new FeedLog("personal");
      const { told, sequencer, catchUpQueue } = bench(t, log);
      sequencer.begin(0, 0);
      sequencer.accept(log.message());
      const late = log.message({ stored: false });
      await catchUpQueue.catchUp(sequencer);
      for (const _ of range(1, later)) log.message();
      for (const _ of range(1, 2)) sequencer.accept(late); // by a retry once more
      await catchUpQueue.settled();
      sequencer.accept(log.message());
      await catchUpQueue.settled();
      t.same(
        told.map((event) => event.kind === "message" && event.message.messageId),
        range(1001, log.nextId),
      );
    },
  );

t.test("a stream's missing events come merged, the rest live", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, told } = bench(t, log);
  sequencer.begin(0, 0);
  const frames = [
    log.start("s"),
    log.begin("s"),
    log.content("s", "a"),
    log.content("s", "b"),
    log.content("s", "c"),
    log.content("s", "d"),
  ];
  deliver(sequencer, frames, [0, 1, 2, 5]);
  await until(() => told.length === 4, "repaired");
  sequencer.accept(log.content("s", "e"));
  sequencer.accept(log.end("s"));
  t.same(pieces(told), [
    [0, 1, "{}"],
    [1, 2, "a"],
    [2, 5, "bcd"],
    [5, 6, "e"],
    [6, 7, ""],
  ]);
});

t.test("streams that begin and end unheard are told whole", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, told, catchUpQueue } = bench(t, log);
  sequencer.begin(0, 0);
  for (const frame of [log.start("s"), log.begin("s")]) sequencer.accept(frame);
  log.content("s", "x");
  log.end("s");
  log.start("u");
  log.begin("u");
  log.message();
  log.content("u", "y");
  let reads = 0;
  log.onRead = () => {
    reads += 1; // after the standing was read, before the messages are
    if (reads === 2) sequencer.accept(log.content("u", "z"));
    if (reads === 2) sequencer.accept(log.end("u"));
  };
  await catchUpQueue.catchUp(sequencer);
  t.same(pieces(told, "s"), [
    [0, 1, "{}"],
    [1, 2, "x"],
    [2, 3, ""],
  ]);
  const text = pieces(told, "u").map(([, , data]) => data);
  t.equal(text.slice(1).join(""), "yz");
  t.ok(isGapless(pieces(told, "u")));
  const begun = told.filter((event) => event.kind === "message");
  t.same(
    begun.map(({ message }) => message.stream?.nextIndex),
    [0, 0, undefined],
  );
});

t.test("a forged message hides none of those around its id", async (t) => {
  const log = new FeedLog("group");
  const forger = new FeedLog("group");
  const { sequencer, told, catchUpQueue } = bench(t, log);
  sequencer.begin(0, 0);
  const first = log.message();
  log.nextId += 10;
  const second = log.message();
  forger.nextId = log.nextId - 5;
  for (const frame of [forger.message(), first, second]) sequencer.accept(frame);
  await catchUpQueue.settled();
  const ids = told.map((event) => event.kind === "message" && event.message.messageId);
  t.same(ids, [forger.nextId, 1001, log.nextId]);
});

t.test("over the budget frames are given up and read", async (t) => {
  const log = new FeedLog("group");
  const budget = { used: 0, max: 2000 };
  const { sequencer, seqs, catchUpQueue } = bench(t, log, { budget });
  sequencer.begin(0, 0);
  log.message();
  log.onRead = () => {
    if (log.reads !== 2) return; // where the channel stands was read before
    for (const _ of range(1, 20)) sequencer.accept(log.message());
  };
  await catchUpQueue.catchUp(sequencer);
  await catchUpQueue.settled();
  t.same(seqs(), range(1, 21));
  t.equal(budget.used, 0);
});

t.test("what is given up of a suspended sequencer is read", async (t) => {
  const log = new FeedLog("group");
  const budget = { used: 0, max: 100 };
  const { sequencer, seqs, catchUpQueue } = bench(t, log, { budget });
  sequencer.begin(0, 0);
  sequencer.suspend();
  for (const _ of range(1, 3)) sequencer.accept(log.message());
  sequencer.resume();
  await catchUpQueue.settled();
  t.same(seqs(), [1, 2, 3]);
});

t.test("what is given up behind a gap is read", async (t) => {
  const log = new FeedLog("group");
  const budget = { used: 0, max: 100 };
  const { sequencer, seqs, catchUpQueue } = bench(t, log, { budget });
  sequencer.begin(0, 0);
  const frames = range(1, 3).map(() => log.message());
  deliver(sequencer, frames, [1, 2, 0]);
  await catchUpQueue.settled();
  t.same(seqs(), [1, 2, 3]);
});

t.test("reads that fail are tried again", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, seqs, catchUpQueue, problems } = bench(t, log);
  sequencer.begin(0, 0);
  for (const _ of range(1, 3)) log.message();
  log.onRead = () => {
    if (log.reads < 3) throw new BrokerError("unavailable");
  };
  await catchUpQueue.catchUp(sequencer);
  t.same(seqs(), [1, 2, 3]);
  t.equal(problems.length, 2);
});

t.test("nothing of a channel that cannot be read is skipped", async (t) => {
  const log = new FeedLog("group");
  const { sequencer, seqs, catchUpQueue, problems } = bench(t, log);
  sequencer.begin(0, 0);
  log.onRead = () => {
    throw new BrokerError("internal");
  };
  const before = [log.message(), log.message(), log.message()];
  const frames = [...before, log.removal(), log.message()];
  deliver(sequencer, frames, [0, 2, 3, 4]);
  await until(() => problems.length >= 4, "it was tried several times");
  t.same(seqs(), [1], "nobody knows who was removed, or what came before");
  log.onRead = () => {};
  catchUpQueue.retryNow();
  await until(() => seqs().length === 4, "it can be read again", 30_000);
  t.same(seqs(), [1, 2, 3, 4]);
});

for (const isSuspended of [true, false])
  t.test(
    `after a fail-over that lost some, ${isSuspended ? "the connection too" : "numbers come again"}`,
    async (t) => {
      const log = new FeedLog("group");
      const { sequencer, told, catchUpQueue } = bench(t, log);
      sequencer.begin(0, 0);
      for (const _ of range(1, 5)) sequencer.accept(log.message());
      if (isSuspended) sequencer.suspend();
      log.loseLast(2);
      const later = range(1, isSuspended ? 3 : 2).map(() => log.message());
      for (const frame of later) if (!isSuspended) sequencer.accept(frame);
      if (isSuspended) {
        const repaired = catchUpQueue.catchUp(sequencer);
        sequencer.resume();
        await repaired;
      } else await until(() => told.length === 7, "all are told");
      sequencer.accept(log.message());
      const ids = told.map((event) => event.kind === "message" && event.message.messageId);
      t.same(ids, range(1001, log.nextId), "also those with numbers of lost ones");
    },
  );

t.test("a fail-over that loses all that was delivered repeats nothing older", async (t) => {
  const log = new FeedLog("personal");
  const { one, channels } = oneTopic(t, log);
  for (const _ of range(1, 4)) log.message(); // its receiver read them when it came
  hear(channels, log.message());
  hear(channels, log.message());
  t.same(one.seqs(), [5, 6]);
  log.loseLast(2);
  for (const frame of range(1, 3).map(() => log.message())) hear(channels, frame);
  await one.catchUpQueue.settled();
  t.same(one.seqs(), [5, 6, 5, 6, 7]);
});

for (const isHeard of [true, false])
  t.test(
    `numbers that come again in a channel of which nothing was told are noticed ${isHeard ? "in its frames" : "by a repair"}`,
    async (t) => {
      const log = new FeedLog("group");
      const one = bench(t, log);
      const channels = nodeChannels(one, log);
      for (const _ of range(1, 5)) log.message();
      const unstored = log.message({ stored: false });
      const sequencer = openGroup(channels);
      await channels.begin(sequencer);
      sequencer.accept(unstored);
      await one.catchUpQueue.settled();
      t.equal(log.reads, 1, "what was published before is no sign of it");
      log.publicationSeq -= 1;
      log.loseLast(2);
      const frames = range(4, 9).map(() => log.message());
      if (isHeard) for (const frame of frames) sequencer.accept(frame);
      else void one.catchUpQueue.catchUp(sequencer);
      await one.catchUpQueue.settled();
      t.same(one.seqs(), range(4, 9));
    },
  );

t.test("a new sequencer is given one position, whoever else asks", async (t) => {
  const log = new FeedLog("group");
  const one = bench(t, log);
  const channels = nodeChannels(one, log);
  for (const _ of range(1, 3)) log.message();
  const sequencer = openGroup(channels);
  const gates: (() => void)[] = [];
  log.onRead = () => new Promise<void>((go) => gates.push(go));
  const begun = channels.begin(sequencer); // listened to: asks where the channel stands
  const repaired = one.catchUpQueue.catchUp(sequencer); // so does who saw it lost
  await until(() => gates.length === 2, "both ask");
  gates[0]?.();
  await begun;
  const frame = log.message();
  log.onRead = () => {};
  gates[1]?.(); // its answer knows of it before it comes
  await repaired;
  sequencer.accept(frame);
  sequencer.accept(log.message());
  t.same(one.seqs(), [4, 5]);
});

type Piece = readonly [number | undefined, number | undefined, string];

function pieces(told: readonly OrderedEvent[], no = "s"): readonly Piece[] {
  return told.flatMap((event): readonly Piece[] => {
    if (event.kind !== "event" || event.event.clientMsgNo !== no) return [];
    const { stream, data } = event.event;
    return [[stream?.index, stream?.nextIndex, data]];
  });
}

function isGapless(all: readonly Piece[]): boolean {
  return all.every(([index], at) => index === (all[at - 1]?.[1] ?? 0));
}

function openGroup(channels: Channels): Sequencer {
  const sequencer = channels.createSequencer(groupTopic("g"));
  if (sequencer === undefined) throw new Error("no group");
  t.teardown(() => sequencer.close());
  return sequencer;
}
