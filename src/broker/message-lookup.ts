// Single messages of a channel by seq, id or clientMsgNo. No index is kept for it: ids grow with
// seqs, so one is found by bisection; a clientMsgNo is looked for among the newest messages. State:
// none.

import { type ChannelKey, type Message, messageIdOf } from "./model.ts";
import type { HistorySlice, MessageStore } from "./ports.ts";

export interface MessageQuery {
  readonly seqs: readonly number[];
  readonly ids: readonly number[];
  /** Of several messages with one number the newest is found. */
  readonly clientMsgNos: readonly string[];
  /** Bytes of payloads after which the lookup ends early; it finds at least one message. */
  readonly maxBytes: number;
}

/** Messages among which a clientMsgNo is looked for, and the bytes of their payloads. */
export const LOOKED_THROUGH = 5000;
export const LOOKED_BYTES = 64 * 1024 * 1024;
/** Messages of one read, and about their bytes. */
const PAGE = 500;
const PAGE_BYTES = 8 * 1024 * 1024;

type Reads = Pick<MessageStore, "headSeq" | "readMessages">;

/**
 * Those that there are and have not expired, in seq order, each once. `more`: the lookup ended
 * early.
 */
export async function findMessages(
  store: Reads,
  key: ChannelKey,
  wanted: MessageQuery,
): Promise<HistorySlice> {
  const found = new Map<number, Message>();
  let bytes = 0;
  let more = false;
  for await (const message of lookups(store, key, wanted)) {
    if (found.has(message.messageSeq)) continue;
    bytes += message.payload.length;
    more = found.size > 0 && bytes > wanted.maxBytes;
    if (more) break;
    found.set(message.messageSeq, message);
  }
  const messages = [...found.values()];
  messages.sort((a, b) => a.messageSeq - b.messageSeq);
  return { messages, more };
}

/** One message may come several times. */
async function* lookups(
  store: Reads,
  key: ChannelKey,
  { seqs, ids, clientMsgNos }: MessageQuery,
): AsyncGenerator<Message> {
  for (const seq of new Set(seqs)) {
    const message = await firstFrom(store, key, seq, seq);
    if (message !== undefined) yield message;
  }
  const headSeq = await store.headSeq(key);
  for (const id of new Set(ids)) {
    const message = await byId(store, key, id, headSeq);
    if (message !== undefined) yield message;
  }
  const names = new Set(clientMsgNos);
  for (const name of names) {
    const id = messageIdOf(name);
    const message = id === undefined ? undefined : await byId(store, key, id, headSeq);
    if (message?.clientMsgNo !== name) continue;
    names.delete(name);
    yield message;
  }
  yield* newestNamed(store, key, names);
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

/** Takes each name that it finds out of `names`. */
async function* newestNamed(
  store: Reads,
  key: ChannelKey,
  names: Set<string>,
): AsyncGenerator<Message> {
  let toSeq = Number.MAX_SAFE_INTEGER;
  let [looked, bytes] = [0, 0];
  while (names.size > 0 && looked < LOOKED_THROUGH && bytes < LOOKED_BYTES) {
    const { messages, more } = await store.readMessages(key, {
      ...{ fromSeq: 1, toSeq, limit: PAGE, reverse: true },
      maxBytes: PAGE_BYTES,
    });
    for (const message of messages) {
      bytes += message.payload.length;
      if (names.delete(message.clientMsgNo)) yield message;
    }
    looked += messages.length;
    toSeq = (messages.at(-1)?.messageSeq ?? 1) - 1;
    if (!more) break;
  }
}
