// Compares imported messages with stored messages, for the embedded store and the Redis store.
// Pure.

import { clientMsgNoOf, type Message } from "../broker/model.ts";
import type { ImportedMessage } from "../broker/ports.ts";

/**
 * Header of every imported message. It has a red dot, because WuKongIM counts every message as
 * unread.
 */
export const IMPORTED_HEADER = { noPersist: false, redDot: true } as const;

/**
 * Returns true if `stored` is the imported message. `beforeMs` is the time of the previous message.
 * An imported message with an earlier time must be stored with the time `beforeMs`.
 */
export function isSameMessage(
  stored: Message,
  imported: ImportedMessage,
  beforeMs: number,
): boolean {
  const clientMsgNo = imported.clientMsgNo || clientMsgNoOf(stored.messageId);
  return (
    stored.sourceId === imported.sourceId &&
    stored.fromUid === imported.fromUid &&
    stored.channel.id === imported.channel.id &&
    stored.clientMsgNo === clientMsgNo &&
    stored.timestampMs === Math.max(imported.timestampMs, beforeMs) &&
    stored.expireS === imported.expireS &&
    (stored.passthrough?.setting ?? 0) === (imported.passthrough?.setting ?? 0) &&
    (stored.passthrough?.topic ?? "") === (imported.passthrough?.topic ?? "") &&
    Buffer.compare(stored.payload, imported.payload) === 0
  );
}

/** A store's history limits. 0 means no limit, and so does a `retentionMs` of `Infinity`. */
interface HistoryLimits {
  readonly retentionMs: number;
  readonly maxChannelMessages: number;
}

/** Returns true if a sweep may already have removed the message. */
export function mayBeRemoved(
  { messageSeq, timestampMs, expireS }: ImportedMessage,
  headSeq: number,
  { retentionMs, maxChannelMessages }: HistoryLimits,
  nowMs: number,
): boolean {
  if (expireS > 0 && timestampMs + expireS * 1000 <= nowMs) return true;
  if (retentionMs > 0 && timestampMs + retentionMs <= nowMs) return true;
  return maxChannelMessages > 0 && messageSeq <= headSeq - maxChannelMessages;
}
