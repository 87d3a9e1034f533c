// A sequencer that receives single frames. The listener receives each event once and in order, even
// if frames are lost, late, repeated or forged, or if the store is read in the meantime. The tests
// use private files because no port controls the order of frames and reads.

import t from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import { groupTopic } from "../../../src/broker/model.ts";
import type { Channels } from "../../../src/cluster/redis/topics/channels.ts";
import type { Sequencer } from "../../../src/cluster/redis/topics/sequencer.ts";
import type { OrderedEvent } from "../../../src/redis/wire.ts";
import { ChannelLog } from "./channel-log.ts";
import { createChannels, createFixture, receive, withOneTopic } from "./sequencer-fixture.ts";
import { range, until } from "./topic-nodes.ts";

/** Passes the frames with these indexes to the sequencer, in this order. */
function acceptFrames(
  sequencer: Sequencer,
  frames: readonly Buffer[],
  places: readonly number[],
): void {
  for (const place of places) sequencer.accept(frames[place] ?? Buffer.alloc(0));
}

t.test(
  "publications that arrive in order are delivered at once, and repeated publications are dropped",
  async (t) => {
    const log = new ChannelLog("group");
    const { sequencer, seqs } = createFixture(t, log);
    sequencer.begin(0, 0);
    const frames = range(1, 3).map(() => log.message());
    acceptFrames(sequencer, frames, [0, 0, 1, 2, 0, 1, 2]);
    t.same(seqs(), [1, 2, 3]);
    t.equal(log.reads, 0);
  },
);

t.test(
  "a publication that arrives shortly after later ones is still delivered before them, without a read of the store",
  async (t) => {
    const log = new ChannelLog("group");
    const { sequencer, seqs, budget } = createFixture(t, log, { gapMs: 1000 });
    sequencer.begin(0, 0);
    const frames = range(1, 6).map(() => log.message());
    acceptFrames(sequencer, frames, [1, 0, 3, 5, 4, 2]);
    t.same(seqs(), range(1, 6));
    t.equal(log.reads, 0);
    t.equal(budget.used, 0);
  },
);

t.test(
  "a publication that never arrives is read from the store and delivered in order",
  async (t) => {
    const log = new ChannelLog("group");
    const { sequencer, seqs, delivered } = createFixture(t, log);
    sequencer.begin(0, 0);
    const frames = range(1, 8).map(() => log.message());
    acceptFrames(sequencer, frames, [0, 1, 4, 7]);
    await until(() => seqs().length === 8, "all messages are delivered");
    t.same(seqs(), range(1, 8));
    t.same(
      delivered.map((event) => event.kind === "message" && event.origin === "s"),
      [true, true, false, false, true, false, false, true],
      "only received messages name the sending session",
    );
    sequencer.accept(log.message());
    t.equal(seqs().at(-1), 9);
  },
);

t.test("a catch-up delivers all messages even if they fill more than one page", async (t) => {
  const log = new ChannelLog("group");
  const { sequencer, seqs, catchUpQueue } = createFixture(t, log);
  sequencer.begin(0, 0);
  for (const _ of range(1, 1200)) log.message(); // more than one page
  await catchUpQueue.catchUp(sequencer);
  t.same(seqs(), range(1, 1200));
});

t.test("messages that arrive during a catch-up are delivered after it", async (t) => {
  const log = new ChannelLog("group");
  const { sequencer, seqs, catchUpQueue } = createFixture(t, log);
  sequencer.begin(0, 0);
  log.message();
  log.onRead = () => sequencer.accept(log.message()); // each read finds another message
  await catchUpQueue.catchUp(sequencer);
  await catchUpQueue.settled();
  t.same(seqs(), range(1, log.headSeq));
});

t.test(
  "an unstored message is delivered if it is received and skipped if it is lost",
  async (t) => {
    const log = new ChannelLog("group");
    const { sequencer, seqs } = createFixture(t, log);
    sequencer.begin(0, 0);
    const stored = [true, false, true, false, true];
    const frames = stored.map((isStored) => log.message({ stored: isStored }));
    acceptFrames(sequencer, frames, [0, 3, 4]); // the first seq 0 and seq 2 are lost
    await until(() => seqs().includes(3), "the last message is delivered");
    t.same([...seqs()].sort(), [0, 1, 2, 3]);
  },
);

