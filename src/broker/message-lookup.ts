// Single messages of a channel by seq, id or clientMsgNo. No index is kept for it: ids grow with
// seqs, so one is found by bisection; a clientMsgNo is looked for among the newest messages. State:
// none.

import { type ChannelKey, type Message, messageIdOf } from "./model.ts";
import type { MessageStore } from "./ports.ts";

export interface WantedMessages {
  readonly seqs: readonly number[];
  readonly ids: readonly number[];
  /** Of several messages with one number the newest is found. */
  readonly clientMsgNos: readonly string[];
}

/** Messages among which a clientMsgNo is looked for. */
export const LOOKED_THROUGH = 5000;
/** Messages of one read, and about their bytes. */
const PAGE = 500;
const PAGE_BYTES = 8 * 1024 * 1024;

type Reads = Pick<MessageStore, "headSeq" | "readMessages">;

/** Those that there are and have not expired, in seq order, each once. */
export async function findMessages(
  store: Reads,
  key: ChannelKey,
  { seqs, ids, clientMsgNos }: WantedMessages,
): Promise<readonly Message[]> {
  const found = new Map<number, Message>();
  const note = (message: Message | undefined) => {
    if (message !== undefined) found.set(message.messageSeq, message);
  };
  for (const seq of new Set(seqs)) {
    const message = await firstFrom(store, key, seq, seq);
    note(message);
  }
  const headSeq = await store.headSeq(key);
  const wantedNos = new Set(clientMsgNos);
  for (const id of new Set(ids)) note(await byId(store, key, id, headSeq));
  for (const name of wantedNos) {
    const id = messageIdOf(name);
    const message =
      id === undefined ? undefined : await byId(store, key, id, headSeq);
    if (message?.clientMsgNo !== name) continue;
    note(message);
    wantedNos.delete(name);
  }
  for (const message of await newestNamed(store, key, wantedNos)) note(message);
  return [...found.values()].sort((a, b) => a.messageSeq - b.messageSeq);
}

async function byId(
  store: Reads,
  key: ChannelKey,
  id: number,
  headSeq: number,
): Promise<Message | undefined> {
  let from = 1;
  let to = headSeq;
  while (from <= to) {
    const middle = Math.floor((from + to) / 2);
    const message = await firstFrom(store, key, middle, to);
    if (message?.messageId === id) return message;
    if (message === undefined || message.messageId > id) to = middle - 1;
    else from = message.messageSeq + 1;
  }
  return undefined;
}

async function firstFrom(
  store: Reads,
  key: ChannelKey,
  fromSeq: number,
  toSeq: number,
): Promise<Message | undefined> {
  const range = { fromSeq, toSeq, limit: 1, reverse: false };
  const { messages } = await store.readMessages(key, {
    ...range,
    maxBytes: PAGE_BYTES,
  });
  return messages[0];
}

async function newestNamed(
  store: Reads,
  key: ChannelKey,
  names: ReadonlySet<string>,
): Promise<readonly Message[]> {
  const found = new Map<string, Message>();
  let toSeq = Number.MAX_SAFE_INTEGER;
  let looked = 0;
  while (found.size < names.size && looked < LOOKED_THROUGH) {
    const { messages, more } = await store.readMessages(key, {
      ...{ fromSeq: 1, toSeq, limit: PAGE, reverse: true },
      maxBytes: PAGE_BYTES,
    });
    for (const message of messages) {
      const { clientMsgNo } = message;
      if (names.has(clientMsgNo) && !found.has(clientMsgNo))
        found.set(clientMsgNo, message);
    }
    looked += messages.length;
    toSeq = (messages.at(-1)?.messageSeq ?? 1) - 1;
    if (!more) break;
  }
  return [...found.values()];
}
