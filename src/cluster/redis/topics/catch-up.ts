// Catches up one sequencer: reads the missed part of a channel from the store and delivers it in
// order. During this time, the sequencer buffers new publications.

import { type Message, messageTimeMs, type StreamSnapshot } from "../../../broker/model.ts";
import type { ChannelFeed, ChannelPosition } from "../../../redis/channel-feed.ts";
import type { Sequencer } from "./sequencer.ts";

export type CatchUpFeed = Pick<ChannelFeed, "position" | "messages" | "stream">;

const PAGE_MESSAGES = 500;
const PAGE_BYTES = 1 << 20;
const MAX_BACKWARD_MESSAGES = 1000;

/** Delivers missed messages and stream events from the store, then makes the sequencer live. */
export async function catchUp(sequencer: Sequencer, feed: CatchUpFeed): Promise<void> {
  const { delivered } = sequencer;
  const position = await positionOf(sequencer, feed);
  delivered.forgetLost(position);
  const { headSeq } = delivered;
  for (const snapshot of position.streams)
    if (delivered.hasStream(snapshot.clientMsgNo)) sequencer.deliverStream(snapshot);
  for (const { clientMsgNo } of position.otherStreams)
    if (delivered.hasStream(clientMsgNo)) await readStream(sequencer, feed, clientMsgNo);
  const isForward =
    headSeq !== undefined &&
    position.headSeq >= headSeq &&
    position.publicationSeq >= sequencer.publicationSeq &&
    (await readForward(sequencer, feed, { headSeq, position }));
  if (!isForward) await readBack(sequencer, feed, position);
  for (const snapshot of position.streams)
    if (isActive(snapshot) && !delivered.hasStream(snapshot.clientMsgNo))
      // The stream is delivered from the beginning. Viewers skip the events that they already have.
      sequencer.deliverStream(snapshot);
  for (const { clientMsgNo } of position.otherStreams)
    if (!delivered.hasStream(clientMsgNo)) await readStream(sequencer, feed, clientMsgNo);
  // The reads above did not set `headSeq` to this value if the newest message has expired.
  delivered.headSeq = position.headSeq;
  sequencer.goLive(position.publicationSeq);
}

/**
 * Sets the position of a sequencer that was created when a frame arrived, or after the subscription
 * was lost.
 */
export async function startMidway(sequencer: Sequencer, feed: CatchUpFeed): Promise<void> {
  const position = await positionOf(sequencer, feed);
  if (!sequencer.isNew) return catchUp(sequencer, feed); // another call has set the position
  if (sequencer.readsBack) await readBack(sequencer, feed, position);
  const { publicationSeq: newest, headSeq } = position;
  const publicationSeq = Math.min(newest, sequencer.lowestBuffered - 1);
  const laterCount = newest - publicationSeq;
  if (laterCount === 0) {
    for (const snapshot of position.streams)
      if (!sequencer.delivered.hasStream(snapshot.clientMsgNo))
        sequencer.delivered.resetTo(snapshot);
    for (const tail of position.otherStreams)
      if (!sequencer.delivered.hasStream(tail.clientMsgNo)) sequencer.delivered.startAt(tail);
    if (sequencer.delivered.lastId === 0) sequencer.delivered.advanceTo(position);
  }
  // A publication has at most one message, so at most `laterCount` messages come later.
  sequencer.begin(publicationSeq, Math.max(0, headSeq - laterCount));
  sequencer.expect(newest);
}

/**
 * Sets a new sequencer of a group to the group's current position. Earlier stored messages are not
 * delivered, even if they arrived after the subscription. The listener must read them from the
 * store.
 */
export function begin(sequencer: Sequencer, position: ChannelPosition): void {
  sequencer.confirmId(position.lastId);
  if (!sequencer.isNew) return;
  for (const snapshot of position.streams) sequencer.delivered.resetTo(snapshot);
  for (const tail of position.otherStreams) sequencer.delivered.startAt(tail);
  sequencer.begin(position.publicationSeq, position.headSeq);
  // Must be called after `begin`, which would otherwise skip buffered publications.
  sequencer.delivered.advanceTo(position);
}

/**
 * Reads and delivers a stream that was not in the reply with the position. The read may return
 * events that were added after that reply. These events are skipped when their frames arrive.
 */
async function readStream(
  sequencer: Sequencer,
  feed: CatchUpFeed,
  clientMsgNo: string,
): Promise<void> {
  const snapshot = await feed.stream(sequencer.key, clientMsgNo);
  if (snapshot !== undefined) sequencer.deliverStream(snapshot);
}

async function positionOf(sequencer: Sequencer, feed: CatchUpFeed): Promise<ChannelPosition> {
  const { bufferedSeqs, key, delivered } = sequencer;
  const position = await feed.position(key, delivered);
  sequencer.confirmId(position.lastId);
  sequencer.disprove(
    bufferedSeqs.filter((publicationSeq) => publicationSeq > position.publicationSeq),
  );
  return position;
}

/**
 * Delivers the messages after `headSeq`. Returns false if the store's history has diverged from the
 * delivered history.
 */
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

async function readBack(
  sequencer: Sequencer,
  feed: CatchUpFeed,
  position: ChannelPosition,
): Promise<void> {
  const { delivered, sinceMs } = sequencer;
  const { lastId } = delivered;
  const floorSeq = delivered.floorSeqIn(position);
  const isMissed = (message: Message): boolean =>
    message.messageId > lastId &&
    message.messageSeq > floorSeq &&
    messageTimeMs(message.messageId) >= sinceMs;
  const missed: Message[] = [];
  let toSeq = position.headSeq;
  while (toSeq > 0 && missed.length < MAX_BACKWARD_MESSAGES) {
    const { messages, more } = await feed.messages(sequencer.key, {
      ...{ fromSeq: 1, toSeq, reverse: true },
      ...{ limit: PAGE_MESSAGES, maxBytes: PAGE_BYTES },
    });
    const missedOnPage = messages.filter(isMissed);
    missed.push(...missedOnPage);
    if (!more || missedOnPage.length < messages.length) break;
    toSeq = (messages.at(-1)?.messageSeq ?? 1) - 1;
  }
  for (const message of missed.reverse()) sequencer.deliverMessage(message);
}

function isActive({ state }: StreamSnapshot): boolean {
  return state === "active";
}