for (const later of [0, 1])
  t.test(
    `an unstored message that arrives late is delivered once (later stored messages: ${later})`,
    async (t) => {
      const log = new ChannelLog("personal");
      const { delivered, sequencer, catchUpQueue } = createFixture(t, log);
      sequencer.begin(0, 0);
      sequencer.accept(log.message());
      const late = log.message({ stored: false });
      await catchUpQueue.catchUp(sequencer);
      for (const _ of range(1, later)) log.message();
      for (const _ of range(1, 2)) sequencer.accept(late); // a retry publishes the message again
      await catchUpQueue.settled();
      sequencer.accept(log.message());
      await catchUpQueue.settled();
      t.same(
        delivered.map((event) => event.kind === "message" && event.message.messageId),
        range(1001, log.nextId),
      );
    },
  );

t.test(
  "missed events of a stream are delivered as one merged event, and later events are delivered live",
  async (t) => {
    const log = new ChannelLog("group");
    const { sequencer, delivered } = createFixture(t, log);
    sequencer.begin(0, 0);
    const frames = [
      log.start("s"),
      log.begin("s"),
      log.content("s", "a"),
      log.content("s", "b"),
      log.content("s", "c"),
      log.content("s", "d"),
    ];
    acceptFrames(sequencer, frames, [0, 1, 2, 5]);
    await until(() => delivered.length === 4, "the missing events are delivered");
    sequencer.accept(log.content("s", "e"));
    sequencer.accept(log.end("s"));
    t.same(streamEvents(delivered), [
      [0, 1, "{}"],
      [1, 2, "a"],
      [2, 5, "bcd"],
      [5, 6, "e"],
      [6, 7, ""],
    ]);
  },
);

t.test("streams that start or end while publications are lost are fully delivered", async (t) => {
  const log = new ChannelLog("group");
  const { sequencer, delivered, catchUpQueue } = createFixture(t, log);
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
    reads += 1; // the first read returns the position, the second the messages
    if (reads === 2) sequencer.accept(log.content("u", "z"));
    if (reads === 2) sequencer.accept(log.end("u"));
  };
  await catchUpQueue.catchUp(sequencer);
  t.same(streamEvents(delivered, "s"), [
    [0, 1, "{}"],
    [1, 2, "x"],
    [2, 3, ""],
  ]);
  const text = streamEvents(delivered, "u").map(([, , data]) => data);
  t.equal(text.slice(1).join(""), "yz");
  t.ok(isGapless(streamEvents(delivered, "u")));
  const messages = delivered.filter((event) => event.kind === "message");
  t.same(
    messages.map(({ message }) => message.stream?.nextIndex),
    [0, 0, undefined],
  );
});

t.test("the missed ends of 100 streams of a channel are delivered, once each", async (t) => {
  const log = new ChannelLog("group");
  log.maxSnapshots = 10; // the other snapshots are read one by one
  const { sequencer, delivered, catchUpQueue } = createFixture(t, log);
  sequencer.begin(0, 0);
  const names = range(1, 100).map((at) => `s${at}`);
  for (const name of names)
    for (const frame of [log.start(name), log.begin(name)]) sequencer.accept(frame);
  const [last = ""] = names.slice(-1);
  for (const name of names) log.content(name, "text");
  for (const name of names.slice(0, -1)) log.end(name);
  // The last stream ends after the position was read, and before the stream itself is read.
  const frames: Buffer[] = [];
  log.onRead = () => {
    if (log.reads === 2) frames.push(log.end(last));
  };
  await catchUpQueue.catchUp(sequencer);
  for (const frame of frames) sequencer.accept(frame);
  await catchUpQueue.settled();
  for (const name of names)
    t.same(
      streamEvents(delivered, name),
      [
        [0, 1, "{}"],
        [1, 2, "text"],
        [2, 3, ""],
      ],
      name,
    );
});

