// A sequencer, or a node's channels, for tests, with an in-memory log instead of the store, and the
// delivered events and errors.

import type { Test } from "tap";
import { userTopic } from "../../../src/broker/model.ts";
import { CatchUpQueue } from "../../../src/cluster/redis/topics/catch-up-queue.ts";
import { Channels } from "../../../src/cluster/redis/topics/channels.ts";
import { Sequencer, type SequencerPorts } from "../../../src/cluster/redis/topics/sequencer.ts";
import { StoreTime } from "../../../src/cluster/redis/topics/store-time.ts";
import type { Subscription } from "../../../src/cluster/redis/topics/subscription.ts";
import { decodeFrame, type OrderedEvent, publicationSeqOf } from "../../../src/redis/wire.ts";
import { ChannelLog, TIME_MS } from "./channel-log.ts";

/** Creates a sequencer for the log and everything it needs. It is closed at the end of the test. */
export function createFixture(
  t: Test,
  log: ChannelLog,
  { mayReorder = true, ...overrides }: Partial<SequencerPorts> & { mayReorder?: boolean } = {},
) {
  const delivered: OrderedEvent[] = [];
  const errors: unknown[] = [];
  const onError = (error: unknown) => errors.push(error);
  const budget = { used: 0, max: 1 << 20 };
  const catchUpQueue = new CatchUpQueue({
    ...{ feed: log, isCluster: mayReorder, onError, onCaughtUp: () => {} },
    judge: async () => {},
  });
  const sequencers: SequencerPorts = {
    ...{ gapMs: 10, budget, onError },
    deliver: (event) => event.kind !== "head" && delivered.push(event),
    ...{ time: new StoreTime(() => TIME_MS), gaps: new Set() },
    onGap: (sequencer) => void catchUpQueue.catchUp(sequencer),
    rejected: () => {},
    ...overrides,
  };
  const sequencer = new Sequencer({ key: log.key, sinceMs: 0 }, sequencers);
  const keepAlive = setInterval(() => {}, 1000); // the timers of retries do not keep the process alive
  t.teardown(() => {
    clearInterval(keepAlive);
    sequencer.close();
  });
  const seqs = () =>
    delivered.flatMap((event) => (event.kind === "message" ? [event.message.messageSeq] : []));
  return {
    delivered,
    errors,
    budget,
    catchUpQueue,
    sequencers,
    sequencer,
    seqs,
    mayReorder,
  };
}

export type SequencerFixture = ReturnType<typeof createFixture>;

/** Resolves when no catch-up is running. */
export const waitUntilIdle = ({ catchUpQueue }: SequencerFixture) => catchUpQueue.settled();

/** Creates the channels of a node. */
export function createChannels(
  { sequencers, catchUpQueue, mayReorder }: SequencerFixture,
  log: ChannelLog,
  overrides: { max?: number; now?: () => number } = {},
): Channels {
  const { max: maxPersonal = 100, now = () => TIME_MS } = overrides;
  return new Channels({
    ...{ sequencers, catchUpQueue, feed: log, clock: now, mayReorder },
    maxPersonal,
  });
}

/**
 * Delivers a message in ten more personal channels of `uid`, so that other channels are evicted.
 */
export async function evictOthers(
  fixture: SequencerFixture,
  channels: Channels,
  uid: string,
): Promise<void> {
  const delivered = fixture.delivered.length;
  for (let at = 0; at < 10; at++) {
    const log = new ChannelLog("personal");
    const frame = log.message();
    const { kind, message } = eventOf(frame);
    const key = `1:${uid}@x${at}`;
    const event = { kind, message: { ...message, key } } as const;
    channels.accept(frame, 1, {
      ...event,
      origin: undefined,
      recipients: undefined,
    });
    await waitUntilIdle(fixture);
  }
  fixture.delivered.length = delivered;
}

/** Returns a subscription to a user's topic that was made when the test's clock started. */
export function subscription(uid: string, overrides: Partial<Subscription> = {}): Subscription {
  return {
    ...{ topic: userTopic(uid), name: uid, sequencer: undefined, sinceMs: TIME_MS },
    ...{ isUp: true, isOpen: true, lostAtMs: undefined, lostCount: 0 },
    ...overrides,
  };
}

/** Creates the channels of a node on one Redis server that has subscribed to the topic of `uid`. */
export function withOneTopic(
  t: Test,
  log: ChannelLog,
  overrides: { readonly uid?: string; readonly now?: () => number } = {},
) {
  const { uid = "a", ...options } = overrides;
  const fixture = createFixture(t, log, { mayReorder: false });
  const channels = createChannels(fixture, log, options);
  const topic = subscription(uid);
  channels.addTopic(topic);
  return { fixture, channels, topic };
}

/**
 * Marks the subscription as lost. The test must deliver nothing on the topic until it restores the
 * subscription.
 */
export function loseTopic(channels: Channels, topic: Subscription, lostAtMs: number): void {
  topic.isUp = false;
  topic.lostCount += 1;
  topic.lostAtMs = lostAtMs;
  channels.suspend(topic);
}

/** Marks the topic as subscribed again and reads the messages that were missed on it. */
export async function restoreTopic(channels: Channels, topic: Subscription): Promise<void> {
  topic.isUp = true;
  await Promise.all(channels.restore([topic]));
}

/** Delivers a frame of a personal channel. */
export function receive(channels: Channels, frame: Buffer): void {
  const publication = decodeFrame(frame);
  if (publication.kind !== "ordered") throw new Error("the frame is not an ordered publication");
  const { event } = publication;
  if (event.kind === "removal") throw new Error("the frame is not of a personal channel");
  channels.accept(frame, publicationSeqOf(frame), event);
}

function eventOf(frame: Buffer) {
  const publication = decodeFrame(frame);
  if (publication.kind !== "ordered" || publication.event.kind !== "message")
    throw new Error("the frame is not a message");
  return publication.event;
}
