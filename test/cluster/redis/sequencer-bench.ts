// A sequencer and its surroundings for tests: what the listener was told, what failed.

import type { Test } from "tap";
import { userTopic } from "../../../src/broker/model.ts";
import { CatchUpQueue } from "../../../src/cluster/redis/topics/catch-up-queue.ts";
import { Channels } from "../../../src/cluster/redis/topics/channels.ts";
import { Sequencer, type SequencerPorts } from "../../../src/cluster/redis/topics/sequencer.ts";
import type { Subscription } from "../../../src/cluster/redis/topics/subscription.ts";
import { decodeFrame, type OrderedEvent, publicationSeqOf } from "../../../src/redis/wire.ts";
import { FeedLog } from "./feed-log.ts";

/** A sequencer, its surroundings, and what the listener was given; ends with the test. */
export function bench(
  t: Test,
  log: FeedLog,
  { mayReorder = true, ...over }: Partial<SequencerPorts> & { mayReorder?: boolean } = {},
) {
  const told: OrderedEvent[] = [];
  const problems: unknown[] = [];
  const onError = (error: unknown) => problems.push(error);
  const budget = { used: 0, max: 1 << 20 };
  const catchUpQueue = new CatchUpQueue({
    ...{ feed: log, onError, onCaughtUp: () => {} },
    judge: async () => {},
  });
  const sequencers: SequencerPorts = {
    ...{ gapMs: 10, budget, deliver: (event) => told.push(event), onError },
    ...{ clock: () => 1e6, gaps: new Set() },
    onGap: (sequencer) => void catchUpQueue.catchUp(sequencer),
    rejected: () => {},
    ...over,
  };
  const sequencer = new Sequencer({ key: log.key, sinceMs: 0 }, sequencers);
  const alive = setInterval(() => {}, 1000); // what waits for a retry keeps no process alive
  t.teardown(() => {
    clearInterval(alive);
    sequencer.close();
  });
  const seqs = () =>
    told.flatMap((event) => (event.kind === "message" ? [event.message.messageSeq] : []));
  return {
    told,
    problems,
    budget,
    catchUpQueue,
    sequencers,
    sequencer,
    seqs,
    mayReorder,
  };
}

export type Bench = ReturnType<typeof bench>;

/** Nothing is being repaired. */
export const idle = ({ catchUpQueue }: Bench) => catchUpQueue.settled();

/** All channels of a node. */
export function nodeChannels(
  { sequencers, catchUpQueue, mayReorder }: Bench,
  log: FeedLog,
  over: { max?: number; now?: () => number } = {},
): Channels {
  const { max: maxPersonal = 100, now = () => 1e6 } = over;
  return new Channels({
    ...{ sequencers, catchUpQueue, feed: log, clock: now, mayReorder },
    maxPersonal,
  });
}

/** The node hears of ten more personal channels of `uid`, and forgets others for them. */
export async function crowd(one: Bench, channels: Channels, uid: string): Promise<void> {
  const told = one.told.length;
  for (let at = 0; at < 10; at++) {
    const log = new FeedLog("personal");
    const frame = log.message();
    const { kind, message } = eventOf(frame);
    const key = `1:${uid}@x${at}`;
    const event = { kind, message: { ...message, key } } as const;
    channels.accept(frame, 1, {
      ...event,
      origin: undefined,
      recipients: undefined,
    });
    await idle(one);
  }
  one.told.length = told;
}

/** A user's topic that is followed since the beginning. */
export function listened(uid: string, over: Partial<Subscription> = {}): Subscription {
  return {
    ...{ topic: userTopic(uid), name: uid, sequencer: undefined, sinceMs: 1e6 },
    ...{ isUp: true, isOpen: true, lostAtMs: undefined, lostCount: 0 },
    ...over,
  };
}

/**
 * The channels of a node on one server that hears the topic of `uid`, followed since the beginning.
 */
export function oneTopic(
  t: Test,
  log: FeedLog,
  over: { readonly uid?: string; readonly now?: () => number } = {},
) {
  const { uid = "a", ...rest } = over;
  const one = bench(t, log, { mayReorder: false });
  const channels = nodeChannels(one, log, rest);
  const topic = listened(uid);
  channels.addTopic(topic);
  return { one, channels, topic };
}

/** What is published to the topic is lost from then on. */
export function lose(channels: Channels, topic: Subscription, lostAtMs: number): void {
  topic.isUp = false;
  topic.lostCount += 1;
  topic.lostAtMs = lostAtMs;
  channels.suspend(topic);
}

/** The topic is subscribed again. */
export async function restore(channels: Channels, topic: Subscription): Promise<void> {
  topic.isUp = true;
  await Promise.all(channels.restore([topic]));
}

/** A frame of a personal channel comes. */
export function hear(channels: Channels, frame: Buffer): void {
  const publication = decodeFrame(frame);
  if (publication.kind !== "ordered") throw new Error("not a sequencer's");
  const { event } = publication;
  if (event.kind === "removal") throw new Error("not a personal channel's");
  channels.accept(frame, publicationSeqOf(frame), event);
}

function eventOf(frame: Buffer) {
  const publication = decodeFrame(frame);
  if (publication.kind !== "ordered" || publication.event.kind !== "message")
    throw new Error("no message");
  return publication.event;
}