t.test("a forged message does not suppress messages with ids close to its own", async (t) => {
  const log = new ChannelLog("group");
  const forger = new ChannelLog("group");
  const { sequencer, delivered, catchUpQueue } = createFixture(t, log);
  sequencer.begin(0, 0);
  const first = log.message();
  log.nextId += 10;
  const second = log.message();
  forger.nextId = log.nextId - 5;
  for (const frame of [forger.message(), first, second]) sequencer.accept(frame);
  await catchUpQueue.settled();
  const ids = delivered.map((event) => event.kind === "message" && event.message.messageId);
  t.same(ids, [forger.nextId, 1001, log.nextId]);
});

t.test(
  "frames that exceed the buffer limit are dropped, and their messages are read from the store",
  async (t) => {
    const log = new ChannelLog("group");
    const budget = { used: 0, max: 2000 };
    const { sequencer, seqs, catchUpQueue } = createFixture(t, log, { budget });
    sequencer.begin(0, 0);
    log.message();
    log.onRead = () => {
      if (log.reads !== 2) return; // the first read returns the position
      for (const _ of range(1, 20)) sequencer.accept(log.message());
    };
    await catchUpQueue.catchUp(sequencer);
    await catchUpQueue.settled();
    t.same(seqs(), range(1, 21));
    t.equal(budget.used, 0);
  },
);

t.test("messages are read from the store if a suspended sequencer dropped frames", async (t) => {
  const log = new ChannelLog("group");
  const budget = { used: 0, max: 100 };
  const { sequencer, seqs, catchUpQueue } = createFixture(t, log, { budget });
  sequencer.begin(0, 0);
  sequencer.suspend();
  for (const _ of range(1, 3)) sequencer.accept(log.message());
  sequencer.resume();
  await catchUpQueue.settled();
  t.same(seqs(), [1, 2, 3]);
});

t.test("messages whose frames were dropped after a gap are read from the store", async (t) => {
  const log = new ChannelLog("group");
  const budget = { used: 0, max: 100 };
  const { sequencer, seqs, catchUpQueue } = createFixture(t, log, { budget });
  sequencer.begin(0, 0);
  const frames = range(1, 3).map(() => log.message());
  acceptFrames(sequencer, frames, [1, 2, 0]);
  await catchUpQueue.settled();
  t.same(seqs(), [1, 2, 3]);
});

t.test("failed reads of the store are retried", async (t) => {
  const log = new ChannelLog("group");
  const { sequencer, seqs, catchUpQueue, errors: problems } = createFixture(t, log);
  sequencer.begin(0, 0);
  for (const _ of range(1, 3)) log.message();
  log.onRead = () => {
    if (log.reads < 3) throw new BrokerError("unavailable");
  };
  await catchUpQueue.catchUp(sequencer);
  t.same(seqs(), [1, 2, 3]);
  t.equal(problems.length, 2);
});

t.test("no message is skipped while a channel cannot be read", async (t) => {
  const log = new ChannelLog("group");
  const { sequencer, seqs, catchUpQueue, errors: problems } = createFixture(t, log);
  sequencer.begin(0, 0);
  log.onRead = () => {
    throw new BrokerError("internal");
  };
  const before = [log.message(), log.message(), log.message()];
  const frames = [...before, log.removal(), log.message()];
  acceptFrames(sequencer, frames, [0, 2, 3, 4]);
  await until(() => problems.length >= 4, "the read is tried four times");
  t.same(seqs(), [1], "nothing is delivered while removals and earlier messages are unknown");
  log.onRead = () => {};
  catchUpQueue.retryNow();
  await until(() => seqs().length === 4, "the channel can be read again", 30_000);
  t.same(seqs(), [1, 2, 3, 4]);
});

