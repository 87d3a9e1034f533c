// Brings one line level with the store: tells the listener what the node missed of a channel, in order, streams merged. Reads and tells; the
// line keeps what comes meanwhile. State: none.

import type { Message, StreamSnapshot } from "../../../broker/model.ts";
import type { ChannelFeed, ChannelStanding } from "../../../redis/arrivals.ts";
import type { Sequencer } from "./sequencer.ts";

/** What repairing reads. */
export type CatchUpFeed = Pick<ChannelFeed, "standing" | "messages">;

/** Of one read. */
const PAGE_MESSAGES = 500;
const PAGE_BYTES = 1 << 20;
/** Read backwards, where no seq says how far the node is. */
const MAX_BACK = 1000;

/** After it the line goes on from where the channel stood at the read. Throws what the feed throws; then it may be tried again. */
export async function repair(
  line: Sequencer,
  feed: CatchUpFeed,
): Promise<void> {
  const { told } = line;
  const standing = await standingOf(line, feed);
  told.disown(standing.lastId);
  const { headSeq } = told;
  for (const snapshot of standing.streams)
    if (told.knows(snapshot.clientMsgNo)) line.tellStream(snapshot);
  const isForward =
    headSeq !== undefined &&
    standing.headSeq >= headSeq &&
    standing.pub >= line.pub &&
    (await readForward(line, feed, { headSeq, standing }));
  if (!isForward) await readBack(line, feed, standing);
  for (const snapshot of standing.streams)
    if (isActive(snapshot) && !told.knows(snapshot.clientMsgNo))
      line.tellStream(snapshot); // nobody knows since where: viewers drop what they have
  told.headSeq = standing.headSeq; // the newest may have expired
  line.settle(standing.pub);
}

/**
 * Gives a new line a position where everything that comes is still to be told. `pub`: the number that a reader of the channel has seen;
 * undefined: a frame or a lost connection made the line. `readsBack`: messages of the line's time that did not come are told first.
 */
export async function beginMidway(
  line: Sequencer,
  feed: CatchUpFeed,
  how: { readonly pub: number | undefined; readonly readsBack: boolean },
): Promise<void> {
  const standing = await standingOf(line, feed);
  if (!line.isNew) return repair(line, feed); // was given a position meanwhile
  if (how.readsBack) await readBack(line, feed, standing);
  const { pub: newest, headSeq } = standing;
  const pub = Math.min(newest, how.pub ?? newest, line.lowestKept - 1);
  const later = newest - pub;
  if (later === 0) {
    for (const snapshot of standing.streams)
      if (!line.told.knows(snapshot.clientMsgNo)) line.told.levelWith(snapshot);
    line.told.knowsThrough(standing.lastId);
  }
  line.begin(pub, Math.max(0, headSeq - later)); // no more than one message each
  line.expect(newest);
}

/** Gives a new line the position where the channel stands: what came before is none of its business. */
export async function begin(
  line: Sequencer,
  feed: CatchUpFeed,
): Promise<void> {
  const standing = await feed.standing(line.key, []);
  if (!line.isNew) return;
  for (const snapshot of standing.streams) line.told.levelWith(snapshot);
  line.begin(standing.pub, standing.headSeq);
  line.told.knowsThrough(standing.lastId); // behind what came and was kept until now, which is told
}

/** What came before the read and is not in the store was never published, or is lost: it must not take a number that will be given out. */
async function standingOf(
  line: Sequencer,
  feed: CatchUpFeed,
): Promise<ChannelStanding> {
  const { keptNumbers, key, told } = line;
  const standing = await feed.standing(key, told.streams);
  line.disprove(keptNumbers.filter((pub) => pub > standing.pub));
  return standing;
}

/** False: the store's history is another one than the node was told, after a fail-over that lost some. */
async function readForward(
  line: Sequencer,
  feed: CatchUpFeed,
  { headSeq, standing }: { headSeq: number; standing: ChannelStanding },
): Promise<boolean> {
  const { lastId } = line.told;
  let fromSeq = lastId === 0 ? headSeq + 1 : headSeq;
  while (fromSeq <= standing.headSeq && !line.isClosed) {
    const { messages, more } = await feed.messages(line.key, {
      ...{ fromSeq, toSeq: standing.headSeq, reverse: false },
      ...{ limit: PAGE_MESSAGES, maxBytes: PAGE_BYTES },
    });
    const [first] = messages;
    if (first?.messageSeq === headSeq && first.messageId > lastId) return false;
    for (const message of messages) line.tellMessage(message);
    fromSeq = (messages.at(-1)?.messageSeq ?? standing.headSeq) + 1;
    if (!more) break;
  }
  return true;
}

/** Tells the newest messages that are later than the last one told and of the line's time. */
async function readBack(
  line: Sequencer,
  feed: CatchUpFeed,
  { headSeq }: ChannelStanding,
): Promise<void> {
  const { lastId } = line.told;
  const isMissing = ({ messageId, timestampMs }: Message): boolean =>
    messageId > lastId && timestampMs >= line.sinceMs;
  const found: Message[] = [];
  let toSeq = headSeq;
  while (toSeq > 0 && found.length < MAX_BACK) {
    const { messages, more } = await feed.messages(line.key, {
      ...{ fromSeq: 1, toSeq, reverse: true },
      ...{ limit: PAGE_MESSAGES, maxBytes: PAGE_BYTES },
    });
    const missing = messages.filter(isMissing);
    found.push(...missing);
    if (!more || missing.length < messages.length) break;
    toSeq = (messages.at(-1)?.messageSeq ?? 1) - 1;
  }
  for (const message of found.reverse()) line.tellMessage(message);
}

function isActive({ state }: StreamSnapshot): boolean {
  return state === "active";
}
