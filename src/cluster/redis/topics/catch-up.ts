// Catch-up of one sequencer: reads the missed part of a channel from the store and delivers it in
// order, streams merged. The sequencer buffers new publications meanwhile. State: none.

import type { Message, StreamSnapshot } from "../../../broker/model.ts";
import type { ChannelFeed, ChannelPosition } from "../../../redis/channel-feed.ts";
import type { Sequencer } from "./sequencer.ts";

/** The store reads of a catch-up. */
export type CatchUpFeed = Pick<ChannelFeed, "position" | "messages">;

/** Limits of one read. */
const PAGE_MESSAGES = 500;
const PAGE_BYTES = 1 << 20;
/** Messages read backwards if the delivered seq is unknown. */
const MAX_BACK = 1000;

/**
 * Afterwards the sequencer continues at the position that was read. Throws what the feed throws;
 * may be retried.
 */
export async function catchUp(sequencer: Sequencer, feed: CatchUpFeed): Promise<void> {
  const { delivered } = sequencer;
  const position = await positionOf(sequencer, feed);
  delivered.forgetLost(position);
  const { headSeq } = delivered;
  for (const snapshot of position.streams)
    if (delivered.knows(snapshot.clientMsgNo)) sequencer.deliverStream(snapshot);
  const isForward =
    headSeq !== undefined &&
    position.headSeq >= headSeq &&
    position.publicationSeq >= sequencer.publicationSeq &&
    (await readForward(sequencer, feed, { headSeq, position }));
  if (!isForward) await readBack(sequencer, feed, position);
  for (const snapshot of position.streams)
    if (isActive(snapshot) && !delivered.knows(snapshot.clientMsgNo))
      sequencer.deliverStream(snapshot); // the start is unknown: viewers skip what they have
  delivered.headSeq = position.headSeq; // the newest may have expired
  sequencer.goLive(position.publicationSeq);
}

/**
 * Gives a new sequencer, created by a frame or a lost connection, a position from which buffered
 * and later publications are delivered.
 */
export async function startMidway(sequencer: Sequencer, feed: CatchUpFeed): Promise<void> {
  const position = await positionOf(sequencer, feed);
  if (!sequencer.isNew) return catchUp(sequencer, feed); // another caller set the position
  if (sequencer.readsBack) await readBack(sequencer, feed, position);
  const { publicationSeq: newest, headSeq } = position;
  const publicationSeq = Math.min(newest, sequencer.lowestBuffered - 1);
  const later = newest - publicationSeq;
  if (later === 0) {
    for (const snapshot of position.streams)
      if (!sequencer.delivered.knows(snapshot.clientMsgNo)) sequencer.delivered.resetTo(snapshot);
    if (sequencer.delivered.lastId === 0) sequencer.delivered.advanceTo(position);
  }
  sequencer.begin(publicationSeq, Math.max(0, headSeq - later)); // each publication is at most one message
  sequencer.expect(newest);
}

/** Gives a new sequencer the channel's current position: earlier publications are not needed. */
export async function begin(sequencer: Sequencer, feed: CatchUpFeed): Promise<void> {
  const position = await feed.position(sequencer.key, {
    streams: [],
    marks: [],
  });
  if (!sequencer.isNew) return;
  for (const snapshot of position.streams) sequencer.delivered.resetTo(snapshot);
  sequencer.begin(position.publicationSeq, position.headSeq);
  sequencer.delivered.advanceTo(position); // after the buffered publications, which are delivered
}

/**
 * Reads the position. Buffered publications above it were never stored, or are lost: their numbers
 * will be given out again.
 */
async function positionOf(sequencer: Sequencer, feed: CatchUpFeed): Promise<ChannelPosition> {
  const { bufferedNumbers, key, delivered } = sequencer;
  const position = await feed.position(key, delivered);
  sequencer.disprove(
    bufferedNumbers.filter((publicationSeq) => publicationSeq > position.publicationSeq),
  );
  return position;
}

/** False: forked history, a fail-over lost messages that were delivered. */
async function readForward(
  sequencer: Sequencer,
  feed: CatchUpFeed,
  { headSeq, position }: { headSeq: number; position: ChannelPosition },
): Promise<boolean> {
  const { lastId } = sequencer.delivered;
  let fromSeq = lastId === 0 ? headSeq + 1 : headSeq;
  while (fromSeq <= position.headSeq && !sequencer.isClosed) {
    const { messages, more } = await feed.messages(sequencer.key, {
      ...{ fromSeq, toSeq: position.headSeq, reverse: false },
      ...{ limit: PAGE_MESSAGES, maxBytes: PAGE_BYTES },
    });
    const [first] = messages;
    if (first?.messageSeq === headSeq && first.messageId > lastId) return false;
    for (const message of messages) sequencer.deliverMessage(message);
    fromSeq = (messages.at(-1)?.messageSeq ?? position.headSeq) + 1;
    if (!more) break;
  }
  return true;
}

/** Delivers the newest messages above the last delivered id and since the sequencer's `sinceMs`. */
async function readBack(
  sequencer: Sequencer,
  feed: CatchUpFeed,
  position: ChannelPosition,
): Promise<void> {
  const { delivered, sinceMs } = sequencer;
  const { lastId } = delivered;
  const floorSeq = delivered.floorSeqIn(position);
  const isMissing = (one: Message): boolean =>
    one.messageId > lastId && one.messageSeq > floorSeq && one.timestampMs >= sinceMs;
  const found: Message[] = [];
  let toSeq = position.headSeq;
  while (toSeq > 0 && found.length < MAX_BACK) {
    const { messages, more } = await feed.messages(sequencer.key, {
      ...{ fromSeq: 1, toSeq, reverse: true },
      ...{ limit: PAGE_MESSAGES, maxBytes: PAGE_BYTES },
    });
    const missing = messages.filter(isMissing);
    found.push(...missing);
    if (!more || missing.length < messages.length) break;
    toSeq = (messages.at(-1)?.messageSeq ?? 1) - 1;
  }
  for (const message of found.reverse()) sequencer.deliverMessage(message);
}

function isActive({ state }: StreamSnapshot): boolean {
  return state === "active";
}