for (const isSuspended of [true, false])
  t.test(
    `messages with reused seqs are delivered after a fail-over${isSuspended ? " and a lost connection" : ""}`,
    async (t) => {
      const log = new ChannelLog("group");
      const { sequencer, delivered, catchUpQueue } = createFixture(t, log);
      sequencer.begin(0, 0);
      for (const _ of range(1, 5)) sequencer.accept(log.message());
      if (isSuspended) sequencer.suspend();
      log.loseLast(2);
      const later = range(1, isSuspended ? 3 : 2).map(() => log.message());
      for (const frame of later) if (!isSuspended) sequencer.accept(frame);
      if (isSuspended) {
        const caughtUp = catchUpQueue.catchUp(sequencer);
        sequencer.resume();
        await caughtUp;
      } else await until(() => delivered.length === 7, "all messages are delivered");
      sequencer.accept(log.message());
      const ids = delivered.map((event) => event.kind === "message" && event.message.messageId);
      t.same(ids, range(1001, log.nextId), "messages with the seqs of lost ones are delivered");
    },
  );

t.test(
  "messages from before a subscription are not delivered after a fail-over that lost all delivered messages",
  async (t) => {
    const log = new ChannelLog("personal");
    const { fixture, channels } = withOneTopic(t, log);
    for (const _ of range(1, 4)) log.message(); // the user read these messages when connecting
    receive(channels, log.message());
    receive(channels, log.message());
    t.same(fixture.seqs(), [5, 6]);
    log.loseLast(2);
    for (const frame of range(1, 3).map(() => log.message())) receive(channels, frame);
    await fixture.catchUpQueue.settled();
    t.same(fixture.seqs(), [5, 6, 5, 6, 7]);
  },
);

for (const isHeard of [true, false])
  t.test(
    `messages that reuse lost seqs are delivered ${isHeard ? "when their frames arrive" : "by a catch-up"}, even if no message of the channel was delivered before`,
    async (t) => {
      const log = new ChannelLog("group");
      const fixture = createFixture(t, log);
      const channels = createChannels(fixture, log);
      for (const _ of range(1, 5)) log.message();
      const unstored = log.message({ stored: false });
      const sequencer = openGroup(channels);
      await channels.begin(sequencer);
      sequencer.accept(unstored);
      await fixture.catchUpQueue.settled();
      t.equal(log.reads, 1, "an earlier publication causes no read");
      log.publicationSeq -= 1;
      log.loseLast(2);
      const frames = range(4, 9).map(() => log.message());
      if (isHeard) for (const frame of frames) sequencer.accept(frame);
      else void fixture.catchUpQueue.catchUp(sequencer);
      await fixture.catchUpQueue.settled();
      t.same(fixture.seqs(), range(4, 9));
    },
  );

t.test("a new sequencer skips no message if two reads of its position overlap", async (t) => {
  const log = new ChannelLog("group");
  const fixture = createFixture(t, log);
  const channels = createChannels(fixture, log);
  for (const _ of range(1, 3)) log.message();
  const sequencer = openGroup(channels);
  const gates: (() => void)[] = [];
  log.onRead = () => new Promise<void>((go) => gates.push(go));
  const messages = channels.begin(sequencer); // `listen` reads the position
  await until(() => gates.length === 1, "the first read has started");
  const caughtUp = fixture.catchUpQueue.catchUp(sequencer); // a restore reads the position as well
  await until(() => gates.length === 2, "both reads have started");
  gates[0]?.();
  await messages;
  const frame = log.message();
  log.onRead = () => {};
  gates[1]?.(); // the second read includes a message that has not arrived yet
  await caughtUp;
  sequencer.accept(frame);
  sequencer.accept(log.message());
  t.same(fixture.seqs(), [4, 5]);
});

type StreamEvent = readonly [number | undefined, number | undefined, string];

function streamEvents(
  delivered: readonly OrderedEvent[],
  clientMsgNo = "s",
): readonly StreamEvent[] {
  return delivered.flatMap((event): readonly StreamEvent[] => {
    if (event.kind !== "event" || event.event.clientMsgNo !== clientMsgNo) return [];
    const { stream, data } = event.event;
    return [[stream?.index, stream?.nextIndex, data]];
  });
}

function isGapless(events: readonly StreamEvent[]): boolean {
  return events.every(([index], at) => index === (events[at - 1]?.[1] ?? 0));
}

function openGroup(channels: Channels): Sequencer {
  const sequencer = channels.createSequencer(groupTopic("g"));
  if (sequencer === undefined) throw new Error("the topic is not a group's topic");
  t.teardown(() => sequencer.close());
  return sequencer;
}
