// Finds single messages in a channel by seq, id or clientMsgNo. Only the source ids of imported
// messages have an index. Ids grow with seqs, so an id is found by binary search. A clientMsgNo
// that the server created contains the id. Any other clientMsgNo is first looked up in the store's
// dedupe records if the sender is known, and then searched for among the newest messages.

import { type ChannelKey, MAX_ID_LENGTH, type Message, messageIdOf } from "./model.ts";
import type { HistorySlice, MessageStore } from "./ports.ts";

export interface MessageQuery {
  readonly seqs: readonly number[];
  /** Ids, or source ids of imported messages, in decimal (see `isSourceId`). */
  readonly ids: readonly string[];
  /** If several messages have the same clientMsgNo, only one of them is returned. */
  readonly clientMsgNos: readonly string[];
  /** Sender of the messages with these `clientMsgNos`. `undefined` means any sender. */
  readonly fromUid?: string | undefined;
  /** Maximum number of payload bytes. The first message is returned even if it is larger. */
  readonly maxBytes: number;
}

export const MAX_SEARCHED_MESSAGES = 5000;
export const MAX_SEARCHED_BYTES = 64 * 1024 * 1024;
const PAGE = 500;
const PAGE_BYTES = 8 * 1024 * 1024;

const SOURCE_ID = /^[1-9]\d{0,19}$/;
const MAX_SOURCE_ID = 2n ** 64n - 1n;

/**
 * Returns true if the text can be the decimal id of a message, on this server or on the server from
 * which messages were imported.
 */
export function isSourceId(text: string): boolean {
  return SOURCE_ID.test(text) && BigInt(text) <= MAX_SOURCE_ID;
}

type MessageReads = Pick<MessageStore, "headSeq" | "readMessages" | "seqOfSource" | "seqOfRetry">;

/** Returns the messages in seq order without duplicates. */
export async function findMessages(
  store: MessageReads,
  key: ChannelKey,
  query: MessageQuery,
): Promise<HistorySlice> {
  const bySeq = new Map<number, Message>();
  let bytes = 0;
  let more = false;
  for await (const message of lookups(store, key, query)) {
    if (bySeq.has(message.messageSeq)) continue;
    bytes += message.payload.length;
    more = bySeq.size > 0 && bytes > query.maxBytes;
    if (more) break;
    bySeq.set(message.messageSeq, message);
  }
  const messages = [...bySeq.values()];
  messages.sort((a, b) => a.messageSeq - b.messageSeq);
  return { messages, more };
}

async function* lookups(
  store: MessageReads,
  key: ChannelKey,
  { seqs, ids, clientMsgNos, fromUid }: MessageQuery,
): AsyncGenerator<Message> {
  for (const seq of new Set(seqs)) {
    const message = await firstFrom(store, key, seq, seq);
    if (message !== undefined) yield message;
  }
  const headSeq = await store.headSeq(key);
  for (const id of new Set(ids)) {
    const number = Number(id);
    const message = Number.isSafeInteger(number)
      ? await byId(store, key, number, headSeq)
      : undefined;
    const labelled = message ?? (await bySource(store, key, id));
    if (labelled !== undefined) yield labelled;
  }
  const names = new Set(clientMsgNos);
  for (const name of names) {
    const id = messageIdOf(name);
    const message =
      id === undefined
        ? await byRetry(store, key, fromUid, name)
        : await byId(store, key, id, headSeq);
    if (message?.clientMsgNo !== name || !isFrom(message, fromUid)) continue;
    names.delete(name);
    yield message;
  }
  yield* newestNamed(store, key, { names, fromUid });
}

function isFrom(message: Message, fromUid: string | undefined): boolean {
  return fromUid === undefined || message.fromUid === fromUid;
}

/**
 * Finds a message in the store's dedupe records, which may refer to older messages than the search
 * reads.
 */
async function byRetry(
  store: MessageReads,
  key: ChannelKey,
  fromUid: string | undefined,
  clientMsgNo: string,
): Promise<Message | undefined> {
  if (fromUid === undefined || clientMsgNo.length > MAX_ID_LENGTH) return undefined;
  const seq = await store.seqOfRetry(key, fromUid, clientMsgNo);
  return seq === undefined ? undefined : firstFrom(store, key, seq, seq);
}

async function byId(
  store: MessageReads,
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

async function bySource(
  store: MessageReads,
  key: ChannelKey,
  sourceId: string,
): Promise<Message | undefined> {
  const seq = await store.seqOfSource(key, sourceId);
  return seq === undefined ? undefined : firstFrom(store, key, seq, seq);
}

async function firstFrom(
  store: MessageReads,
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

async function* newestNamed(
  store: MessageReads,
  key: ChannelKey,
  { names, fromUid }: { readonly names: Set<string>; readonly fromUid: string | undefined },
): AsyncGenerator<Message> {
  let toSeq = Number.MAX_SAFE_INTEGER;
  let [count, bytes] = [0, 0];
  while (names.size > 0 && count < MAX_SEARCHED_MESSAGES && bytes < MAX_SEARCHED_BYTES) {
    const { messages, more } = await store.readMessages(key, {
      ...{ fromSeq: 1, toSeq, limit: PAGE, reverse: true },
      maxBytes: PAGE_BYTES,
    });
    for (const message of messages) {
      bytes += message.payload.length;
      if (isFrom(message, fromUid) && names.delete(message.clientMsgNo)) yield message;
    }
    count += messages.length;
    toSeq = (messages.at(-1)?.messageSeq ?? 1) - 1;
    if (!more) break;
  }
}
